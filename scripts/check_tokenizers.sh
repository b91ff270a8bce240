#!/usr/bin/env bash
# Compares octet's byte-level BPE with the `tokenizers` package: 10^6 random Unicode strings for each of three vocabularies trained on the spot
# (GPT-2, Llama 3 and Qwen 2 styles), and a corpus of hard cases with every code point for these and nine more. Minutes; CI runs a tenth of it.
# Usage: scripts/check_tokenizers.sh [--strings N] [--seed N] [--octet BINARY]     exit code 1 on any mismatch
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

[ -x .venv/bin/python ] || die "no .venv here; run scripts/setup.sh --tests"
exec .venv/bin/python tests/cli/tokenizer_cases.py "$@"
