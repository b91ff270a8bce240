#!/usr/bin/env bash
# The published comparison: recipes against BF16 on a 32M Llama and 100 million tokens of the source code and documentation that this machine holds.
# Runs are started seed by seed, some at a time on each GPU, until the time is up; finished ones are kept, so that the same command goes on later.
set -euo pipefail

octet=build/release/octet
out=runs/published_30m
data=data/code
tokenizer=""
seeds="1 2 3"
recipes="twin tensorwise blockwise delayed rowwise"
gpus=$( (nvidia-smi -L 2>/dev/null || true) | wc -l)
jobs=3
seconds=100000
model=configs/models/llama_30m.json
options=""
text_mib=480

usage() {
  cat <<END
usage: scripts/published_30m.sh --tokenizer MODEL [--data PREFIX] [--out DIR] [--model FILE] [--seeds "1 2 ..."] [--recipes "NAME ..."] [--gpus N]
                                [--jobs N] [--seconds N] [--set "PATH=VALUE ..."] [--text-mib N] [--octet BINARY]
  --tokenizer MODEL  SentencePiece model of 8192 pieces (octet data train-tokenizer)
  --data PREFIX      token files; made of this machine's *.py *.h *.c *.md ... when absent (default $data)
  --out DIR          runs (default $out)
  --model FILE       (default $model)
  --seeds LIST       seeds of weights and sample order (default "$seeds")
  --recipes LIST     besides bf16, from configs/recipes; twin: bf16 from weights changed by a thousandth (default "$recipes")
  --gpus N           (default: all)
  --jobs N           runs at a time on each GPU (default $jobs)
  --seconds N        no run is started later than this (default: no limit)
  --set "P=V ..."    for every run, e.g. "run.tokens=10000000"
  --text-mib N       text to collect (default $text_mib)
END
}

while [ $# -gt 0 ]; do
  case $1 in
    --tokenizer | --data | --out | --model | --seeds | --recipes | --gpus | --jobs | --seconds | --octet) name=${1#--} ;;
    --set) name=options ;;
    --text-mib) name=text_mib ;;
    -h | --help) usage; exit 0 ;;
    *) echo "published_30m: unknown argument '$1' (see --help)" >&2; exit 2 ;;
  esac
  [ $# -gt 1 ] || { echo "published_30m: $1 needs a value" >&2; exit 2; }
  printf -v "$name" '%s' "$2"
  shift 2
done
[ -x "$octet" ] || { echo "published_30m: no binary $octet (run scripts/build.sh)" >&2; exit 2; }
[ "$gpus" -gt 0 ] || { echo "published_30m: no GPU here" >&2; exit 2; }

if [ ! -f "$data.idx" ]; then
  [ -n "$tokenizer" ] || { echo "published_30m: --tokenizer MODEL is needed to make $data (see --help)" >&2; exit 2; }
  mkdir -p "$(dirname "$data")"
  python3 - "$text_mib" "$data.jsonl" <<'PY'
# Files in the order of their paths' hashes, each text once: neighbours in a package do not stay neighbours.
import hashlib, json, os, sys

limit, out = int(sys.argv[1]) << 20, sys.argv[2]
ends = (".py", ".pyi", ".h", ".hpp", ".cuh", ".c", ".cpp", ".cu", ".js", ".md", ".rst", ".txt", ".pl", ".pm", ".sh")
skip = ("/proc", "/sys", "/dev", "/run", "/tmp")
paths = []
for folder, folders, files in os.walk("/"):
    folders[:] = [d for d in folders if not os.path.join(folder, d).startswith(skip) and d not in (".git", "runs")]
    paths += [os.path.join(folder, f) for f in files if f.endswith(ends)]
paths.sort(key=lambda p: hashlib.md5(p.encode(errors="replace")).digest())
seen, taken, documents = set(), 0, 0
with open(out, "w", encoding="utf-8") as lines:
    for path in paths:
        try:
            if os.path.islink(path) or not 512 <= os.path.getsize(path) <= 400_000:
                continue
            text = open(path, encoding="utf-8").read()
        except (OSError, UnicodeDecodeError):
            continue
        key = hashlib.md5(text.encode()).digest()
        if key in seen or "\0" in text:
            continue
        seen.add(key)
        lines.write(json.dumps({"text": text}) + "\n")
        taken, documents = taken + len(text), documents + 1
        if taken >= limit:
            break
print(f"collected {taken / 2**20:.0f} MiB in {documents} files of {len(paths)}")
PY
  "$octet" data build --input "$data.jsonl" --tokenizer "sentencepiece:$tokenizer" --out "$data" | tail -n 1
fi

# Text is collected from the machine at hand: runs of other token files are no pairs of these.
identity=$(sha256sum "$data.bin" | cut -c1-16)

one() {  # GPU NAME SEED RECIPE OPTION...
  local gpu=$1 name=$2 seed=$3 recipe=$4 dir=$out/$2-$3
  shift 4
  [ "$(cat "$dir/done" 2>/dev/null)" != "$identity $options $*" ] || return 0
  rm -f "$dir/done"
  [ "$SECONDS" -lt "$seconds" ] || return 0
  rm -rf "$dir"
  if CUDA_VISIBLE_DEVICES=$gpu "$octet" train --config "$model" configs/runs/code_100m.json "configs/recipes/$recipe.json" --data-path "$data" --run-dir "$dir" \
    --set run.device=cuda "run.seed=$seed" run.threads=2 log.interval=1000 $options "$@" >"$dir.out" 2>&1; then
    echo "$identity $options $*" >"$dir/done"
    rm -rf "$dir/checkpoints"
    echo "$name seed $seed: $(grep validation "$dir.out" | tail -n 1)"
  else
    echo "$name seed $seed failed: $(tail -n 1 "$dir.out")" >&2
  fi
}

# Each worker takes the next run that no other has taken.
mkdir -p "$out"
list=()
for seed in $seeds; do
  list+=("bf16 $seed bf16")
  for recipe in $recipes; do
    if [ "$recipe" = twin ]; then list+=("twin $seed bf16 --set run.init_perturbation=0.001"); else list+=("$recipe $seed $recipe"); fi
  done
done
claims=$(mktemp -d)
trap 'rm -rf "$claims"' EXIT
for ((w = 0; w < gpus * jobs; ++w)); do
  for ((i = 0; i < ${#list[@]}; ++i)); do
    mkdir "$claims/$i" 2>/dev/null || continue
    one $((w % gpus)) ${list[i]}
  done &
done
wait
finished=0
for entry in "${list[@]}"; do
  read -r name seed _ <<<"$entry"
  [ ! -f "$out/$name-$seed/done" ] || finished=$((finished + 1))
done
echo "finished: $finished of ${#list[@]} runs in $SECONDS s"
[ "$finished" -eq "${#list[@]}" ]
