"""Order of samples: three epochs with a stop after (nearly) every step see the same samples as one uninterrupted run."""

import unittest

from octet_cli import OK, Sandbox, octet, steps


class Samples(Sandbox):
    words = 700  # some 3,300 tokens: 25 steps of 4 samples of 32 tokens an epoch

    def test_stop_after_every_step_over_three_epochs(self):
        count = 75
        settings = {"run": {"steps": count}, "ckpt": {"interval": 1}, "data": {"split": "100,0,0"}}
        straight = self.train("straight", **settings)
        self.assertGreaterEqual(count * 4 * 32, 3 * 0.9 * ((self.class_folder / "corpus.bin").stat().st_size // 2), "fewer than three epochs")

        self.assert_stops_change_nothing(straight, count, **settings)

    def test_longer_run_keeps_the_order(self):
        """run.steps may grow on resume: the sampler's epochs are pinned, so the samples that come next are those of the first plan."""
        constant = {"sched": {"type": "constant"}, "data": {"split": "100,0,0"}}
        planned = self.train("planned", run={"steps": 20}, **constant)
        grown = self.train("grown", "--set", "ckpt.interval=10", run={"steps": 20}, **constant)
        result = octet("train", "--config", self.config(run={"steps": 30}, **constant), "--run-dir", grown, "--resume", "must")
        self.assertEqual(result.rc, OK, result)
        a, b = steps(planned), steps(grown)
        self.assertEqual([a[i]["loss"] for i in range(1, 21)], [b[i]["loss"] for i in range(1, 21)])
        self.assertEqual(sorted(b), list(range(1, 31)))


if __name__ == "__main__":
    unittest.main()
