#!/usr/bin/env bash
# The GPUs of one machine as ranks: bandwidth of collectives, layouts against one GPU, scaling of Llama-3-8B's layers, killed ranks. Under nine minutes; a short table comes last.
# docs/benchmarks/multi_gpu.md has results.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

octet=build/release/octet
data=""
out=runs/multi_gpu
present=$(gpu_count)
gpus=$present
share=""
layers=8
rounds=10
parts="comm equal kill scale"
fp8="tensorwise blockwise"

usage() {
  cat <<END
usage: scripts/bench_multi_gpu.sh --data PREFIX [--out DIR] [--octet BINARY] [--gpus N] [--share] [--layers N] [--rounds N]
                                  [--parts "comm equal kill scale"]
  --data PREFIX    token files of bytes, of several documents (octet data build)
  --out DIR        figures and logs (default $out)
  --gpus N         the first N GPUs (default: all, $gpus)
  --share          two ranks on the first GPU, each with an NCCL_HOSTID of its own: a rehearsal of comm, equal and scale where there is one GPU; its times mean nothing
  --layers N       of Llama-3-8B, in scale (default $layers)
  --rounds N       steps a time is the median of, in scale (default $rounds)
comm: octet bench comm. equal: losses and gradient norms of 20 steps, BF16 and blockwise, zero 0 to 3 and tensor parallelism, against one GPU. scale: tokens a second and GPU, of one and of
N GPUs, data parallelism (zero 1, the same work a GPU) and tensor with sequence parallelism, with and without overlap and FP8 communication. kill: three ranks killed or stopped.
END
}

read_flags "data out octet gpus layers rounds parts" "share" "$@"
[ -n "$data" ] || usage_error "--data PREFIX is needed"
need_count --layers "$layers"
need_count --rounds "$rounds"
for part in $parts; do
  [[ $part =~ ^(comm|equal|kill|scale)$ ]] || usage_error "unknown part '$part'; there are comm, equal, kill and scale"
done
if [ -n "$share" ]; then
  [ "$present" -ge 1 ] || die "needs a GPU, there is none"
  gpus=1
  ranks=2
else
  [[ $gpus =~ ^[248]$ ]] && [ "$gpus" -le "$present" ] || die "needs 2, 4 or 8 GPUs (asked for: $gpus, present: $present); --share rehearses on one"
  ranks=$gpus
fi
data=$(user_path "$data")
octet=$(user_path "$octet")
out=$(user_path "$out")
[ -x "$octet" ] || die "no binary $octet (run scripts/build.sh)"
command -v mpirun >/dev/null || die "no mpirun (run scripts/setup.sh)"
mkdir -p "$out"
CUDA_VISIBLE_DEVICES=$(seq -s , 0 $((gpus - 1)))
# NVLink multicast adds in the switch, in an order of its own; octet switches it off too.
export CUDA_VISIBLE_DEVICES NCCL_NVLS_ENABLE=0
mpirun=(mpirun --allow-run-as-root --bind-to none -np "$ranks")
settings=()
if [ -n "$share" ]; then
  mpirun+=(-x NCCL_SOCKET_IFNAME=lo bash -c 'NCCL_HOSTID=rank$OMPI_COMM_WORLD_RANK exec "$@"' -)
  settings=(parallel.backend=nccl parallel.share_gpus=true)
fi
failed=0
began=$SECONDS
took() { say "multi_gpu: $1, $((SECONDS - began)) s since the start"; }
wanted() { [[ " $parts " == *" $1 "* ]]; }

if wanted comm; then
  rm -f "$out"/comm.*
  "${mpirun[@]}" "$octet" bench comm --mib 1 16 64 256 --json "$out/comm.json" ${settings:+--set "${settings[@]}"} >"$out/comm.txt" 2>&1 || { failed=1; tail -n 3 "$out/comm.txt"; }
  took comm
fi
if wanted equal; then
  rm -rf "$out"/equal*
  scripts/parallel_matrix.sh --data "$data" --octet "$octet" --out "$out/equal" --device cuda --backend nccl --ranks "$ranks" --recipes "bf16 blockwise" --steps 20 --jobs 4 >"$out/equal.txt" 2>&1 || failed=1
  took equal
fi

if wanted kill && [ -z "$share" ]; then
  OCTET_BIN=$octet python3 tests/dist/kill_ranks.py --runs 3 --gpus "$gpus" >"$out/kill.txt" 2>&1 || failed=1
  took kill
fi

# step NAME RANKS RECIPE KEY=VALUE...
step() {
  local name=$1 n=$2 recipe=$3 launch=()
  shift 3
  [ "$n" = 1 ] || launch=("${mpirun[@]}")
  "${launch[@]}" "$octet" bench step --config configs/bench/llama3_8b_h200.json --recipe "$recipe" --rounds "$rounds" --json "$out/scale.$name.json" --set model.num_hidden_layers="$layers" "${settings[@]}" "$@" \
    >"$out/scale.$name.txt" 2>&1 || { failed=1; say "multi_gpu: $name failed: $(grep -m 1 'octet: error' "$out/scale.$name.txt" || tail -n 1 "$out/scale.$name.txt")"; }
}
if wanted scale; then
  rm -f "$out"/scale.*
  for recipe in bf16 $fp8; do
    step "$recipe.one" 1 "$recipe"
    step "$recipe.dp" "$ranks" "$recipe" batch.global="$ranks"
    step "$recipe.dp_no_overlap" "$ranks" "$recipe" batch.global="$ranks" parallel.overlap=false
    [ "$recipe" = bf16 ] || step "$recipe.dp_fp8" "$ranks" "$recipe" batch.global="$ranks" parallel.fp8_param_gather=true
    step "$recipe.tp" "$ranks" "$recipe" parallel.tp="$ranks" parallel.sequence_parallel=true
    step "$recipe.tp_no_overlap" "$ranks" "$recipe" parallel.tp="$ranks" parallel.sequence_parallel=true parallel.overlap=false
    [ "$recipe" = bf16 ] || step "$recipe.tp_fp8" "$ranks" "$recipe" parallel.tp="$ranks" parallel.sequence_parallel=true parallel.fp8_activation_gather=true
  done
  took scale
fi

python3 - "$out" $parts <<'END'
import json, pathlib, sys

out, parts = pathlib.Path(sys.argv[1]), sys.argv[2:]
for name in ("comm", "equal", "kill"):
    if name in parts and (out / f"{name}.txt").exists():
        print((out / f"{name}.txt").read_text().rstrip(), end="\n\n")


def speed(name):
    path = out / f"scale.{name}.json"
    return json.loads(path.read_text())["steps"][0] if path.exists() else None


rows = sorted(p.name.split(".")[1:3] for p in out.glob("scale.*.json")) if "scale" in parts else []
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
