# Shared by the scripts of this folder; sourced, not run. Sets ROOT (the clone) and enters it; CALLED_FROM is where the user stood.
# shellcheck shell=bash
set -euo pipefail

CALLED_FROM=$PWD
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
cd "$ROOT"

say() { printf '== %s\n' "$*"; }

# One line on stderr that says what, where and how to go on.
die() {
  printf '%s: error: %s\n' "$(basename "$0")" "$*" >&2
  exit 1
}

usage_error() {
  printf '%s: error: %s (see %s --help)\n' "$(basename "$0")" "$1" "$0" >&2
  exit 2
}

# need_value FLAG COUNT: refuses a flag that stands last on the command line.
need_value() {
  [ "$2" -ge 2 ] || usage_error "$1 needs a value"
}

need_count() {
  [[ $2 =~ ^[1-9][0-9]{0,8}$ ]] || usage_error "$1 needs a positive whole number, not '$2'"
}

# Parallel compilers: one a core, but none without a gigabyte of free memory.
build_jobs() {
  local cores free_gib
  cores=$(nproc)
  free_gib=$(awk '/^MemAvailable:/ {print int($2 / 1048576)}' /proc/meminfo)
  [ "${free_gib:-0}" -ge 1 ] || free_gib=1
  echo $((cores < free_gib ? cores : free_gib))
}

# A path the user gave, made absolute from where the user stood.
user_path() {
  case $1 in
    /*) printf '%s\n' "$1" ;;
    *) printf '%s\n' "$CALLED_FROM/$1" ;;
  esac
}

# minutes SECONDS: m:ss
minutes() { printf '%d:%02d' $(($1 / 60)) $(($1 % 60)); }
