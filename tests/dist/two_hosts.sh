#!/usr/bin/env bash
# Two hosts, rehearsed on one machine: two network namespaces joined by a veth pair, each with a host name, a /dev/shm and a local disk of its own. mpirun starts on
# the first and reaches the second through an agent in place of ssh, which passes on no environment; ranks of different hosts talk over the cable only.
# It checks training on a shared run directory, the refusal of one that is not shared, a shared disk that goes away and a cable that is pulled in mid-run; prints a
# table of PASS and FAIL.
#
#   tests/dist/two_hosts.sh [--octet PROGRAM] [--keep]      --keep leaves the folder with all outputs
#
# Exit codes: 0 all passed; 1 something failed; 2 unknown argument; 77 this machine can not rehearse it (the reason is printed). Needs root, iproute2, util-linux, Open MPI, python3.
# shellcheck disable=SC2317   # functions are called through check and trap
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd -P)
OCTET=$ROOT/build/release/octet
KEEP=
while [ $# -gt 0 ]; do
  case $1 in
    --octet) OCTET=$(realpath "${2:?--octet needs a program}"); shift 2 ;;
    --keep) KEEP=1; shift ;;
    *) echo "two_hosts.sh: error: unknown argument '$1'" >&2; exit 2 ;;
  esac
done

not_run() { echo "two_hosts.sh: not run: $*" >&2; exit 77; }

[ "$(id -u)" -eq 0 ] || not_run "making network namespaces needs root"
for tool in ip nsenter unshare mpirun python3; do
  command -v "$tool" > /dev/null || not_run "'$tool' was not found (packages: iproute2 util-linux openmpi-bin python3)"
done
[ -x "$OCTET" ] || not_run "$OCTET is not there (scripts/build.sh --target octet)"
case $(mpirun --version) in *"Open MPI"*) ;; *) not_run "the flags used here are Open MPI's" ;; esac

WORK=$(mktemp -d /tmp/octet-hosts.XXXXXX)   # what both hosts see, but for local/
SPACE=octet$$
HOSTS="alpha beta"
MPIRUN_PID=
FAILED=0

clean_up() {
  local host pid
  for host in $HOSTS; do
    # Everything that lives on the host: the holder of its namespaces, daemons and ranks.
    for pid in $(ip netns pids "$SPACE-$host" 2> /dev/null); do kill -KILL "$pid" 2> /dev/null || true; done
    ip netns del "$SPACE-$host" 2> /dev/null || true
  done
  wait 2> /dev/null || true   # all of this shell's children lived on the hosts
  if [ -n "$KEEP" ]; then echo "outputs: $WORK"; else rm -rf "$WORK"; fi
}
trap clean_up EXIT

# ---- the two hosts

# A host's namespaces live as long as this process of it.
# shellcheck disable=SC2016
KEEPER='mount -t tmpfs -o size=256m disk "$1/local" && mount -t tmpfs -o size=256m shm /dev/shm && mount --bind "$1/hosts" /etc/hosts && hostname "$2" && echo $$ > "$1/holder.$2" && exec sleep 3600'

make_hosts() {
  local host number=1
  mkdir -p "$WORK"/{local,shared}
  printf '127.0.0.1 localhost\n10.213.7.1 alpha\n10.213.7.2 beta\n' > "$WORK/hosts"
  for host in $HOSTS; do
    ip netns add "$SPACE-$host" 2> "$WORK/error" || not_run "ip netns add: $(cat "$WORK/error")"
  done
  ip link add net0 netns "$SPACE-alpha" type veth peer name net0 netns "$SPACE-beta" 2> "$WORK/error" || not_run "a veth pair: $(cat "$WORK/error")"
  for host in $HOSTS; do
    ip -n "$SPACE-$host" addr add "10.213.7.$number/24" dev net0
    ip -n "$SPACE-$host" link set lo up
    ip -n "$SPACE-$host" link set net0 up
    ip netns exec "$SPACE-$host" unshare --uts --mount --propagation private sh -c "$KEEPER" sh "$WORK" "$host" 2> "$WORK/error" &
    disown   # its end, which comes by a signal, is not to be reported
    for _ in $(seq 100); do [ -s "$WORK/holder.$host" ] && break; sleep 0.05; done
    [ -s "$WORK/holder.$host" ] || not_run "the namespaces of a host: $(cat "$WORK/error")"
    number=$((number + 1))
  done
}

# on HOST COMMAND...: with nothing of this shell's environment, as through ssh.
cat > "$WORK/on" <<'AGENT'
#!/bin/sh
# Usage: on HOST COMMAND...
host=$1
shift
exec nsenter --target "$(cat "$(dirname "$0")/holder.$host")" --net --uts --mount env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root sh -c "cd / && exec $*"
AGENT
chmod +x "$WORK/on"
on() { "$WORK/on" "$@"; }

# ---- jobs

# A rank's exit code and the time of its end, whatever mpirun does meanwhile.
cat > "$WORK/rank" <<'RANK'
#!/bin/sh
# Usage: rank NAME COMMAND...
name=$1
shift
trap "" TERM
"$@"
echo "$? $(date +%s.%N) $(hostname)" > "$(dirname "$0")/shared/$name.$OMPI_COMM_WORLD_RANK"
RANK
chmod +x "$WORK/rank"

# job NAME RANKS_A_HOST COMMAND...: starts it on alpha in the background.
job() {
  local name=$1 each=$2
  shift 2
  printf 'alpha slots=%d\nbeta slots=%d\n' "$each" "$each" > "$WORK/$name.hosts"
  on alpha mpirun --allow-run-as-root --hostfile "$WORK/$name.hosts" -np $((2 * each)) --map-by slot --bind-to none --wdir "$WORK/shared" \
    --mca plm_rsh_agent "$WORK/on" --mca orte_tmpdir_base "$WORK/local" --mca orte_enable_recovery 1 \
    --mca oob_tcp_if_include net0 --mca btl tcp,self --mca btl_tcp_if_include net0 \
    "$WORK/rank" "$name" "$@" > "$WORK/$name.log" 2>&1 < /dev/null &
  MPIRUN_PID=$!
}

# ended NAME RANKS SECONDS: waits until so many ranks have ended; false when they have not in time.
ended() {
  local i
  for ((i = 0; i < $3 * 20; ++i)); do
    [ "$(find "$WORK/shared" -name "$1.[0-9]*" -size +0 | wc -l)" -ge "$2" ] && return 0
    sleep 0.05
  done
  return 1
}

end_mpirun() {
  local i
  for ((i = 0; i < 100; ++i)); do kill -0 "$MPIRUN_PID" 2> /dev/null || break; sleep 0.05; done
  kill -KILL "$MPIRUN_PID" 2> /dev/null || true
  wait "$MPIRUN_PID" 2> /dev/null || true
}

# codes NAME: "0:12@alpha 1:12@alpha ..."
codes() {
  local file
  for file in "$WORK/shared/$1".[0-9]*; do awk -v rank="${file##*.}" '{printf "%s%d:%d@%s", rank ? " " : "", rank, $1, $3}' "$file"; done
}

# check TEXT COMMAND...: one line of the table.
check() {
  local text=$1
  shift
  if "$@"; then echo "PASS $text"; else echo "FAIL $text"; FAILED=1; fi
}

# all_end NAME CODES...: each of four ranks ended with one of these codes, two on each host.
all_end() {
  local name=$1
  shift
  local allowed=" $* " code host count=0 alpha=0
  while read -r code _ host; do
    [[ $allowed == *" $code "* ]] || return 1
    count=$((count + 1))
    [ "$host" = beta ] || alpha=$((alpha + 1))
  done < <(cat "$WORK/shared/$name".[0-9]*)
  [ "$count" -eq 4 ] && [ "$alpha" -eq 2 ]
}

# ---- what is run

# arguments RUN STEPS SETTING...: of octet train.
arguments() {
  local run=$1 steps=$2
  shift 2
  echo train --config "$ROOT/configs/models/tiny_byte.json" --data-path "$WORK/shared/text" --run-dir "$run" --set model.num_hidden_layers=2 \
    data.seq_len=64 data.split=90,10,0 batch.micro=2 batch.global=8 optim.lr=1e-3 precision.recipe=fp32 run.device=cpu run.steps="$steps" guard.deadline_s=20 "$@"
}

cat > "$WORK/losses.py" <<'PYTHON'
import json, math, sys
def lines(path, kind):
    return [r for r in map(json.loads, open(path)) if r["kind"] == kind]
one, many = ({r["step"]: r for r in lines(p + "/metrics.jsonl", "train")} for p in sys.argv[1:3])
gap = max(abs(one[s][k] - many[s][k]) / abs(one[s][k]) for s in one for k in ("loss", "grad_norm"))
print(f"{len(many)} steps, largest relative difference of loss and gradient norm {gap:.1e}")
sys.exit(not (one.keys() == many.keys() and len(one) >= 10 and gap <= 1e-5))
PYTHON

threads_of() { grep -o '"threads":[0-9]*' "$1/metrics.jsonl" | head -n 1 | cut -d: -f2; }
cores() { "$OCTET" doctor | grep -o '[0-9]* usable cores' | cut -d' ' -f1; }

# In a job of one rank a host a rank has all cores: with the local ranks miscounted it would have half.
threads_follow_hosts() {
  local all each two
  all=$(cores) each=$(threads_of "$WORK/shared/two") two=$(threads_of "$WORK/shared/zero1")
  echo "     threads a rank: $each with one rank a host, $two with two; usable cores of a host: $all"
  [ "$each" -eq "$all" ] && [ "$two" -eq $((all > 1 ? all / 2 : 1)) ]
}

shared_disk() {
  local zero gap same
  # shellcheck disable=SC2046
  "$OCTET" $(arguments "$WORK/shared/one" 10) > "$WORK/one.log" 2>&1
  for zero in 1 3; do
    # shellcheck disable=SC2046
    job "zero$zero" 2 "$OCTET" $(arguments "$WORK/shared/zero$zero" 10 parallel.zero="$zero" ckpt.interval=5)
    ended "zero$zero" 4 120 || true
    end_mpirun
    check "shared run directory, zero $zero: four ranks end with 0 ($(codes "zero$zero"))" all_end "zero$zero" 0
    same=true
    gap=$(python3 "$WORK/losses.py" "$WORK/shared/one" "$WORK/shared/zero$zero" 2>&1) || same=false
    check "losses of one rank: ${gap##*$'\n'}" $same
  done
  # shellcheck disable=SC2046
  job two 1 "$OCTET" $(arguments "$WORK/shared/two" 3)
  ended two 2 120 || true
  end_mpirun
  check "local ranks are counted by host" threads_follow_hosts
}

# one_line NAME: the error is there once, from rank 0.
one_line() {
  check "one line says why" [ "$(grep -c 'octet: error: .*a job over several hosts needs a file system they share' "$WORK/$1.log")" -eq 1 ]
  grep 'octet: error: ' "$WORK/$1.log" | sed 's/^/     /' || true
}

# nothing_on HOST ARGUMENTS-OF-FIND
nothing_on() { ! on "$1" "find $2" 2> /dev/null | grep -q .; }

separate_disks() {
  # shellcheck disable=SC2046
  job separate 2 "$OCTET" $(arguments "$WORK/local/runs/separate" 10 parallel.zero=1)
  ended separate 4 120 || true
  end_mpirun
  check "run directory on separate disks: four ranks end with 12 before the first step ($(codes separate))" all_end separate 12
  one_line separate
  check "nothing is left on alpha" nothing_on alpha "$WORK/local -name .octet\\* -o -name runs"
  check "nothing is left on beta" nothing_on beta "$WORK/local -name .octet\\* -o -name runs"
}

# What is in a folder of checkpoints, as alpha sees it: committed ones and LATEST only.
whole() { [ -s "$1/LATEST" ] && ! find "$1" -mindepth 1 -maxdepth 1 | grep -qvE '/(LATEST|step_[0-9]+)$'; }

# Beta's view of the checkpoints becomes a disk of its own in mid-run.
disk_goes_away() {
  local i folder=$WORK/shared/away/checkpoints
  # shellcheck disable=SC2046
  job away 2 "$OCTET" $(arguments "$WORK/shared/away" 100000 parallel.zero=1 ckpt.interval=20)
  for ((i = 0; i < 1200; ++i)); do [ -s "$folder/LATEST" ] && break; sleep 0.05; done
  on beta mount -t tmpfs disk "$folder"
  ended away 4 120 || true
  end_mpirun
  check "beta loses the shared disk in mid-run: four ranks end with 12 ($(codes away))" all_end away 12
  one_line away
  check "alpha has whole checkpoints only, beta nothing" eval "whole $folder && nothing_on beta '$folder -mindepth 1'"
  check "the newest checkpoint is whole" loads away
}

# The watchdog of a rank comes 5 s behind the deadline of its communication.
pulled_cable() {
  local deadline=5 pulled last i
  # shellcheck disable=SC2046
  job cable 2 "$OCTET" $(arguments "$WORK/shared/cable" 100000 parallel.zero=1 guard.deadline_s="$deadline" ckpt.interval=20)
  for ((i = 0; i < 1200; ++i)); do
    [ "$(grep -c '"kind":"train"' "$WORK/shared/cable/metrics.jsonl" 2> /dev/null || true)" -ge 30 ] 2> /dev/null && break
    sleep 0.05
  done
  ip -n "$SPACE-alpha" link set net0 down
  pulled=$(date +%s.%N)
  ended cable 4 60 || true
  end_mpirun
  last=$(cat "$WORK/shared/cable".[0-9]* | awk -v t="$pulled" '$2 - t > m {m = $2 - t} END {printf "%.1f", m}')
  check "cable pulled in mid-run: four ranks end with 31 or 32 ($(codes cable))" all_end cable 31 32
  check "the last one after $last s, deadline $deadline s" awk -v s="$last" -v d="$deadline" 'BEGIN {exit !(s > 0 && s <= d + 2)}'
  grep 'octet: error: ' "$WORK/cable.log" | sed 's/^/     /' || true
  check "the newest checkpoint is whole" loads cable
}

loads() {
  local newest
  newest=$(find "$WORK/shared/$1/checkpoints" -maxdepth 1 -name 'step_*[0-9]' | sort | tail -n 1)
  [ -n "$newest" ] && "$OCTET" ckpt verify "$newest" > /dev/null 2>&1
}

make_hosts
echo "hosts: $(on alpha hostname) $(on beta hostname); $(mpirun --version | head -n 1)"
head -c 60000 "$ROOT/docs/architecture.md" > "$WORK/shared/text.txt"
"$OCTET" data build --input "$WORK/shared/text.txt" --tokenizer byte --split-documents blank-lines --out "$WORK/shared/text" > /dev/null
shared_disk
separate_disks
disk_goes_away
pulled_cable
exit "$FAILED"
