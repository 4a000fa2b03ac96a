#!/usr/bin/env bash
# Configures a preset where that is needed, and builds it: tools/build.sh PRESET
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
preset=${1:?"which preset? see: cmake --list-presets"}

# Ninja configures again by itself when a CMake file changes, but not when the presets do.
if [[ ! -f build/$preset/build.ninja || CMakePresets.json -nt build/$preset/build.ninja ]]; then
  cmake --preset "$preset"
fi
cmake --build --preset "$preset" --parallel "${JOBS:-$(nproc)}"
