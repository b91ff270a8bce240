#!/usr/bin/env python3
"""Writes tests/golden/model_reference/<case>.safetensors: loss and every gradient of tiny Llama models, by JAX in double precision.

Each file holds tokens, labels, positions, document_start (I32 [samples, seq_len]), all weights under Hugging Face names (F32, every value
a BF16 number, so loaders of either precision see the same model; embedding and head with their padded rows), `loss` (F32 [1]) and
`grad/<name>` (F32). __metadata__["config"] is JSON: {"model": {...}, "seq_len", "samples", "z_loss"}.

Needs: pip install -r tests/golden/requirements.txt. The values are committed; run this only to add a case, with
its name as argument (no argument: all cases).
Before a file is written, its gradient is checked against central differences, and FP32 must come within a fifth of the 1e-5 the C++ tests ask for.
"""
import json
import os
import sys
import zlib

import jax
import jax.numpy as jnp
import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "scripts"))
sys.path.insert(0, HERE)

import llama_model  # noqa: E402
from octet_numpy import formats, safetensors  # noqa: E402

SEQ_LEN = 16
BASE = {"vocab_size": 40, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4,
        "num_key_value_heads": 4, "head_dim": 8, "max_position_embeddings": SEQ_LEN, "vocab_pad_multiple": 8, **llama_model.DEFAULTS}
# Wavelengths of head_dim 16 at theta 1000 are 6, 15, 35, 84, ... positions: kept up to 64 / 4, blended up to 64 / 1, divided by 8 above.
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
# case -> (model overrides, batch options: samples, z_loss, documents, mask, reset, ignore)
CASES = {
    "mha": ({"num_hidden_layers": 2}, {}),
    "gqa": ({"num_hidden_layers": 2, "num_key_value_heads": 2}, {}),
    "tied": ({"num_hidden_layers": 2, "tie_word_embeddings": True}, {}),
    "qk_norm": ({"num_hidden_layers": 2, "num_key_value_heads": 2, "use_qk_norm": True}, {}),
    "llama3_rope": ({"head_dim": 16, "num_attention_heads": 2, "num_key_value_heads": 1, "rope_theta": 1000.0, "rope_scaling": LLAMA3}, {}),
    "partial_rotary": ({"partial_rotary_factor": 0.5}, {}),
    "qkv_bias": ({"num_key_value_heads": 2, "attention_bias": True}, {}),
    "head_dim": ({"head_dim": 16, "num_key_value_heads": 1}, {}),
    "padded_vocab": ({"vocab_size": 37, "vocab_pad_multiple": 16}, {"z_loss": 0.01}),
    "document_mask": ({}, {"documents": True}),
    "document_mask_reset": ({"num_key_value_heads": 2}, {"documents": True, "reset": True}),
    # Under a document mask RoPE makes a shift of positions invisible; only this case can tell whether they are reset.
    "position_reset": ({"num_key_value_heads": 2}, {"documents": True, "mask": False, "reset": True}),
    "z_loss": ({}, {"z_loss": 0.05}),
    "ignored_labels": ({}, {"samples": 8, "ignore": True}),
    "combined": ({"num_hidden_layers": 2, "vocab_size": 37, "vocab_pad_multiple": 16, "tie_word_embeddings": True, "use_qk_norm": True,
                  "attention_bias": True, "partial_rotary_factor": 0.5, "head_dim": 16, "num_key_value_heads": 2, "rope_theta": 1000.0,
                  "rope_scaling": LLAMA3}, {"z_loss": 0.02, "documents": True, "reset": True, "ignore": True}),
}


def make_batch(rng, model, samples, documents=False, mask=True, reset=False, ignore=False):
    window = rng.integers(0, model["vocab_size"], (samples, SEQ_LEN + 1))
    batch = {"tokens": window[:, :-1], "labels": window[:, 1:].copy(),
             "positions": np.tile(np.arange(SEQ_LEN), (samples, 1)), "document_start": np.zeros((samples, SEQ_LEN), np.int64)}
    if documents:
        starts = rng.random((samples, SEQ_LEN)) < 0.25
        starts[:, 0] = True
        document_start = np.maximum.accumulate(np.where(starts, np.arange(SEQ_LEN), 0), axis=1)
        if mask:
            batch["document_start"] = document_start
        if reset:
            batch["positions"] = batch["positions"] - document_start
    if ignore:
        keep = np.linspace(0.95, 0.0, samples)[:, None]  # from nearly all labels valid to none
        batch["labels"][rng.random((samples, SEQ_LEN)) >= keep] = -1
    return {name: value.astype(np.int32) for name, value in batch.items()}


def make_weights(rng, model):
    weights = {}
    for name, shape in llama_model.weight_shapes(model).items():
        if name.endswith("norm.weight"):
            value = 1.0 + 0.2 * rng.standard_normal(shape)
        elif name == "model.embed_tokens.weight":
            value = 0.5 * rng.standard_normal(shape)
        else:
            value = 0.2 * rng.standard_normal(shape)
        weights[name] = formats.bf16_round(value.astype(np.float32))
    return weights


def differentiate(config, weights, batch, dtype):
    """(loss, gradients) by JAX in that precision."""
    cast = {name: jnp.asarray(value, dtype=dtype) for name, value in weights.items()}
    value, grads = jax.jit(jax.value_and_grad(lambda w: llama_model.loss(jnp, config, w, batch)))(cast)
    return np.asarray(value), {name: np.asarray(grad) for name, grad in grads.items()}


def check(case, config, weights, batch, grads):
    rng = np.random.default_rng(1)
    wide = {name: value.astype(np.float64) for name, value in weights.items()}
    for name in weights:
        direction = rng.standard_normal(wide[name].shape)
        step = 1e-5
        ends = [llama_model.loss(np, config, {**wide, name: wide[name] + sign * step * direction}, batch) for sign in (1, -1)]
        slope, expected = (ends[0] - ends[1]) / (2 * step), float(np.vdot(grads[name], direction))
        if abs(slope - expected) > 1e-6 * float(np.linalg.norm(grads[name])) + 1e-9:
            raise SystemExit(f"{case}: gradient of {name} along a direction is {expected}, central difference {slope}")
    _, narrow = differentiate(config, weights, batch, jnp.float32)
    worst = max((np.linalg.norm(narrow[n] - grads[n]) / np.linalg.norm(grads[n]), n) for n in grads)
    if worst[0] > 2e-6:
        raise SystemExit(f"{case}: {worst[1]} is ill-conditioned: FP32 is {worst[0]:.2g} from double precision")
    return worst


def check_rope_bands():
    config = {**BASE, **CASES["llama3_rope"][0]}
    ratio = llama_model.rope_frequencies(config) / llama_model.rope_frequencies({**config, "rope_scaling": {"rope_type": "default"}})
    if not (np.any(ratio == 1.0) and np.any((ratio > 0.13) & (ratio < 0.99)) and np.any(ratio == 0.125)):
        raise SystemExit(f"llama3_rope does not reach all three frequency bands: {ratio}")


def make_case(case, folder):
    overrides, options = CASES[case][0], dict(CASES[case][1])
    model = {**BASE, **overrides}
    rng = np.random.default_rng(zlib.crc32(case.encode()))
    samples = options.pop("samples", 3)
    config = {"model": model, "seq_len": SEQ_LEN, "samples": samples, "z_loss": options.pop("z_loss", 0.0)}
    batch = make_batch(rng, model, samples, **options)
    weights = make_weights(rng, model)
    value, grads = differentiate(config, weights, batch, jnp.float64)
    worst = check(case, config, weights, batch, grads)
    tensors = {name: ("I32", array) for name, array in batch.items()}
    tensors |= {name: ("F32", array) for name, array in weights.items()}
    tensors |= {f"grad/{name}": ("F32", array.astype(np.float32)) for name, array in grads.items()}
    tensors["loss"] = ("F32", np.array([value], dtype=np.float32))
    path = os.path.join(folder, case + ".safetensors")
    safetensors.write(path, tensors, {"config": json.dumps(config)})
    print(f"{case:20} loss {float(value):.6f}  valid {int((batch['labels'] >= 0).sum()):3}  FP32 error {worst[0]:.1e} ({worst[1]})  "
          f"{os.path.getsize(path)} bytes")


def main(cases):
    jax.config.update("jax_enable_x64", True)
    check_rope_bands()
    folder = os.path.join(HERE, "model_reference")
    os.makedirs(folder, exist_ok=True)
    for case in cases or CASES:
        make_case(case, folder)


if __name__ == "__main__":
    main(sys.argv[1:])
