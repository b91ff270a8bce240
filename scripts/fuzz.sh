#!/usr/bin/env bash
# Builds and runs the fuzz targets of tests/fuzz (Clang's libFuzzer with address and undefined-behaviour sanitizers) and prints a table.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

runs=1000000
jobs=$(nproc)
build_only=false
programs=
targets=()
while [ $# -gt 0 ]; do
  case $1 in
    -h | --help)
      echo "usage: scripts/fuzz.sh [--runs N] [--jobs N] [--build-only | --programs FOLDER] [TARGET...]"
      echo "  Runs each target (default: all of tests/fuzz/CMakeLists.txt) N times (default 1000000) from its seeds in tests/fuzz/corpus/ and"
      echo "  from what earlier runs found (build/fuzz/corpus/). Inputs that fail are kept in build/fuzz/artifacts/; exit code 1 when there are any."
      echo "  --build-only       build, and put the stripped programs with the libraries they need into build/fuzz/portable (printed last): they run on any"
      echo "                     x86-64-v3 Linux of the same glibc or a newer one"
      echo "  --programs FOLDER  run the programs of such a folder and build nothing; neither compiler nor libraries are needed"
      exit 0 ;;
    --build-only) build_only=true ;;
    --programs)
      need_value "$1" $#
      programs=$(user_path "$2")
      shift ;;
    --runs | --jobs)
      need_value "$1" $#
      need_count "$1" "$2"
      if [ "$1" = --runs ]; then runs=$2; else jobs=$2; fi
      shift ;;
    -*) usage_error "unknown flag '$1'" ;;
    *) targets+=("$1") ;;
  esac
  shift
done

mapfile -t known < <(sed -n 's/^octet_fuzz(\([a-z0-9_]*\))$/\1/p' tests/fuzz/CMakeLists.txt)
[ ${#targets[@]} != 0 ] || targets=("${known[@]}")
for target in "${targets[@]}"; do
  [[ " ${known[*]} " == *" $target "* ]] || usage_error "unknown target '$target'; there are ${known[*]}"
done
! $build_only || [ -z "$programs" ] || usage_error "--build-only and --programs exclude each other"

# make_portable: stripped copies of the targets, and every library but glibc's own in lib/, where the programs look first.
make_portable() {
  local out=build/fuzz/portable target
  rm -rf "$out"
  mkdir -p "$out/lib"
  for target in "${targets[@]}"; do
    strip -s -o "$out/fuzz_$target" "build/fuzz/tests/fuzz/fuzz_$target"
    ldd "build/fuzz/tests/fuzz/fuzz_$target"
  done | awk '$2 == "=>" {print $3}' | sort -u | while read -r library; do
    case ${library##*/} in
      libc.so.* | libm.so.* | libdl.so.* | librt.so.* | libpthread.so.* | libresolv.so.*) ;;
      *) cp -L "$library" "$out/lib/" ;;
    esac
  done
  say "fuzz: ${#targets[@]} programs, $(du -sm "$out" | cut -f1) MB; elsewhere, in a clone that has this folder: scripts/fuzz.sh --programs $out"
  printf '%s\n' "$ROOT/$out"
}

began=$SECONDS
if [ -z "$programs" ]; then
  command -v clang++ >/dev/null || die "clang++ was not found; run scripts/setup.sh --tests"
  scripts/build.sh fuzz "${targets[@]/#/--target=fuzz_}"
  if $build_only; then
    make_portable
    exit 0
  fi
  programs=build/fuzz/tests/fuzz
fi
for target in "${targets[@]}"; do
  [ -x "$programs/fuzz_$target" ] || die "there is no program $programs/fuzz_$target; scripts/fuzz.sh --build-only makes them"
done

# run_target NAME: leaves one line "NAME RC EXECUTIONS EDGES CORPUS SECONDS" in build/fuzz/results/NAME.
run_target() {
  local target=$1 began rc=0 log=build/fuzz/results/$1.log dictionary=() length=()
  mkdir -p "build/fuzz/corpus/$target"
  [ ! -f "tests/fuzz/dict/$target.dict" ] || dictionary=("-dict=tests/fuzz/dict/$target.dict")
  # Length control lets inputs grow once short ones find nothing new; in these two it kept them below 300 bytes for 10^6 executions.
  case $target in config_set | text_input) length=(-len_control=0) ;; esac
  began=$(date +%s.%N)
  "$FUZZ_PROGRAMS/fuzz_$target" -runs="$FUZZ_RUNS" -seed=1 -max_len=4096 -timeout=20 -rss_limit_mb=2048 -print_final_stats=1 \
    -artifact_prefix="build/fuzz/artifacts/$target-" "${dictionary[@]}" "${length[@]}" "build/fuzz/corpus/$target" "tests/fuzz/corpus/$target" >"$log" 2>&1 || rc=$?
  awk -v target="$target" -v rc="$rc" -v began="$began" -v ended="$(date +%s.%N)" '
    match($0, /cov: [0-9]+/) { edges = substr($0, RSTART + 5, RLENGTH - 5) }
    match($0, /corp: [0-9]+/) { corpus = substr($0, RSTART + 6, RLENGTH - 6) }
    /^stat::number_of_executed_units/ { executions = $2 }
    END { printf "%s %d %d %d %d %.1f\n", target, rc, executions, edges, corpus, ended - began }' "$log" >"build/fuzz/results/$target"
}
export -f run_target
export FUZZ_RUNS=$runs FUZZ_PROGRAMS=$programs

# Scratch folders (tests/fuzz/fuzz.h) of targets that were killed or found something.
for folder in /dev/shm/octet-fuzz-*; do
  [ ! -d "$folder" ] || [ -d "/proc/${folder##*-}" ] || rm -rf "$folder"
done
rm -rf build/fuzz/results
mkdir -p build/fuzz/results build/fuzz/artifacts
# The slow ones first, so that the others fill the end.
{
  printf '%s\n' "${targets[@]}" | grep -xE 'tokenizer_json|config_set|text_input|config' || true
  printf '%s\n' "${targets[@]}" | grep -vxE 'tokenizer_json|config_set|text_input|config' || true
} | xargs -P "$jobs" -I{} bash -c 'run_target {}'

failed=()
printf '\n| target | executions | edges | corpus | seconds | executions/s | findings |\n|---|---:|---:|---:|---:|---:|---|\n'
for target in "${targets[@]}"; do
  read -r _ rc executions edges corpus seconds <"build/fuzz/results/$target"
  rate=$(awk -v n="$executions" -v s="$seconds" 'BEGIN { printf "%d", (s > 0 ? n / s : 0) }')
  finding=none
  if [ "$rc" != 0 ]; then
    finding="**exit code $rc**"
    failed+=("$target")
  fi
  echo "| $target | $executions | $edges | $corpus | $seconds | $rate | $finding |"
done
echo
for target in "${failed[@]}"; do
  tail -n 30 "build/fuzz/results/$target.log" >&2
done
say "fuzz: took $(minutes $((SECONDS - began)))"
[ ${#failed[@]} = 0 ] || die "findings in ${failed[*]}: build/fuzz/results/TARGET.log says what, build/fuzz/artifacts/ holds the inputs"
