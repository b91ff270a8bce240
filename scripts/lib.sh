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

# read_flags "FLAG WITH VALUE..." "SWITCH..." ARGUMENT...: sets the variable of each flag's name, of a switch to 1. --help prints the caller's usage.
read_flags() {
  local with_value=$1 switches=$2 name
  shift 2
  while [ $# -gt 0 ]; do
    name=${1#--}
    if [ "$1" = -h ] || [ "$1" = --help ]; then
      usage
      exit 0
    elif [[ $1 == --* && " $with_value " == *" $name "* ]]; then
      need_value "$1" $#
      printf -v "$name" '%s' "$2"
      shift
    elif [[ $1 == --* && " $switches " == *" $name "* ]]; then
      printf -v "$name" 1
    else
      usage_error "unknown argument '$1'"
    fi
    shift
  done
}

# GPUs that the driver lists; none also without one.
gpu_count() { { nvidia-smi -L 2>/dev/null || true; } | wc -l; }

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
