"""The committed golden files: complete, consistent with the model's formulas, and their gradients with central differences of the loss."""
import glob
import json
import math
import os
import unittest

import numpy as np

import paths
import llama_model
from octet_numpy import formats
from octet_numpy.safetensors import SafetensorsFile

FOLDER = os.path.join(paths.GOLDEN, "model_reference")
CASES = {"mha", "gqa", "tied", "qk_norm", "llama3_rope", "partial_rotary", "qkv_bias", "head_dim", "padded_vocab", "document_mask",
         "document_mask_reset", "position_reset", "z_loss", "ignored_labels", "combined"}


class Case:
    def __init__(self, name):
        file = SafetensorsFile(os.path.join(FOLDER, name + ".safetensors"))
        self.config = json.loads(file.metadata["config"])
        tensors = {n: file.read(n).array for n in file}
        self.batch = {n: tensors.pop(n) for n in ("tokens", "labels", "positions", "document_start")}
        self.loss = tensors.pop("loss")
        self.grads = {n.removeprefix("grad/"): v for n, v in tensors.items() if n.startswith("grad/")}
        self.weights = {n: v for n, v in tensors.items() if not n.startswith("grad/")}

    def evaluate(self, weights=None, batch=None):
        weights = weights or self.weights
        wide = {n: v.astype(np.float64) for n, v in weights.items()}
        return float(llama_model.loss(np, self.config, wide, batch or self.batch))


class Reference(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cases = {name: Case(name) for name in sorted(CASES)}

    def test_every_case_is_there(self):
        files = glob.glob(os.path.join(FOLDER, "*.safetensors"))
        self.assertEqual({os.path.basename(f).removesuffix(".safetensors") for f in files}, CASES)
        self.assertLess(sum(os.path.getsize(f) for f in files), 2.5e6)

    def test_shapes_and_weights(self):
        for name, case in self.cases.items():
            shapes = llama_model.weight_shapes(case.config["model"])
            self.assertEqual({n: v.shape for n, v in case.weights.items()}, shapes, name)
            self.assertEqual({n: v.shape for n, v in case.grads.items()}, shapes, name)
            for value in case.weights.values():
                np.testing.assert_array_equal(formats.bf16_round(value), value)
            for value in case.batch.values():
                self.assertEqual(value.shape, (case.config["samples"], case.config["seq_len"]))

    def test_loss_and_gradients(self):
        rng = np.random.default_rng(0)
        for name, case in self.cases.items():
            self.assertAlmostEqual(case.evaluate(), float(case.loss[0]), delta=2e-7 * float(case.loss[0]), msg=name)
            for weight, grad in case.grads.items():
                direction = rng.standard_normal(grad.shape) * 2e-5
                wide = {n: v.astype(np.float64) for n, v in case.weights.items()}
                ends = [case.evaluate({**wide, weight: wide[weight] + sign * direction}) for sign in (1, -1)]
                expected = float(np.vdot(grad.astype(np.float64), direction))
                self.assertAlmostEqual((ends[0] - ends[1]) / 2, expected, delta=1e-5 * 2e-5 * np.linalg.norm(grad), msg=f"{name} {weight}")

    def test_padding_has_no_gradient_and_no_influence(self):
        case = self.cases["padded_vocab"]
        vocab = case.config["model"]["vocab_size"]
        for name in ("lm_head.weight", "model.embed_tokens.weight"):
            self.assertGreater(case.weights[name].shape[0], vocab)
            self.assertTrue(np.all(case.weights[name][vocab:].any(axis=1)))
            self.assertFalse(case.grads[name][vocab:].any())
        changed = {n: v.copy() for n, v in case.weights.items()}
        changed["lm_head.weight"][vocab:] = 1e3
        self.assertEqual(case.evaluate(changed), case.evaluate())

    def test_uniform_logits_give_log_of_the_vocabulary(self):
        case = self.cases["padded_vocab"]
        flat = {**case.weights, "lm_head.weight": np.zeros_like(case.weights["lm_head.weight"])}
        log_vocab = math.log(case.config["model"]["vocab_size"])
        self.assertAlmostEqual(case.evaluate(flat), log_vocab + case.config["z_loss"] * log_vocab**2, places=12)

    def test_each_option_matters(self):
        """Without its option, the loss of a case moves: the case can fail."""
        def differs(name, model=None, batch=None):
            case = self.cases[name]
            config = {**case.config, "model": {**case.config["model"], **(model or {})}}
            wide = {n: v.astype(np.float64) for n, v in case.weights.items()}
            changed = float(llama_model.loss(np, config, wide, {**case.batch, **(batch or {})}))
            self.assertGreater(abs(changed - float(case.loss[0])), 1e-3, name)

        shape = (3, 16)
        differs("llama3_rope", {"rope_scaling": {"rope_type": "default"}})
        differs("partial_rotary", {"partial_rotary_factor": 1.0})
        differs("qk_norm", {"use_qk_norm": False})
        differs("qkv_bias", {"attention_bias": False})
        differs("document_mask", batch={"document_start": np.zeros(shape, np.int32)})
        differs("document_mask_reset", batch={"document_start": np.zeros(shape, np.int32)})
        differs("position_reset", batch={"positions": np.tile(np.arange(16, dtype=np.int32), (3, 1))})
        differs("padded_vocab", {"vocab_size": 48})

    def test_labels_are_counted_unequally(self):
        counts = (self.cases["ignored_labels"].batch["labels"] >= 0).sum(axis=1)
        self.assertEqual(len(counts), 8)
        self.assertGreaterEqual(len(set(counts.tolist())), 5)
        self.assertEqual(counts[-1], 0)


class Rope(unittest.TestCase):
    def test_half_split_pairs(self):
        x = np.zeros((1, 2, 1, 4))
        x[..., 0] = 1
        model = {"head_dim": 4, "partial_rotary_factor": 1.0, "rope_theta": 1e4, "rope_scaling": {"rope_type": "default"}}
        rotated = llama_model.rope(np, x, np.array([[0, 1]]), llama_model.rope_frequencies(model))
        np.testing.assert_allclose(rotated[0, 1, 0], [math.cos(1), 0, math.sin(1), 0], rtol=1e-15)

    def test_llama3_bands(self):
        """Band edges and a value published for Llama 3.1 and 3.2 (transformers, rope_type llama3)."""
        def ratios(head_dim, factor):
            scaling = {"rope_type": "llama3", "factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                       "original_max_position_embeddings": 8192}
            model = {"head_dim": head_dim, "partial_rotary_factor": 1.0, "rope_theta": 5e5, "rope_scaling": scaling}
            plain = llama_model.rope_frequencies({**model, "rope_scaling": {"rope_type": "default"}})
            return llama_model.rope_frequencies(model), plain

        scaled, plain = ratios(64, 32.0)
        self.assertEqual(np.flatnonzero(scaled == plain).tolist(), list(range(15)))
        self.assertEqual(np.flatnonzero(scaled == plain / 32).tolist(), list(range(18, 32)))
        scaled, plain = ratios(128, 8.0)
        self.assertEqual(np.flatnonzero(scaled == plain).tolist(), list(range(29)))
        self.assertEqual(np.flatnonzero(scaled == plain / 8).tolist(), list(range(35, 64)))
        self.assertAlmostEqual(plain[30], 0.00213112, places=8)
        self.assertAlmostEqual(scaled[30], 0.00137189, places=8)


if __name__ == "__main__":
    unittest.main()
