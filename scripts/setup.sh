#!/usr/bin/env bash
# Installs what the build needs (Debian and Ubuntu packages) and, with --tests, the Python environment of the tests.
# Safe to run again: it does nothing when all is there, and then needs neither root nor a network.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

with_tests=0
for argument in "$@"; do
  case $argument in
    --tests) with_tests=1 ;;
    -h | --help)
      echo "usage: scripts/setup.sh [--tests]"
      echo "  Installs missing build packages with apt-get (root or passwordless sudo only when something is missing)."
      echo "  --tests   also installs clang for the fuzz targets, Chromium for the report's test, and makes .venv with tests/requirements.txt"
      exit 0 ;;
    *) usage_error "unknown argument '$argument'" ;;
  esac
done

# Clang and its sanitizer runtime, for the fuzz targets (scripts/fuzz.sh); Debian names the runtime by Clang's version.
install_clang() {
  local runtime
  command -v dpkg-query >/dev/null || return 0
  command -v clang++ >/dev/null || { say "setup: installing clang"; install_packages clang; }
  runtime=libclang-rt-$(clang++ -dumpversion | cut -d. -f1)-dev
  [ -f "$(clang++ -print-file-name=libclang_rt.fuzzer-x86_64.a)" ] || [ -f "$(clang++ -print-resource-dir)/lib/linux/libclang_rt.fuzzer-x86_64.a" ] ||
    { say "setup: installing $runtime"; install_packages "$runtime"; }
}

# Programs are asked for by name, so that one from elsewhere counts too: "package:program".
TOOLS="build-essential:make g++:g++ cmake:cmake ninja-build:ninja ccache:ccache python3:python3 openmpi-bin:mpirun"
LIBRARIES="nlohmann-json3-dev libfmt-dev libcxxopts-dev libopenblas-pthread-dev libxxhash-dev libgtest-dev
  zlib1g-dev libzstd-dev libicu-dev libpcre2-dev libsimdjson-dev libsentencepiece-dev libboost-context-dev libopenmpi-dev"

missing_packages() {
  local entry package status
  for entry in $TOOLS; do
    command -v "${entry#*:}" >/dev/null || echo "${entry%%:*}"
  done
  for package in $LIBRARIES; do
    status=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null) || status=""
    [ "$status" = installed ] || echo "$package"
  done
  python3 -c 'import venv, ensurepip' 2>/dev/null || echo python3-venv
  if [ "$with_tests" = 1 ]; then
    command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null || echo chromium
  fi
}

# apt CMD...: as root, or through sudo that asks for no password.
as_root() {
  if [ "$(id -u)" = 0 ]; then
    env DEBIAN_FRONTEND=noninteractive "$@"
  else
    sudo -n env DEBIAN_FRONTEND=noninteractive "$@"
  fi
}

install_packages() {
  local log
  log=$(mktemp)
  # The package lists may be absent (containers) or out of date; they are fetched only when the first try fails.
  if ! as_root apt-get install -y -q --no-install-recommends "$@" >"$log" 2>&1; then
    say "setup: fetching package lists"
    if ! { as_root apt-get update -q && as_root apt-get install -y -q --no-install-recommends "$@"; } >"$log" 2>&1; then
      tail -n 15 "$log" >&2
      rm -f "$log"
      die "apt-get could not install: $* (its last lines are above; check the network and the package sources)"
    fi
  fi
  rm -f "$log"
}

install_missing() {
  local packages
  if ! command -v dpkg-query >/dev/null; then
    say "setup: no dpkg here; make sure these (or your distribution's equal) are installed: g++ cmake ninja $LIBRARIES"
    return
  fi
  mapfile -t packages < <(missing_packages)
  if [ ${#packages[@]} = 0 ]; then
    say "setup: all build packages are present"
    return
  fi
  if [ "$(id -u)" != 0 ] && ! { command -v sudo >/dev/null && sudo -n true 2>/dev/null; }; then
    die "packages are missing and installing them needs root; run: sudo apt-get install --no-install-recommends ${packages[*]}"
  fi
  say "setup: installing ${packages[*]}"
  install_packages "${packages[@]}"
}

check_version() {  # NAME FOUND MINIMUM HINT
  [ "$(printf '%s\n%s\n' "$3" "$2" | sort -V | head -n 1)" = "$3" ] || die "$1 $2 is too old, $3 or newer is needed ($4)"
}

check_tools() {
  local compiler=${CXX:-g++}
  command -v "$compiler" >/dev/null || die "the C++ compiler '$compiler' was not found (install g++, or set CXX)"
  check_version "$compiler" "$("$compiler" -dumpfullversion -dumpversion)" 12 "set CXX=g++-12 if that is installed"
  check_version cmake "$(cmake --version | sed -n '1s/[^0-9]*//p')" 3.25 "Debian 12 and Ubuntu 24.04 have it"
}

# .venv is made anew only when the requirements or the interpreter changed.
python_environment() {
  local requirements=tests/requirements.txt stamp=.venv/octet-requirements.sha256 wanted
  wanted=$({ cat "$requirements"; python3 -c 'import sys; print(sys.executable, sys.version)'; } | sha256sum)
  if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ] && .venv/bin/python -c '' 2>/dev/null; then
    say "setup: .venv is up to date"
    return
  fi
  say "setup: making .venv from $requirements"
  python3 -m venv --clear .venv
  .venv/bin/python -m pip install --quiet --disable-pip-version-check -r "$requirements" ||
    die "pip could not install $requirements (its message is above; check the network)"
  echo "$wanted" >"$stamp"
}

install_missing
check_tools
if [ "$with_tests" = 1 ]; then
  install_clang
  python_environment
fi
