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
  sed -n '/^The following tests FAILED:$/,$p' "$log" >"$logs/ctest-failed"   # printed last
  add "C++ tests" "$rc" $((${all:-0} - ${bad:-0})) "${bad:-0}"
}

# run_module FILE: one Python test module; its output is kept and, when it is done, printed whole.
run_module() {
  local rc=0 log=$PYTHON_LOGS/${1//\//.}.log began=$SECONDS
  .venv/bin/python -m unittest discover -v -s "$(dirname "$1")" -p "$(basename "$1")" >"$log" 2>&1 || rc=$?
  echo "$rc" >"$log.rc"
  flock "$PYTHON_LOGS" sh -c 'printf "\n== test: %s (%s s)\n" "$1" "$2"; cat "$3"' sh "$1" $((SECONDS - began)) "$log"
}
export -f run_module

# The modules of all folders as parallel processes. The largest files, which take longest, come first.
run_modules() {
  say "test: Python modules, $(nproc) at a time"
  rm -rf "$PYTHON_LOGS"
  mkdir -p "$PYTHON_LOGS"
  ls -S tests/python/test_*.py tests/cli/test_*.py tests/report/test_*.py | xargs -P "$(nproc)" -I{} bash -c 'run_module {}' || true   # counted below
}

count_modules() {  # NAME FOLDER
  local rc=0 module module_rc log all bad total=0 failures=0
  for module in "$2"/test_*.py; do
    log=$PYTHON_LOGS/${module//\//.}.log
    module_rc=$(cat "$log.rc" 2>/dev/null) || module_rc=1
    all=$(sed -n 's/^Ran \([0-9]*\) tests\{0,1\} in .*/\1/p' "$log" 2>/dev/null | tail -n 1)
    bad=0
    [ "$module_rc" = 0 ] || bad=$(grep -cE '^(FAIL|ERROR): ' "$log" 2>/dev/null) || true
    [ "${bad:-0}" -le "${all:-0}" ] || bad=${all:-0}
    # A module that ran nothing, or failed without naming a test, counts as one failure.
    if [ "$module_rc" != 0 ] || [ "${all:-0}" = 0 ]; then
      rc=1
      echo "FAILED: $module (log in $log)"
      sed -n '/^=\{70\}$/,$p' "$log" 2>/dev/null | tail -n 150   # again, since much came behind it
      [ "${bad:-0}" != 0 ] || failures=$((failures + 1))
    fi
    total=$((total + ${all:-0} - ${bad:-0}))
    failures=$((failures + ${bad:-0}))
  done
  add "$1" "$rc" "$total" "$failures"
}

began=$SECONDS
run_ctest
export OCTET_BIN=$ROOT/build/$preset/octet PYTHON_LOGS=$logs/python
run_modules
count_modules "Python references" tests/python
count_modules "command line" tests/cli
count_modules "report page" tests/report

cat "$logs/ctest-failed"
say "test: took $(minutes $((SECONDS - began)))"
for part in "${broken[@]}"; do
  echo "FAILED: $part (log in $logs)"
done
echo "$passed passed, $failed failed"
[ ${#broken[@]} = 0 ]
