"""The Llama model and its loss in plain array formulas, for golden values. `xp` is numpy or jax.numpy; nothing is shared with the C++ code.

  x = embed[token]; for each layer: x += o(attention(rope(qk_norm(q, k, v of rmsnorm(x))))); x += down(silu(gate(h)) * up(h)), h = rmsnorm(x)
  logits = rmsnorm(x) W_head^T over the first vocab_size rows; loss = (sum over valid (lse - logit[label]) + z_loss * sum lse^2) / valid count

RMSNorm is x * rsqrt(mean(x^2) + eps) * g. RoPE rotates the first partial_rotary_factor * head_dim dimensions of each head, pairing
dimension i with i + rot/2 (Hugging Face). Llama-3 frequency bands: Llama 3.1 reference code, as rope_type "llama3" of transformers.
"""
import math

import numpy as np

DEFAULTS = {"rope_theta": 10000.0, "rope_scaling": {"rope_type": "default"}, "partial_rotary_factor": 1.0, "rms_norm_eps": 1e-5,
            "attention_bias": False, "use_qk_norm": False, "tie_word_embeddings": False}


def padded_vocab(model):
    multiple = model["vocab_pad_multiple"]
    return -(-model["vocab_size"] // multiple) * multiple


def weight_shapes(model):
    """Hugging Face name -> shape. Embedding and head have all padded rows."""
    hidden, inter, head_dim = model["hidden_size"], model["intermediate_size"], model["head_dim"]
    q_rows, kv_rows = model["num_attention_heads"] * head_dim, model["num_key_value_heads"] * head_dim
    shapes = {"model.embed_tokens.weight": (padded_vocab(model), hidden), "model.norm.weight": (hidden,)}
    for n in range(model["num_hidden_layers"]):
        layer = f"model.layers.{n}."
        shapes[layer + "input_layernorm.weight"] = shapes[layer + "post_attention_layernorm.weight"] = (hidden,)
        for name, rows in (("q", q_rows), ("k", kv_rows), ("v", kv_rows)):
            shapes[f"{layer}self_attn.{name}_proj.weight"] = (rows, hidden)
            if model["attention_bias"]:
                shapes[f"{layer}self_attn.{name}_proj.bias"] = (rows,)
        shapes[layer + "self_attn.o_proj.weight"] = (hidden, q_rows)
        if model["use_qk_norm"]:
            shapes[layer + "self_attn.q_norm.weight"] = shapes[layer + "self_attn.k_norm.weight"] = (head_dim,)
        shapes[layer + "mlp.gate_proj.weight"] = shapes[layer + "mlp.up_proj.weight"] = (inter, hidden)
        shapes[layer + "mlp.down_proj.weight"] = (hidden, inter)
    if not model["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (padded_vocab(model), hidden)
    return shapes


def rope_frequencies(model):
    """Angle per position of each rotated pair, float64 [rot / 2]."""
    rotated = int(model["head_dim"] * model["partial_rotary_factor"])
    frequency = model["rope_theta"] ** (-np.arange(0, rotated, 2, dtype=np.float64) / rotated)
    scaling = model["rope_scaling"]
    if scaling["rope_type"] != "llama3":
        return frequency
    low, high, factor = scaling["low_freq_factor"], scaling["high_freq_factor"], scaling["factor"]
    # Turns over the original context: below `low` the frequency is divided by factor, above `high` kept, blended between.
    turns = scaling["original_max_position_embeddings"] * frequency / (2 * math.pi)
    blend = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return frequency * (blend + (1.0 - blend) / factor)


def rmsnorm(xp, x, gain, eps):
    return x / xp.sqrt(xp.mean(x * x, axis=-1, keepdims=True) + eps) * gain


def rope(xp, x, positions, frequency):
    """x [samples, seq, heads, head_dim], positions [samples, seq]."""
    half = len(frequency)
    angle = (positions[:, :, None].astype(np.float64) * frequency)[:, :, None, :]
    cos, sin = np.cos(angle).astype(x.dtype), np.sin(angle).astype(x.dtype)
    a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return xp.concatenate([a * cos - b * sin, b * cos + a * sin, rest], axis=-1)


def attention(xp, q, k, v, document_start):
    """Causal attention within documents: key j is visible to query i when document_start[i] <= j <= i. Heads of q share k and v in groups."""
    seq, group = q.shape[1], q.shape[2] // k.shape[2]
    k, v = xp.repeat(k, group, axis=2), xp.repeat(v, group, axis=2)
    scores = xp.einsum("bihd,bjhd->bhij", q, k) / math.sqrt(q.shape[-1])
    i, j = np.arange(seq)[None, :, None], np.arange(seq)[None, None, :]
    visible = ((j <= i) & (j >= document_start[:, :, None]))[:, None]
    weights = xp.where(visible, xp.exp(scores - xp.max(xp.where(visible, scores, -1e30), axis=-1, keepdims=True)), 0.0)
    return xp.einsum("bhij,bjhd->bihd", weights / xp.sum(weights, axis=-1, keepdims=True), v)


def attention_block(xp, model, weight, h, batch):
    def project(name, heads):
        y = h @ weight(f"self_attn.{name}_proj.weight").T
        if model["attention_bias"]:
            y = y + weight(f"self_attn.{name}_proj.bias")
        return y.reshape(h.shape[0], h.shape[1], heads, model["head_dim"])

    q = project("q", model["num_attention_heads"])
    k, v = project("k", model["num_key_value_heads"]), project("v", model["num_key_value_heads"])
    if model["use_qk_norm"]:
        q = rmsnorm(xp, q, weight("self_attn.q_norm.weight"), model["rms_norm_eps"])
        k = rmsnorm(xp, k, weight("self_attn.k_norm.weight"), model["rms_norm_eps"])
    frequency = rope_frequencies(model)
    q, k = rope(xp, q, batch["positions"], frequency), rope(xp, k, batch["positions"], frequency)
    out = attention(xp, q, k, v, batch["document_start"])
    return out.reshape(h.shape[0], h.shape[1], -1) @ weight("self_attn.o_proj.weight").T


def loss(xp, config, weights, batch):
    """Scalar loss. batch: integer arrays [samples, seq_len] tokens, labels (-1: no loss), positions, document_start."""
    model = config["model"]
    eps = model["rms_norm_eps"]
    x = weights["model.embed_tokens.weight"][batch["tokens"]]
    for n in range(model["num_hidden_layers"]):
        def weight(name, n=n):
            return weights[f"model.layers.{n}.{name}"]

        x = x + attention_block(xp, model, weight, rmsnorm(xp, x, weight("input_layernorm.weight"), eps), batch)
        h = rmsnorm(xp, x, weight("post_attention_layernorm.weight"), eps)
        gate = h @ weight("mlp.gate_proj.weight").T
        x = x + (gate / (1.0 + xp.exp(-gate)) * (h @ weight("mlp.up_proj.weight").T)) @ weight("mlp.down_proj.weight").T
    head = weights["model.embed_tokens.weight" if model["tie_word_embeddings"] else "lm_head.weight"]
    logits = rmsnorm(xp, x, weights["model.norm.weight"], eps) @ head[: model["vocab_size"]].T
    top = xp.max(logits, axis=-1, keepdims=True)
    lse = xp.log(xp.sum(xp.exp(logits - top), axis=-1)) + top[..., 0]
    valid = batch["labels"] >= 0
    target = xp.take_along_axis(logits, np.where(valid, batch["labels"], 0)[..., None], axis=-1)[..., 0]
    return xp.sum(xp.where(valid, lse - target + config["z_loss"] * lse * lse, 0.0)) / valid.sum()
