#!/usr/bin/env bash
# Every recipe under every data-parallel layout against one rank: 10 steps of the tiny model, on this machine's CPUs, through MPI. A line per combination with
# the largest relative differences of loss, gradient norm and validation; exit code 1 when one is above its bar. docs/benchmarks/parallel.md has the result.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

octet=build/release/octet
data=""
out=""
recipes="fp32 bf16 tensorwise delayed rowwise blockwise mxfp8"
ranks="2 4"
without_overlap="fp32 blockwise"

usage() {
  cat <<END
usage: scripts/parallel_matrix.sh --data PREFIX [--out DIR] [--octet BINARY] [--recipes "NAME ..."] [--ranks "N ..."]
  --data PREFIX    token files (octet data build), of bytes
  --out DIR        keeps the runs there (default: a temporary folder)
  --octet BINARY   (default $octet)
  --recipes LIST   from configs/recipes (default "$recipes")
  --ranks LIST     powers of two up to 4 (default "$ranks")
Besides, parallel.zero 0 to 3, parallel.dp_replicate 1 and 2 (not with zero 0, which has no shards), and for $without_overlap parallel.overlap off.
END
}

while [ $# -gt 0 ]; do
  case $1 in
    --data | --out | --octet | --recipes | --ranks)
      need_value "$1" $#
      printf -v "${1#--}" '%s' "$2"
      shift ;;
    -h | --help) usage; exit 0 ;;
    *) usage_error "unknown argument '$1'" ;;
  esac
  shift
done
[ -n "$data" ] || usage_error "--data PREFIX is needed"
data=$(user_path "$data")
octet=$(user_path "$octet")
[ -x "$octet" ] || die "no binary $octet (run scripts/build.sh)"
command -v mpirun >/dev/null || die "no mpirun (run scripts/setup.sh)"
if [ -n "$out" ]; then
  out=$(user_path "$out")
  mkdir -p "$out"
  [ -z "$(ls -A "$out")" ] || die "$out is not empty; give a new folder"
else
  out=$(mktemp -d)
  trap 'rm -rf "$out"' EXIT
fi

mpirun=(mpirun --allow-run-as-root --oversubscribe --bind-to none --mca btl_vader_single_copy_mechanism none)

# train NAME RANKS RECIPE KEY=VALUE...: 4 micro-batches a step; validation has 3 batches, the last of them shorter, so that of 4 ranks one has none.
train() {
  local name=$1 n=$2 recipe=$3 launch=()
  shift 3
  [ "$n" = 1 ] || launch=("${mpirun[@]}" -np "$n")
  "${launch[@]}" "$octet" train --config configs/models/tiny_byte.json configs/runs/quickstart.json "configs/recipes/$recipe.json" --data-path "$data" --run-dir "$out/$name" \
    --set run.device=cpu run.steps=10 sched.warmup_steps=2 batch.micro=2 batch.global=8 data.seq_len=128 eval.interval=5 eval.samples=5 ckpt.interval=0 log.tensorboard=false "$@" \
    >"$out/$name.out" 2>&1 </dev/null || die "$name failed: $(tail -n 1 "$out/$name.out") (command: octet train ... $*)"
}

# compare RECIPE: prints the recipe's lines, of runs named RECIPE.RANKS.ZERO.REPLICATE.OVERLAP.
#
# Bars. fp32: 1e-5 of everything in all steps. The others: micro-batches are quantized each by itself on whatever rank, so before the first update only the order of FP32
# sums differs: 1e-5 of step 1 too. From then on a gradient that differs by a rounding moves a weight across the edge between two values of its format now and then,
# which is a difference as of another sample order of sums in one rank's run: BAR_AFTER, in all steps. Overlap changes no bit at all.
compare() {
  python3 - "$out" "$1" <<'END'
import json, pathlib, sys
out, recipe = pathlib.Path(sys.argv[1]), sys.argv[2]
bar_first, bar_after = 1e-5, 1e-5 if recipe == "fp32" else 1e-3


def values(run):
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps = [(r["loss"], r["grad_norm"]) for r in lines if r["kind"] == "train"]
    valid = [r["loss"] for r in lines if r["kind"] == "valid"]
    if len(steps) != 10 or len(valid) != 2:
        sys.exit(f"{run}: {len(steps)} steps and {len(valid)} validations instead of 10 and 2")
    return [s[0] for s in steps], [s[1] for s in steps], valid


def worst(got, want):
    return max(abs(a - b) / abs(b) for a, b in zip(got, want))


want, missed = values(out / f"{recipe}.1"), False
for run in sorted(p for p in out.glob(f"{recipe}.*.*.*.*") if p.is_dir()):
    ranks, zero, replicate, overlap = run.name.split(".")[1:]
    got = values(run)
    first = max(worst(g[:1], w[:1]) for g, w in zip(got[:2], want[:2]))
    after = [worst(g, w) for g, w in zip(got, want)]
    faults = [] if first <= bar_first else ["step 1"]
    faults += [name for name, d in zip(("loss", "norm", "validation"), after) if not d <= bar_after]
    if overlap == "false" and got != values(run.with_name(f"{recipe}.{ranks}.{zero}.{replicate}.true")):
        faults.append("other bits than with overlap")
    missed |= bool(faults)
    print(f"{recipe:<10} {ranks:>5} {zero:>4} {replicate:>9}  {'on' if overlap == 'true' else 'off':<7} {first:8.1e} {after[0]:8.1e} {after[1]:9.1e} {after[2]:10.1e}  {'MISS: ' + ', '.join(faults) if faults else 'ok'}",
          flush=True)
sys.exit(missed)
END
}

began=$SECONDS
missed=0
printf '%-10s %5s %4s %9s  %-7s %8s %8s %9s %10s\n' recipe ranks zero replicate overlap "step 1" loss "grad norm" validation
for recipe in $recipes; do
  train "$recipe.1" 1 "$recipe"
  overlaps=true
  [[ " $without_overlap " != *" $recipe "* ]] || overlaps="true false"
  for n in $ranks; do
    for zero in 0 1 2 3; do
      for replicate in 1 2; do
        [ "$zero" != 0 ] || [ "$replicate" = 1 ] || continue
        for overlap in $overlaps; do
          train "$recipe.$n.$zero.$replicate.$overlap" "$n" "$recipe" parallel.zero="$zero" parallel.dp_replicate="$replicate" parallel.overlap="$overlap"
        done
      done
    done
  done
  compare "$recipe" || missed=1
done
say "took $(minutes $((SECONDS - began)))"
[ "$missed" = 0 ] || die "a combination is not what one rank computes (see MISS above)"
