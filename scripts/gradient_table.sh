#!/usr/bin/env bash
# Gradient error of every recipe and module against FP32 at the same weights and batch, from dumps of one step.
# The second step is dumped, because delayed scaling has no history in the first; a learning rate of 1e-30 leaves the weights alone.
set -euo pipefail

octet=build/release/octet
python=.venv/bin/python
data="" init="" out=runs/gradients modules="layers.1.*" set=""
recipes="bf16 tensorwise delayed rowwise blockwise mxfp8 harm_e2m1"

while [ $# -gt 0 ]; do
  case $1 in
    --data | --init | --out | --modules | --recipes | --set | --octet | --python)
      [ $# -gt 1 ] || { echo "gradient_table: $1 needs a value" >&2; exit 2; }
      printf -v "${1#--}" '%s' "$2"
      shift ;;
    -h | --help)
      echo 'usage: scripts/gradient_table.sh --data PREFIX --init RUN [--out DIR] [--modules GLOB] [--recipes "NAME ..."] [--set "KEY=VALUE ..."] [--octet BINARY] [--python BINARY]'
      echo '  --data PREFIX   token files   --init RUN   run directory or checkpoint whose weights are used (configs/models/tiny_byte.json)'
      echo '  --set LIST      more settings of the runs, for example "batch.micro=64 batch.global=64"'
      exit 0 ;;
    *) echo "gradient_table: unknown argument '$1' (see --help)" >&2; exit 2 ;;
  esac
  shift
done
[ -n "$data" ] && [ -n "$init" ] || { echo "gradient_table: --data and --init are needed (see --help)" >&2; exit 2; }

mkdir -p "$out"
for recipe in fp32 $recipes; do
  rm -f "$out/$recipe.safetensors"
  scratch=$(mktemp -d "$out/$recipe.XXXXXX")
  "$octet" train --config configs/models/tiny_byte.json configs/runs/quickstart.json "configs/recipes/$recipe.json" --data-path "$data" \
    --run-dir "$scratch/run" --resume never --init-from "$init" --dump "2:$modules" \
    --set run.steps=2 sched.warmup_steps=0 optim.lr=1e-30 eval.interval=0 log.interval=2 $set >"$out/$recipe.log"
  mv "$scratch/run/dumps/step_0000000002.safetensors" "$out/$recipe.safetensors"
  rm -r "$scratch"
done

arguments=()
for recipe in $recipes; do arguments+=(--dump "$recipe=$out/$recipe.safetensors"); done
"$python" scripts/grad_error.py --reference "$out/fp32.safetensors" "${arguments[@]}" --emulate --markdown "$out/table.md"
