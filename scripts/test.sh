#!/usr/bin/env bash
# Sets up, builds and runs all tests: C++ unit and gradient tests (ctest), the Python references' own tests, and the
# command-line tests on the built program. Every part runs even when an earlier one failed; any failure gives exit code 1.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

preset=release
for argument in "$@"; do
  case $argument in
    release | debug | asan) preset=$argument ;;
    -h | --help)
      echo "usage: scripts/test.sh [release|debug|asan]"
      exit 0 ;;
    *) usage_error "unknown argument '$argument'; give release, debug or asan" ;;
  esac
done

if [ "$preset" = asan ]; then   # exit code 99: 1, the sanitizers' own, is also a verdict of the program
  export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=1:strict_string_checks=1:detect_stack_use_after_return=1:exitcode=99}
  export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1:halt_on_error=1:exitcode=99}
  export OCTET_TEST_PATIENCE=10   # tests/cli/octet_cli.py
fi

scripts/setup.sh --tests
scripts/build.sh "$preset"

logs=build/$preset/test-logs
mkdir -p "$logs"
passed=0
failed=0
broken=()

# add NAME RC PASSED FAILED: a part that ran nothing, or failed without naming a test, counts as one failure.
add() {
  local part_failed=$4
  if [ "$2" != 0 ] || [ "$3" = 0 ]; then
    broken+=("$1")
    [ "$part_failed" != 0 ] || part_failed=1
  fi
  passed=$((passed + $3))
  failed=$((failed + part_failed))
}

run_ctest() {
  local rc=0 log=$logs/ctest.log all bad
  say "test: C++ tests"
  ctest --preset "$preset" --no-tests=error --parallel "$(nproc)" 2>&1 | tee "$log" || rc=$?
  read -r bad all < <(sed -n 's/^[0-9]*% tests passed, \([0-9]*\) tests failed out of \([0-9]*\)$/\1 \2/p' "$log") || true
  add "C++ tests" "$rc" $((${all:-0} - ${bad:-0})) "${bad:-0}"
}

run_unittest() {  # NAME FOLDER
  local rc=0 log all bad
  log=$logs/$(basename "$2").log
  say "test: $1"
  OCTET_BIN=$ROOT/build/$preset/octet .venv/bin/python -m unittest discover -v -s "$2" 2>&1 | tee "$log" || rc=$?
  all=$(sed -n 's/^Ran \([0-9]*\) tests\{0,1\} in .*/\1/p' "$log" | tail -n 1)
  bad=$(grep -cE '^(FAIL|ERROR): ' "$log") || true
  [ "${bad:-0}" -le "${all:-0}" ] || bad=${all:-0}
  add "$1" "$rc" $((${all:-0} - ${bad:-0})) "${bad:-0}"
}

began=$SECONDS
run_ctest
run_unittest "Python references" tests/python
run_unittest "command line" tests/cli
run_unittest "report page" tests/report

say "test: took $(minutes $((SECONDS - began)))"
for part in "${broken[@]}"; do
  echo "FAILED: $part (log in $logs)"
done
echo "$passed passed, $failed failed"
[ ${#broken[@]} = 0 ]
