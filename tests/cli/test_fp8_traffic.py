"""What FP8 communication saves, of `octet train` under mpirun: bytes that MPI was given, and those that Comm counted by group, operation and type."""

import pathlib
import subprocess
import unittest

import octet_cli
from test_mpirun import COUNTER, MPIRUN, environment

BAR = 0.52  # of what BF16 gathers of the same tensors move


@unittest.skipUnless("Open MPI" in subprocess.run(["mpirun", "--version"], capture_output=True, text=True).stdout, "the flags here are Open MPI's")
class Fp8Traffic(octet_cli.Sandbox):
    def run_counted(self, name, recipe, parallel):
        """Losses, and bytes of rank 0: Comm's by (group, operation, type), and all that MPI was given."""
        # Whole blocks on each of two ranks: 256 tokens of a micro-batch (in validation too: short ones are filled up where codes are gathered), heads of 128.
        config = octet_cli.tiny_config(self.prefix, model={"hidden_size": 128, "intermediate_size": 512, "head_dim": 128, "num_key_value_heads": 2, "num_attention_heads": 2},
                                       data={"seq_len": 64}, batch={"micro": 4, "global": 8}, run={"steps": 3}, eval={"interval": 2, "samples": 8}, precision={"recipe": recipe}, parallel=parallel)
        path, run, counted = octet_cli.write_json(self.folder / f"{name}.json", config), self.folder / name, self.folder / f"{name}.mpi"
        command = [*MPIRUN, "-x", f"LD_PRELOAD={COUNTER}", "-x", "PMPI_COUNT", "-np", "2", octet_cli.binary(), "train", "--config", str(path), "--run-dir", str(run)]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=octet_cli.TIMEOUT_S, env=environment(PMPI_COUNT=counted))
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout[-2000:])
        traffic = {(group, *what.split("/")): sent["bytes"] for group, table in octet_cli.records(run, "event")[-1]["traffic"].items() for what, sent in table.items()}
        losses = [(s["loss"], s["grad_norm"]) for s in octet_cli.steps(run).values()] + [v["loss"] for v in octet_cli.records(run, "valid")]
        return losses, traffic, int(pathlib.Path(f"{counted}.0").read_text().split()[0])

    def assert_half(self, recipe, group, switch, **parallel):
        """Bytes of FP8 gathers (codes and scales) against the BF16 gathers in whose place they are: by Comm, and by MPI with all that the scales need besides (maxima)."""
        losses, plain, plain_mpi = self.run_counted("without", recipe, parallel)
        fp8_losses, fp8, fp8_mpi = self.run_counted("with", recipe, {**parallel, switch: True})
        self.assertEqual(fp8_losses, losses, "the same bits")
        # Greetings of the groups, and the end that comes behind the summary.
        greetings = plain_mpi - sum(plain.values())
        self.assertIn(greetings, range(64, 1000))
        self.assertEqual(fp8_mpi - sum(fp8.values()), greetings)

        of = lambda traffic, dtype: traffic.get((group, "all_gather", dtype), 0)
        replaced = of(plain, "bf16") - of(fp8, "bf16")
        self.assertGreater(replaced, 1_000_000)
        gathered = sum(of(fp8, dtype) - of(plain, dtype) for dtype in ("e4m3", "e5m2", "e8m0", "f32"))
        self.assertLessEqual(gathered / replaced, BAR, f"codes and scales: {gathered} bytes instead of {replaced}")
        self.assertLessEqual(1 - (plain_mpi - fp8_mpi) / replaced, BAR, f"MPI: {fp8_mpi} bytes instead of {plain_mpi}")
        # What is no FP8 gather is the same (run directories and like texts aside, which all ranks tell each other).
        rest = lambda traffic: {what: sent for what, sent in traffic.items() if what[:2] not in ((group, "all_gather"), ("all", "all_gather")) and what[1:] != ("all_reduce", "f32")}
        self.assertEqual(rest(fp8), rest(plain))

    def test_weights(self):
        self.assert_half("blockwise", "shard", "fp8_param_gather", zero=3)

    def test_weights_in_one_scale(self):
        self.assert_half("tensorwise", "shard", "fp8_param_gather", zero=1)

    def test_activations(self):
        self.assert_half("blockwise", "tp", "fp8_activation_gather", tp=2, sequence_parallel=True)

    def test_activations_in_mx_blocks(self):
        self.assert_half("mxfp8", "tp", "fp8_activation_gather", tp=2, sequence_parallel=True)

    def test_activations_and_gradients_in_one_scale(self):
        self.assert_half("tensorwise", "tp", "fp8_activation_gather", tp=2, sequence_parallel=True)


if __name__ == "__main__":
    unittest.main()
