#!/usr/bin/env bash
# From a clean clone to a comparison report: sets up, builds, takes a corpus, trains a small byte-level Llama once a recipe on
# the same tokens from the same initial weights, compares the runs with BF16 and prints where the report is.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

text=""
steps=""
base=$ROOT/runs/quickstart
threads=""
seed=1234
recipes="bf16,fp32,tensorwise,delayed,rowwise,blockwise,mxfp8,harm_e2m1"
check=0

help() {
  cat <<END
usage: scripts/quickstart.sh [--text FILE] [--steps N] [--out DIR] [--threads N] [--seed K] [--recipes LIST] [--check]
  --text FILE     train on this text, documents separated by blank lines (default: GCIDE, an English dictionary of 40 MB,
                  from Debian's package dict-gcide; needs a network the first time)
  --steps N       optimizer steps a run, at least 40 (default: as configs/runs/quickstart.json)
  --out DIR       where runs and report go (default runs/quickstart; a number is appended when it holds runs already)
  --threads N     CPU threads (default: all cores; results do not depend on it)
  --seed K        seed of weights and sample order, the same for all runs (default $seed)
  --recipes LIST  comma-separated, from: $recipes
                  (bf16 is the baseline and always runs; harm_e2m1 is a 4-bit control that must lose)
  --check         exit with code 1 when a check at the end says FAIL
END
}

while [ $# -gt 0 ]; do
  case $1 in
    --text | --steps | --out | --threads | --seed | --recipes)
      need_value "$1" $#
      case $1 in
        --text) text=$(user_path "$2") ;;
        --steps)
          need_count "$1" "$2"
          [ "$2" -ge 40 ] || usage_error "--steps needs at least 40: the checks look at the mean of the last 40 steps"
          steps=$2 ;;
        --out) base=$(user_path "${2%/}") ;;
        --threads) need_count "$1" "$2" && threads=$2 ;;
        --seed) [[ $2 =~ ^[0-9]{1,19}$ ]] || usage_error "--seed needs a whole number, not '$2'"; seed=$2 ;;
        --recipes) recipes=$2 ;;
      esac
      shift ;;
    --check) check=1 ;;
    -h | --help) help; exit 0 ;;
    *) usage_error "unknown argument '$1'" ;;
  esac
  shift
done
[ -z "$text" ] || { [ -f "$text" ] && [ -r "$text" ]; } || die "cannot read the text file '$text' (check the path and its permissions)"

IFS=, read -r -a wanted <<<"$recipes"
runs=(bf16)
for recipe in "${wanted[@]}"; do
  [ -f "configs/recipes/$recipe.json" ] || usage_error "unknown recipe '$recipe'; the recipes are the files of configs/recipes"
  [[ " ${runs[*]} " == *" $recipe "* ]] || runs+=("$recipe")
done
[ ${#runs[@]} -gt 1 ] || usage_error "--recipes needs one besides bf16, or there is nothing to compare"

octet=build/release/octet

# Writes corpus/gcide.txt from Debian's package, installed or downloaded; neither needs root.
take_corpus() {
  local folder=corpus/gcide.tmp packed=/usr/share/dictd/gcide.dict.dz
  [ ! -s corpus/gcide.txt ] || return 0
  mkdir -p "$folder"
  if [ ! -r "$packed" ]; then
    say "corpus: downloading Debian's package dict-gcide (15 MB)"
    download "$folder" || die "could not download dict-gcide; check the network, install the package, or give a text of your own with --text FILE"
    dpkg-deb -x "$folder"/dict-gcide_*.deb "$folder"
    packed=$folder$packed
  fi
  gzip -dc <"$packed" >"$folder/gcide.txt" || die "$packed is damaged (remove the folder corpus and try again)"
  mv "$folder/gcide.txt" corpus/gcide.txt
  rm -r "$folder"
  say "corpus: corpus/gcide.txt, $(($(stat -c %s corpus/gcide.txt) / 1000000)) MB of English"
}

download() {
  local get=(apt-get -q -o APT::Sandbox::User=root)
  command -v apt-get >/dev/null || return 1
  (cd "$1" && "${get[@]}" download dict-gcide >apt.log 2>&1) && return 0
  # Containers come without package lists; only root can fetch them.
  [ "$(id -u)" = 0 ] && "${get[@]}" update >"$1/apt.log" 2>&1 && (cd "$1" && "${get[@]}" download dict-gcide >apt.log 2>&1) && return 0
  tail -n 3 "$1/apt.log" >&2
  return 1
}

# Token files are named by the text's content, so that they are made once and never stand for another text.
make_tokens() {
  local hash stem
  hash=$(sha256sum <"$text")
  stem=$(basename "$text" | tr -c 'A-Za-z0-9._\n-' _)
  stem=${stem%.*}
  prefix=$base/data/$stem-${hash:0:8}
  if [ -f "$prefix.idx" ] && "$octet" data verify "$prefix" --vocab-size 257 >/dev/null; then
    say "tokens: $prefix is up to date"
    return
  fi
  mkdir -p "$base/data"
  rm -f "$prefix.idx" "$prefix.bin"
  "$octet" data build --input "$text" --tokenizer byte --split-documents blank-lines --out "$prefix"
}

# The first of DIR, DIR-2, DIR-3, ... that holds no runs: what is there is never touched.
fresh_folder() {
  local number=1
  out=$base
  while [ -e "$out/bf16" ] || [ -e "$out/report.html" ]; do
    number=$((number + 1))
    out=$base-$number
  done
}

train() {  # RECIPE
  local rc=0 options=(--config configs/models/tiny_byte.json --config configs/runs/quickstart.json --config "configs/recipes/$1.json"
    --data-path "$prefix" --run-dir "$out/$1" --set "run.seed=$seed")
  [ -z "$steps" ] || options+=(--set "run.steps=$steps")
  [ -z "$threads" ] || options+=(--set "run.threads=$threads")
  [ -t 1 ] || options+=(--set log.interval=50)
  "$octet" train "${options[@]}" || rc=$?
  case $rc in
    0) ;;
    20) die "stopped by a signal; what was trained is in $out" ;;
    *) die "the run $1 ended with exit code $rc; its message is above, its files are in $out/$1" ;;
  esac
}

scripts/setup.sh
scripts/build.sh release --target octet

began=$SECONDS
if [ -z "$text" ]; then
  take_corpus
  text=corpus/gcide.txt
fi
make_tokens
fresh_folder
mkdir -p "$out"
[ "$out" = "$base" ] || say "$base holds earlier runs; these go to $out"

number=0
for recipe in "${runs[@]}"; do
  number=$((number + 1))
  say "[$number/${#runs[@]}] $recipe ($(minutes $((SECONDS - began))) so far)"
  train "$recipe"
done

"$octet" data info "$prefix" --json >"$out/corpus.json"
say "comparison with bf16"
"$octet" compare "${runs[@]/#/$out/}" --baseline "$out/bf16" --out "$out/report.html" --json "$out/report.json"
echo
rc=0
python3 scripts/check_quickstart.py --corpus "$out/corpus.json" "${runs[@]/#/$out/}" || rc=$?
[ "$rc" -le 1 ] || die "the runs in $out could not be checked"
say "done in $(minutes $((SECONDS - began))) after the build; the report is $out/report.html"
[ "$check" = 0 ] || exit "$rc"
