#!/usr/bin/env bash
# Trains with several ranks through Open MPI's mpirun: its options before "--", those of `octet train` behind it.
#
#   scripts/launch/mpirun.sh -np 4 -- --config configs/models/tiny_byte.json configs/runs/quickstart.json --data-path data/my --run-dir runs/my
#   scripts/launch/mpirun.sh --hostfile hosts.txt -np 16 -- --config ... --run-dir /shared/runs/my --resume auto
#
# hosts.txt has a line a host, "node1 slots=8". Program, data and run directory have the same paths on all hosts; the run directory is on a file system that they
# share. ssh to each host works without a password. Exit codes: docs/reference/exit_codes.md; what happens when: docs/reference/launch.md.
#
# OCTET names the program (default: build/release/octet of this clone). DRY=1 prints the command line and ends.
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd -P)
OCTET=${OCTET:-$ROOT/build/release/octet}

usage() { echo "mpirun.sh: error: $1 (usage: $0 MPIRUN-OPTION... -- TRAIN-FLAG...)" >&2; exit 2; }

options=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do options+=("$1"); shift; done
[ $# -gt 0 ] || usage "\"--\" is missing"
shift
[ -x "$OCTET" ] || { echo "mpirun.sh: error: $OCTET: no such program (scripts/build.sh --target octet, or set OCTET)" >&2; exit 2; }
case $(mpirun --version 2> /dev/null) in
  *"Open MPI"* | *"open-mpi.org"*) ;;
  *) usage "mpirun is not Open MPI's; with MPICH see the end of this file" ;;
esac

command=(mpirun)
# Open MPI refuses to start as root unless told; containers often have no other user.
if [ "$(id -u)" -eq 0 ]; then command+=(--allow-run-as-root); fi
# A rank takes as many threads as it has cores, and divides cores that several may use. Open MPI binds each rank of a job of two to a single core, so: no binding
# unless asked. Where a host has several NUMA domains it pays to ask, for example --map-by ppr:2:numa:pe=8 --bind-to core.
case " ${options[*]-} " in *" --bind-to "* | *" -bind-to "*) ;; *) command+=(--bind-to none) ;; esac
# What a rank needs to start on another host and does not get through ssh. NCCL_* and the like: -x NAME among the options.
for name in PATH LD_LIBRARY_PATH; do
  if [ -n "${!name-}" ]; then command+=(-x "$name"); fi
done
# Of several networks Open MPI takes all that look reachable, docker0 and virbr0 too; a job that hangs at its start is often this. Name the one to use, by
# interface or by address range, for ranks and for mpirun's own daemons:
#   --mca btl_tcp_if_include 10.0.0.0/16 --mca oob_tcp_if_include 10.0.0.0/16
# More ranks than cores, for a trial: --oversubscribe. In a container that forbids ptrace, against warnings of "vader" or "CMA":
#   --mca btl_vader_single_copy_mechanism none
# To stop and save: kill -USR1 of mpirun, which passes it on. SIGTERM and Ctrl-C leave the ranks about a second.
command+=("${options[@]}" "$OCTET" train "$@")

if [ -n "${DRY-}" ]; then printf '%q ' "${command[@]}"; echo; exit 0; fi
exec "${command[@]}"

# MPICH, Intel MPI (the build must have found that MPI: scripts/build.sh -DMPI_HOME=DIR; not rehearsed here):
#   mpiexec -n 16 -f hosts.txt -bind-to none -iface eth0 -genvlist PATH,LD_LIBRARY_PATH build/release/octet train --config ...      hosts.txt: "node1:8" a line
