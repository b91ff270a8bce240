"""Determinism: a run that is killed and resumed, or run with more threads, gives the same bits."""

import json
import signal
import unittest

from octet_cli import OK, RECIPES, STOPPED, Sandbox, checkpoints, end, last_step, octet, start, steps, tensor_bytes, wait_for

COUNT = 80
SETTINGS = {"run": {"steps": COUNT}, "ckpt": {"interval": 7}, "eval": {"interval": 20, "samples": 4}}


class Resume(Sandbox):
    def kill(self, run, flags, after):
        """Starts a run and kills it once it has logged step `after`; returns the last step it logged."""
        process = start("train", "--config", self.config(**SETTINGS), "--run-dir", run, *flags)
        self.addCleanup(end, process)
        wait_for(lambda: last_step(run) >= after, process, f"step {after}")
        self.assertEqual(end(process), -signal.SIGKILL)
        return last_step(run)

    def check(self, recipe):
        flags = self.recipe_flags(recipe)
        straight = self.train("straight", *flags, **SETTINGS)
        threads = self.train("threads", *flags, "--set", "run.threads=2", **SETTINGS)
        self.assert_same_training(straight, threads, COUNT)

        resumed = self.folder / "resumed"
        killed_at = self.kill(resumed, flags, after=20)
        self.assertLess(killed_at, COUNT, "the run was over before it could be killed")
        result = octet("train", "--config", self.config(**SETTINGS), "--run-dir", resumed, "--resume", "must", *flags)
        self.assertEqual(result.rc, OK, result)
        self.assert_same_training(straight, resumed, COUNT)

    def test_killed_between_checkpoints_twice(self):
        straight = self.train("straight", **SETTINGS)
        resumed = self.folder / "resumed"
        self.kill(resumed, [], after=12)
        self.kill(resumed, ["--resume", "must"], after=40)
        self.assertEqual(octet("train", "--config", self.config(**SETTINGS), "--run-dir", resumed, "--resume", "must").rc, OK)
        self.assert_same_training(straight, resumed, COUNT)

    def test_killed_before_the_first_checkpoint(self):
        straight = self.train("straight", **SETTINGS)
        resumed = self.folder / "resumed"
        self.kill(resumed, [], after=1)
        self.assertEqual(octet("train", "--config", self.config(**SETTINGS), "--run-dir", resumed, "--resume", "auto").rc, OK)
        self.assert_same_training(straight, resumed, COUNT)

    def test_signal_saves_and_asks_to_be_requeued(self):
        straight = self.train("straight", **SETTINGS)
        for number in (signal.SIGTERM, signal.SIGINT):
            with self.subTest(signal=number):
                resumed = self.folder / f"resumed{number}"
                process = start("train", "--config", self.config(**SETTINGS), "--run-dir", resumed)
                self.addCleanup(end, process)
                wait_for(lambda: last_step(resumed) >= 10, process, "step 10")
                self.assertEqual(end(process, number), STOPPED)
                stopped_at = last_step(resumed)
                self.assertIn(f"{stopped_at:010d}", checkpoints(resumed)[-1].name)
                result = octet("train", "--config", self.config(**SETTINGS), "--run-dir", resumed, "--resume", "must")
                self.assertEqual(result.rc, OK, result)
                self.assert_same_training(straight, resumed, COUNT)

    def test_other_seed_gives_other_bits(self):
        """The comparisons above can see a difference."""
        one = self.train("one", **SETTINGS)
        two = self.train("two", "--set", "run.seed=8", **SETTINGS)
        self.assertNotEqual(steps(one)[COUNT]["loss"], steps(two)[COUNT]["loss"])
        self.assertNotEqual(tensor_bytes(checkpoints(one)[-1]), tensor_bytes(checkpoints(two)[-1]))

    def test_resume_of_a_finished_run_adds_nothing(self):
        run = self.train("run", run={"steps": 4})
        before = steps(run)
        self.assertEqual(octet("train", "--config", self.config(run={"steps": 4}), "--run-dir", run, "--resume", "auto").rc, OK)
        self.assertEqual(json.dumps(steps(run)), json.dumps(before))


def add_recipe(recipe):
    setattr(Resume, f"test_bitwise_{recipe}", lambda self: self.check(recipe))


for name in [*RECIPES, "harm_e2m1", "blockwise_with_gw_rowwise"]:
    add_recipe(name)


if __name__ == "__main__":
    unittest.main()
