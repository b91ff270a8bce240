#!/usr/bin/env bash
# A comparison with an interval: every recipe with several paired seeds, a perturbed BF16 twin of each seed, single-threaded runs side
# by side, then one report. Finished runs are kept: after an interruption the same command goes on where it stopped.
set -euo pipefail

octet=build/release/octet
data=""
out=runs/seeds
seeds="1 2 3 4 5 6 7 8"
steps=600
jobs=$(nproc)
recipes="tensorwise delayed rowwise blockwise mxfp8 harm_e2m1"
model=configs/models/tiny_byte.json
run=configs/runs/quickstart.json

usage() {
  cat <<END
usage: scripts/compare_seeds.sh --data PREFIX [--out DIR] [--seeds "1 2 ..."] [--steps N] [--jobs N] [--recipes "NAME ..."]
                                [--model FILE] [--run FILE] [--octet BINARY]
  --data PREFIX    token files (octet data build)
  --out DIR        runs and report (default $out)
  --seeds LIST     seeds of weights and sample order (default "$seeds")
  --steps N        optimizer steps a run (default $steps)
  --jobs N         runs at a time, one thread each (default: all cores)
  --recipes LIST   besides bf16, from configs/recipes (default "$recipes")
  --model, --run   configs (default $model, $run)
  --octet BINARY   (default $octet)
END
}

while [ $# -gt 0 ]; do
  case $1 in
    --data | --out | --seeds | --steps | --jobs | --recipes | --model | --run | --octet)
      [ $# -gt 1 ] || { echo "compare_seeds: $1 needs a value" >&2; exit 2; }
      printf -v "${1#--}" '%s' "$2"
      shift ;;
    -h | --help) usage; exit 0 ;;
    *) echo "compare_seeds: unknown argument '$1' (see --help)" >&2; exit 2 ;;
  esac
  shift
done
[ -n "$data" ] || { echo "compare_seeds: --data PREFIX is needed (see --help)" >&2; exit 2; }
[ -x "$octet" ] || { echo "compare_seeds: no binary $octet (run scripts/build.sh)" >&2; exit 2; }

one() {  # NAME SEED RECIPE OPTION...
  local dir=$out/$1-$2 name=$1 seed=$2 recipe=$3
  shift 3
  [ ! -f "$dir/done" ] || return 0
  if "$octet" train --config "$model" --config "$run" --config "configs/recipes/$recipe.json" --data-path "$data" --run-dir "$dir" --resume auto \
    --set "run.seed=$seed" --set run.threads=1 --set "run.steps=$steps" --set log.interval="$steps" --set ckpt.keep_last=1 --set "ckpt.interval=$steps" "$@" \
    >"$dir.out" 2>&1; then
    touch "$dir/done"
    echo "$name seed $seed: $(grep validation "$dir.out" | tail -n 1)"
  else
    echo "$name seed $seed failed: $(tail -n 1 "$dir.out")" >&2
    return 1
  fi
}
export -f one
export octet out model run data steps

mkdir -p "$out"
{
  for seed in $seeds; do
    echo "bf16 $seed bf16"
    echo "twin $seed bf16 --set run.init_perturbation=0.001"
    for recipe in $recipes; do echo "$recipe $seed $recipe"; done
  done
} | xargs -P "$jobs" -d '\n' -I{} bash -c 'one $1' _ {}

pick() { for seed in $seeds; do for name in "${@:2}"; do [ -z "$1" ] || printf '%s\n' "$1"; printf '%s\n' "$out/$name-$seed"; done; done; }
mapfile -t runs < <(pick "" bf16 $recipes)
mapfile -t baselines < <(pick --baseline bf16)
mapfile -t twins < <(pick --twin twin)
"$octet" compare "${runs[@]}" "${baselines[@]}" "${twins[@]}" --out "$out/report.html" --svg "$out/report.svg" --json "$out/report.json"
