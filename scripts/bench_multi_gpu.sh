#!/usr/bin/env bash
# The GPUs of one machine as ranks: bandwidth of collectives, layouts against one GPU, scaling of Llama-3-8B's layers, killed ranks. Under nine minutes; a short table comes last.
# docs/benchmarks/multi_gpu.md has results.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

octet=build/release/octet
data=""
out=runs/multi_gpu
gpus=$(nvidia-smi -L 2>/dev/null | wc -l)
layers=8
rounds=10
parts="comm equal kill scale"
fp8="tensorwise blockwise"

usage() {
  cat <<END
usage: scripts/bench_multi_gpu.sh --data PREFIX [--out DIR] [--octet BINARY] [--gpus N] [--layers N] [--rounds N] [--parts "comm equal kill scale"]
  --data PREFIX    token files of bytes, of several documents (octet data build)
  --out DIR        figures and logs (default $out)
  --gpus N         the first N GPUs (default: all, $gpus)
  --layers N       of Llama-3-8B, in scale (default $layers)
  --rounds N       steps a time is the median of, in scale (default $rounds)
comm: octet bench comm. equal: losses and gradient norms of 20 steps, BF16 and blockwise, zero 0 to 3 and tensor parallelism, against one GPU. scale: tokens a second and GPU, of one and of
N GPUs, data parallelism (zero 1, the same work a GPU) and tensor with sequence parallelism, with and without overlap and FP8 communication. kill: three ranks killed or stopped.
END
}

while [ $# -gt 0 ]; do
  case $1 in
    --data | --out | --octet | --gpus | --layers | --rounds | --parts)
      need_value "$1" $#
      printf -v "${1#--}" '%s' "$2"
      shift ;;
    -h | --help) usage; exit 0 ;;
    *) usage_error "unknown argument '$1'" ;;
  esac
  shift
done
[ -n "$data" ] || usage_error "--data PREFIX is needed"
[ "$gpus" -ge 2 ] || die "needs two GPUs, there are $gpus"
data=$(user_path "$data")
octet=$(user_path "$octet")
out=$(user_path "$out")
mkdir -p "$out"
CUDA_VISIBLE_DEVICES=$(seq -s , 0 $((gpus - 1)))
# NVLink multicast adds in the switch, in an order of its own; octet switches it off too.
export CUDA_VISIBLE_DEVICES NCCL_NVLS_ENABLE=0
mpirun=(mpirun --allow-run-as-root --bind-to none)
failed=0
began=$SECONDS
took() { say "multi_gpu: $1, $((SECONDS - began)) s since the start"; }
wanted() { [[ " $parts " == *" $1 "* ]]; }

if wanted comm; then
  "${mpirun[@]}" -np "$gpus" "$octet" bench comm --mib 1 16 64 256 --json "$out/comm.json" >"$out/comm.txt" 2>&1 || { failed=1; tail -n 3 "$out/comm.txt"; }
  took comm
fi
if wanted equal; then
  rm -rf "$out/equal"
  scripts/parallel_matrix.sh --data "$data" --octet "$octet" --out "$out/equal" --device cuda --ranks "$gpus" --recipes "bf16 blockwise" --steps 20 --jobs 4 >"$out/equal.txt" 2>&1 || failed=1
  took equal
fi

if wanted kill; then
  OCTET_BIN=$octet python3 tests/dist/kill_ranks.py --runs 3 --gpus "$gpus" >"$out/kill.txt" 2>&1 || failed=1
  took kill
fi

# step NAME RANKS RECIPE KEY=VALUE...
step() {
  local name=$1 n=$2 recipe=$3 launch=()
  shift 3
  [ "$n" = 1 ] || launch=("${mpirun[@]}" -np "$n")
  "${launch[@]}" "$octet" bench step --config configs/bench/llama3_8b_h200.json --recipe "$recipe" --rounds "$rounds" --json "$out/scale.$name.json" --set model.num_hidden_layers="$layers" "$@" \
    >"$out/scale.$name.txt" 2>&1 || { failed=1; say "multi_gpu: $name failed: $(grep 'octet: error' "$out/scale.$name.txt" | head -n 1)"; }
}
if wanted scale; then
  rm -f "$out"/scale.*
  for recipe in bf16 $fp8; do
    step "$recipe.one" 1 "$recipe"
    step "$recipe.dp" "$gpus" "$recipe" batch.global="$gpus"
    step "$recipe.dp_no_overlap" "$gpus" "$recipe" batch.global="$gpus" parallel.overlap=false
    [ "$recipe" = bf16 ] || step "$recipe.dp_fp8" "$gpus" "$recipe" batch.global="$gpus" parallel.fp8_param_gather=true
    step "$recipe.tp" "$gpus" "$recipe" parallel.tp="$gpus" parallel.sequence_parallel=true
    step "$recipe.tp_no_overlap" "$gpus" "$recipe" parallel.tp="$gpus" parallel.sequence_parallel=true parallel.overlap=false
    [ "$recipe" = bf16 ] || step "$recipe.tp_fp8" "$gpus" "$recipe" parallel.tp="$gpus" parallel.sequence_parallel=true parallel.fp8_activation_gather=true
  done
  took scale
fi

python3 - "$out" "$gpus" <<'END'
import json, pathlib, sys

out, gpus = pathlib.Path(sys.argv[1]), int(sys.argv[2])
for name, lines in (("comm", 100), ("equal", 100), ("kill", 20)):
    if (out / f"{name}.txt").exists():
        print((out / f"{name}.txt").read_text().rstrip(), end="\n\n")


def speed(name):
    path = out / f"scale.{name}.json"
    return json.loads(path.read_text())["steps"][0] if path.exists() else None


rows = sorted(p.name.split(".")[1:3] for p in out.glob("scale.*.json"))
if rows:
    print(f"{'recipe':<11} {'layout':<15} {'ms a step':>10} {'least':>8} {'most':>8} {'tokens/s a GPU':>15} {'of one GPU':>11} {'of BF16 tp':>11} {'planned':>9} {'in use':>9}")
bf16_tp = speed("bf16.tp")
for recipe, layout in rows:
    got, one = speed(f"{recipe}.{layout}"), speed(f"{recipe}.one")
    share = f"{100 * got['tokens_per_s'] / one['tokens_per_s']:.1f} %" if one else "-"
    ratio = f"{got['tokens_per_s'] / bf16_tp['tokens_per_s']:.2f}x" if bf16_tp and layout.startswith("tp") else ""
    print(f"{recipe:<11} {layout:<15} {got['median_ms']:>10.1f} {got['min_ms']:>8.1f} {got['max_ms']:>8.1f} {got['tokens_per_s']:>15.0f} {share:>11} {ratio:>11} "
          f"{got['planned_bytes'] / 2**30:>8.2f}G {got['used_bytes'] / 2**30:>8.2f}G")
END
say "multi_gpu: took $(minutes $((SECONDS - began)))"
[ "$failed" = 0 ] || die "something above failed"
