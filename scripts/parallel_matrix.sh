#!/usr/bin/env bash
# Every recipe under every layout of data and tensor parallelism against one rank: some steps of a tiny model, on this machine's CPUs through MPI, or on its GPUs. A line per combination with
# the largest relative differences of loss, gradient norm and validation; exit code 1 when one is above its bar. docs/benchmarks/parallel.md and multi_gpu.md have the results.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

octet=build/release/octet
data=""
out=""
recipes="fp32 bf16 tensorwise delayed rowwise blockwise mxfp8"
ranks="2 4"
parts="data tensor"
device=cpu
backend=auto
jobs=1
few=""
steps=10
without_overlap="fp32 blockwise"
fp8_weights="tensorwise delayed blockwise"              # parallel.fp8_param_gather: one image of each weight
fp8_activations="tensorwise delayed rowwise blockwise mxfp8"

usage() {
  cat <<END
usage: scripts/parallel_matrix.sh --data PREFIX [--out DIR] [--octet BINARY] [--recipes "NAME ..."] [--ranks "N ..."] [--parts "data tensor"]
                                  [--device cpu|cuda] [--backend auto|nccl|mpi] [--few] [--jobs N] [--steps N]
  --data PREFIX    token files (octet data build), of bytes
  --out DIR        keeps the runs there (default: a temporary folder)
  --octet BINARY   (default $octet)
  --recipes LIST   from configs/recipes (default "$recipes")
  --ranks LIST     powers of two up to 8 (default "$ranks"); with 8 the models have more heads and the steps more tokens, and one rank's run too
  --parts LIST     (default "$parts")
  --device NAME    what computes (default $device). cuda: ranks take the GPUs that are visible in turn, and share them where there are fewer
  --backend NAME   parallel.backend (default $backend). With nccl on shared GPUs each rank gets an NCCL_HOSTID of its own, and NCCL goes through the loopback interface
  --few            layouts that differ most: zero 0, 1 and 3, replicas once, tensor parallelism with sequence parallelism, overlap on
  --jobs N         runs at a time (default $jobs)
  --steps N        a multiple of 5 (default $steps)
data: parallel.zero 0 to 3, parallel.dp_replicate 1 and 2 (not with zero 0, which has no shards), for $without_overlap parallel.overlap off, and for $fp8_weights
parallel.fp8_param_gather.
tensor: parallel.tp 2, 4 and 8, parallel.sequence_parallel off and on, where ranks are left data parallelism with parallel.zero 1 and 3, FP8 communication (for
$fp8_weights parallel.fp8_param_gather, for $fp8_activations parallel.fp8_activation_gather), and overlap as above.
END
}

read_flags "data out octet recipes ranks parts device backend jobs steps" "few" "$@"
need_count --jobs "$jobs"
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
gpus=0
[ "$device" = cpu ] || gpus=$(gpu_count)
[ -z "${CUDA_VISIBLE_DEVICES:-}" ] || gpus=$(tr ',' '\n' <<<"$CUDA_VISIBLE_DEVICES" | wc -l)

# The second model, of the same size: heads and MLP that two and four ranks cut between blocks of every recipe; with four, two ranks have a copy of each key/value head.
cut_model=(model.num_hidden_layers=2 model.head_dim=128 model.intermediate_size=512 batch.micro=4)
samples=8
for n in $ranks; do
  [[ $n =~ ^[248]$ ]] || usage_error "--ranks takes 2, 4 and 8, not '$n'"
  [ "$n" != 8 ] || { samples=16; cut_model+=(model.num_attention_heads=8 model.intermediate_size=1024); }
done

# train NAME RANKS RECIPE KEY=VALUE...: 1,024 tokens a step; validation has 5 sequences, so that of 4 ranks one has none and a batch is short.
train() {
  local name=$1 n=$2 recipe=$3 launch=() share=false
  shift 3
  [ "$n" = 1 ] || launch=("${mpirun[@]}" -np "$n")
  if [ "$device" = cuda ] && [ "$n" -gt "$gpus" ]; then
    share=true
    # Two ranks of one host on one GPU are refused by NCCL; so each says that it is a host.
    launch+=(-x NCCL_SOCKET_IFNAME=lo bash -c 'NCCL_HOSTID=rank$OMPI_COMM_WORLD_RANK exec "$@"' -)
  fi
  while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do wait -n || true; done   # run_one notes what failed
  run_one "$name" "${launch[@]}" "$octet" train --config configs/models/tiny_byte.json configs/runs/quickstart.json "configs/recipes/$recipe.json" --data-path "$data" --run-dir "$out/$name" \
    --set run.device="$device" parallel.backend="$([ "$n" = 1 ] && echo auto || echo "$backend")" parallel.share_gpus=$share precision.emulate=true run.gemm_choice=heuristic run.steps="$steps" sched.warmup_steps=2 batch.micro=2 batch.global=$samples data.seq_len=128 eval.interval=5 eval.samples=5 ckpt.interval=0 log.tensorboard=false "$@" &
}

# run_one NAME COMMAND...
run_one() {
  local name=$1
  shift
  "$@" >"$out/$name.out" 2>&1 </dev/null || { touch "$out/crashed"; say "CRASH: $name: $(grep 'octet: error' "$out/$name.out" | head -n 1) (--set ${*##* --set })"; }
}

# among WORD LIST
among() { [[ " $2 " == *" $1 "* ]]; }

# Runs are named RECIPE.PART.RANKS.TP.SEQUENCE.ZERO.REPLICATE.OVERLAP.FP8, where FP8 is off, w (weights), a (activations) or wa.
data_layouts() {
  local recipe=$1 n=$2 zero replicate overlap overlaps=true
  ! among "$recipe" "$without_overlap" || overlaps="true false"
  [ -z "$few" ] || overlaps=true
  for zero in 0 1 2 3; do
    [ -z "$few" ] || [ "$zero" != 2 ] || continue
    for replicate in 1 2; do
      [ "$zero" != 0 ] || [ "$replicate" = 1 ] || continue
      [ -z "$few" ] || [ "$replicate" = 1 ] || [ "$n.$zero" = 4.1 ] || continue
      for overlap in $overlaps; do
        train "$recipe.data.$n.1.false.$zero.$replicate.$overlap.off" "$n" "$recipe" parallel.zero="$zero" parallel.dp_replicate="$replicate" parallel.overlap="$overlap"
      done
      # Where there are shards to gather from.
      [ "$zero" != 0 ] && [ "$replicate" -lt "$n" ] && among "$recipe" "$fp8_weights" || continue
      train "$recipe.data.$n.1.false.$zero.$replicate.true.w" "$n" "$recipe" parallel.zero="$zero" parallel.dp_replicate="$replicate" parallel.fp8_param_gather=true
    done
  done
}

tensor_layouts() {
  local recipe=$1 n=$2 tp zero zeros sequence fp8 fp8s overlap weights activations
  for tp in 2 4 8; do
    [ "$tp" -le "$n" ] || continue
    zeros=0
    [ "$tp" = "$n" ] || zeros="1 3"
    for zero in $zeros; do
      for sequence in false true; do
        [ -z "$few" ] || [ "$sequence$zero" = true0 ] || [ "$sequence$zero" = true1 ] || continue
        fp8s=off
        [ "$zero" = 0 ] || ! among "$recipe" "$fp8_weights" || fp8s="$fp8s w"
        [ "$sequence" = false ] || ! among "$recipe" "$fp8_activations" || fp8s="$fp8s a"
        [[ "$fp8s" != *w*a* ]] || fp8s="$fp8s wa"
        for fp8 in $fp8s; do
          weights=false activations=false
          [[ $fp8 != w* ]] || weights=true
          [[ $fp8 != *a ]] || activations=true
          for overlap in true false; do
            [ "$overlap" = true ] || { [ -z "$few" ] && [ "$fp8" = off ] && among "$recipe" "$without_overlap"; } || continue
            train "$recipe.tensor.$n.$tp.$sequence.$zero.1.$overlap.$fp8" "$n" "$recipe" "${cut_model[@]}" parallel.tp="$tp" parallel.sequence_parallel="$sequence" \
              parallel.zero="$zero" parallel.overlap="$overlap" parallel.fp8_param_gather="$weights" parallel.fp8_activation_gather="$activations"
          done
        done
      done
    done
  done
}

# compare RECIPE PART: prints their lines.
#
# Bars. fp32: 1e-5 of everything in all steps. The others under data parallelism: micro-batches are quantized each by itself on whatever rank, so before the first update only
# the order of FP32 sums differs: 1e-5 of step 1 too. From then on a gradient that differs by a rounding moves a weight across the edge between two values of its format now and
# then, which is a difference as of another sample order of sums in one rank's run: 1e-3, in all steps. Under tensor parallelism what ranks add up are rounded addends (BF16),
# within a step too: 1e-3 of losses, 1e-2 of norms. Neither overlap nor FP8 communication changes a bit.
compare() {
  python3 - "$out" "$1" "$2" "$steps" <<'END'
import json, pathlib, sys
out, recipe, part, steps = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
exact = recipe == "fp32"
bar_first = (1e-5, 1e-5) if part == "data" or exact else (1e-3, 1e-2)   # loss, norm
bar_after = (1e-5, 1e-5, 1e-5) if exact else (1e-3, 1e-3, 1e-3) if part == "data" else (1e-3, 1e-2, 1e-3)


def values(run):
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()] if (run / "metrics.jsonl").exists() else []
    losses = [(r["loss"], r["grad_norm"]) for r in lines if r["kind"] == "train"]
    valid = [r["loss"] for r in lines if r["kind"] == "valid"]
    return ([s[0] for s in losses], [s[1] for s in losses], valid) if len(losses) == steps and len(valid) == steps // 5 else None


def worst(got, want):
    return max(abs(a - b) / abs(b) for a, b in zip(got, want))


def line(fields, figures, verdict):
    print("{:<10} {:>5} {:>2} {:<8} {:>4} {:>9} {:<7} {:<3}  {:>9} {:>9} {:>8} {:>9} {:>10}  {}".format(recipe, *fields, *figures, verdict), flush=True)


want, missed = values(out / f"{recipe}.{part}.1"), False
if not want:
    sys.exit(f"{recipe}, {part}: one rank did not make all steps and validations")
for run in sorted(p for p in out.glob(f"{recipe}.{part}.*.*") if not p.name.endswith(".out")):
    ranks, tp, sequence, zero, replicate, overlap, fp8 = run.name.split(".")[2:]
    fields = ranks, tp, "yes" if sequence == "true" else "no", zero, replicate, "on" if overlap == "true" else "off", fp8
    got = values(run)
    if not got:
        missed = True
        line(fields, ["-"] * 5, "MISS: not all steps and validations")
        continue
    first = [worst(g[:1], w[:1]) for g, w in zip(got[:2], want[:2])]
    after = [worst(g, w) for g, w in zip(got, want)]
    faults = [f"step 1 {name}" for name, d, bar in zip(("loss", "norm"), first, bar_first) if not d <= bar]
    faults += [name for name, d, bar in zip(("loss", "norm", "validation"), after, bar_after) if not d <= bar]
    if overlap == "false" and got != values(run.with_name(run.name.replace(".false.off", ".true.off"))):
        faults.append("other bits than with overlap")
    if fp8 != "off" and got != values(run.with_name(run.name.rpartition(".")[0] + ".off")):
        faults.append("other bits than without FP8 communication")
    missed |= bool(faults)
    line(fields, [f"{d:.1e}" for d in (*first, *after)], f"MISS: {', '.join(faults)}" if faults else "ok")
sys.exit(missed)
END
}

began=$SECONDS
missed=0
printf '%-10s %5s %2s %-8s %4s %9s %-7s %-3s  %9s %9s %8s %9s %10s\n' recipe ranks tp sequence zero replicate overlap fp8 "loss 1" "norm 1" loss "grad norm" validation
for recipe in $recipes; do
  for part in $parts; do
    model=()
    [ "$part" = data ] || model=("${cut_model[@]}")
    train "$recipe.$part.1" 1 "$recipe" "${model[@]}"
    for n in $ranks; do
      "${part}_layouts" "$recipe" "$n"
    done
    wait
    compare "$recipe" "$part" || missed=1
  done
done
say "took $(minutes $((SECONDS - began)))"
[ "$missed" = 0 ] && [ ! -e "$out/crashed" ] || die "a combination is not what one rank computes (see MISS or CRASH above)"
