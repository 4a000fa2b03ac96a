#!/usr/bin/env bash
# Checks what needs no build: format, layers and rules of the house, spelling, scripts.
#
#   tools/style.sh          says what is wrong
#   tools/style.sh --fix    formats the sources in place
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
tools/setup.sh system dev
bin=build/deps/dev/bin

# Tracked files and new ones that git does not ignore.
list() { git ls-files --cached --others --exclude-standard --deduplicate -- "$@"; }

mapfile -t all < <(list)
mapfile -t cpp < <(list '*.cc' '*.h')
mapfile -t cmake < <(list '*CMakeLists.txt' '*.cmake')
mapfile -t python < <(list '*.py')
mapfile -t scripts < <(list '*.sh' .ci/run)

if [[ ${1:-} == --fix ]]; then
  "$bin/clang-format" -i "${cpp[@]}"
  "$bin/gersemi" --in-place "${cmake[@]}"
  "$bin/ruff" format --quiet "${python[@]}"
  "$bin/ruff" check --quiet --fix "${python[@]}"
  exit
fi

failed=0
# check WHAT COMMAND...
check() {
  local what=$1
  shift
  if "$@"; then
    echo "style: $what: fine"
  else
    echo "style: $what: see above"
    failed=1
  fi
}

check "C++ format" "$bin/clang-format" --dry-run -Werror "${cpp[@]}"
check "CMake format" "$bin/gersemi" --check "${cmake[@]}"
check "Python format" "$bin/ruff" format --quiet --check "${python[@]}"
check "Python rules" "$bin/ruff" check --quiet "${python[@]}"
check "spelling" "$bin/codespell" "${all[@]}"
check "layers and rules of the house" python3 tools/tidy.py
if command -v shellcheck > /dev/null; then
  check "scripts" shellcheck "${scripts[@]}"
fi
exit "$failed"
