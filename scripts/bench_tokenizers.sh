#!/usr/bin/env bash
# Speed of `octet data build` on one thread beside the `tokenizers` package on one thread: the same documents, the same tokenizer.json, turn and
# turn about. The package gets the documents as Python strings, ready in memory; octet reads and parses JSONL and writes the token files.
# Usage: scripts/bench_tokenizers.sh --text FILE [--mib 16] [--rounds 5] [--vocab-size 32000] [--octet BINARY]
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

[ -x .venv/bin/python ] || die "no .venv here; run scripts/setup.sh --tests"
export RAYON_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false OPENBLAS_NUM_THREADS=1
exec .venv/bin/python scripts/bench_tokenizers.py "$@"
