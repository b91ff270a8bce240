#!/usr/bin/env bash
# Configures and builds into build/PRESET. Shows the compiler's progress; the configure step is silent unless it fails.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

preset=release
targets=()
cmake_options=()
while [ $# -gt 0 ]; do
  case $1 in
    -h | --help)
      echo "usage: scripts/build.sh [release|debug|asan|tsan|fuzz] [--target NAME]... [-DOPTION=VALUE]..."
      echo "  Builds into build/PRESET (default release), everything or the named targets (octet: the program without tests)."
      echo "  Options: -DOCTET_CUDA=auto|ON|OFF  -DOCTET_TESTS=ON|OFF  -DOCTET_PORTABLE=ON|OFF  -DOCTET_UNITY=ON|OFF"
      echo "  OCTET_UNITY=ON (default) compiles the files of a folder together, the shortest first build; OFF compiles less after an edit. asan and tsan: OFF."
      exit 0 ;;
    --target)
      need_value "$1" $#
      targets+=(--target "$2")
      shift ;;
    --target=?*) targets+=(--target "${1#*=}") ;;
    -D?*) cmake_options+=("$1") ;;
    -*) usage_error "unknown flag '$1'" ;;
    *) preset=$1 ;;
  esac
  shift
done
[[ $preset =~ ^(release|debug|asan|tsan|fuzz)$ ]] || usage_error "unknown preset '$preset'; there are release, debug, asan, tsan and fuzz"

began=$SECONDS
log=build/$preset/configure.log
mkdir -p "build/$preset"
if ! cmake --preset "$preset" "${cmake_options[@]}" >"$log" 2>&1; then
  tail -n 25 "$log" >&2
  die "cmake could not configure build/$preset (its last lines are above, all of them are in $log)"
fi
sed -n 's/^-- octet: /== build: /p' "$log"

NINJA_STATUS='[%f/%t %es] ' cmake --build "build/$preset" --parallel "$(build_jobs)" "${targets[@]}" ||
  die "the build of build/$preset failed (the compiler's message is above)"
say "build: build/$preset is ready ($(minutes $((SECONDS - began))))"
