#!/usr/bin/env bash
# clang-tidy over C++ sources: tools/lint.sh [FILE...], all of src/ but tests when none is given.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
tools/setup.sh system dev
# Compile commands of its own, in which warnings are not errors: those are the compiler's affair.
cmake --preset test -B build/lint -DHEADRACE_WERROR=OFF > /dev/null

files=("$@")
# Kernels of the other processor have no compile command here; their text is that of the others.
[[ ${#files[@]} -gt 0 ]] ||
  mapfile -t files < <(find src -name '*.cc' ! -name '*_test.cc' ! -name 'isa_neon*.cc' | sort)
printf '%s\0' "${files[@]}" |
  xargs -0 -n 1 -P "${JOBS:-$(nproc)}" build/deps/dev/bin/clang-tidy --quiet -p build/lint
echo "lint: fine"
