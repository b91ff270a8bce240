#!/usr/bin/env bash
# Builds and runs the fuzz targets of tests/fuzz (Clang's libFuzzer with address and undefined-behaviour sanitizers) and prints a table.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

runs=1000000
jobs=$(nproc)
targets=()
while [ $# -gt 0 ]; do
  case $1 in
    -h | --help)
      echo "usage: scripts/fuzz.sh [--runs N] [--jobs N] [TARGET...]"
      echo "  Runs each target (default: all of tests/fuzz/CMakeLists.txt) N times (default 1000000) from its seeds in tests/fuzz/corpus/ and"
      echo "  from what earlier runs found (build/fuzz/corpus/). Inputs that fail are kept in build/fuzz/artifacts/; exit code 1 when there are any."
      exit 0 ;;
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
command -v clang++ >/dev/null || die "clang++ was not found; run scripts/setup.sh --tests"

began=$SECONDS
scripts/build.sh fuzz "${targets[@]/#/--target=fuzz_}"

# run_target NAME: leaves one line "NAME RC EXECUTIONS EDGES CORPUS SECONDS" in build/fuzz/results/NAME.
run_target() {
  local target=$1 began rc=0 log=build/fuzz/results/$1.log dictionary=()
  mkdir -p "build/fuzz/corpus/$target"
  [ ! -f "tests/fuzz/dict/$target.dict" ] || dictionary=("-dict=tests/fuzz/dict/$target.dict")
  began=$(date +%s.%N)
  "build/fuzz/tests/fuzz/fuzz_$target" -runs="$FUZZ_RUNS" -seed=1 -max_len=4096 -timeout=20 -rss_limit_mb=2048 -print_final_stats=1 \
    -artifact_prefix="build/fuzz/artifacts/$target-" "${dictionary[@]}" "build/fuzz/corpus/$target" "tests/fuzz/corpus/$target" >"$log" 2>&1 || rc=$?
  awk -v target="$target" -v rc="$rc" -v began="$began" -v ended="$(date +%s.%N)" '
    match($0, /cov: [0-9]+/) { edges = substr($0, RSTART + 5, RLENGTH - 5) }
    match($0, /corp: [0-9]+/) { corpus = substr($0, RSTART + 6, RLENGTH - 6) }
    /^stat::number_of_executed_units/ { executions = $2 }
    END { printf "%s %d %d %d %d %.1f\n", target, rc, executions, edges, corpus, ended - began }' "$log" >"build/fuzz/results/$target"
}
export -f run_target
export FUZZ_RUNS=$runs

# Scratch folders (tests/fuzz/fuzz.h) of targets that were killed or found something.
for folder in /dev/shm/octet-fuzz-*; do
  [ ! -d "$folder" ] || [ -d "/proc/${folder##*-}" ] || rm -rf "$folder"
done
rm -rf build/fuzz/results
mkdir -p build/fuzz/results build/fuzz/artifacts
printf '%s\n' "${targets[@]}" | xargs -P "$jobs" -I{} bash -c 'run_target {}'

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
