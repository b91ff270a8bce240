"""Bad checkpoints, full disks and run directories in use: one clear line, exit code 12 or 10, nothing written over."""

import os
import pathlib
import resource
import subprocess
import tempfile
import unittest

from octet_cli import (CHECKPOINT, CONFIG, OK, Sandbox, build_tokens, checkpoints, copy_run, end, last_step, octet, snapshot, start,
                       tiny_config, wait_for, write_json)


def flip_byte(path, position):
    content = bytearray(path.read_bytes())
    content[position] ^= 0x40
    path.write_bytes(content)


def edit(path, old, new):
    content = path.read_text()
    if old not in content:
        raise AssertionError(f"{path} does not hold {old}")
    path.write_text(content.replace(old, new))


def shard(checkpoint):
    return next(checkpoint.glob("model-*.safetensors"))  # weights, which --init-from reads too


def flip_weight(checkpoint):
    flip_byte(shard(checkpoint), shard(checkpoint).stat().st_size - 100)


DAMAGES = {
    "flipped bit of a weight": flip_weight,
    "flipped byte in a shard's header": lambda c: flip_byte(shard(c), 20),
    "truncated shard": lambda c: os.truncate(shard(c), shard(c).stat().st_size // 2),
    "empty shard": lambda c: os.truncate(shard(c), 0),
    "missing shard": lambda c: shard(c).unlink(),
    "missing manifest": lambda c: (c / "manifest.json").unlink(),
    "truncated manifest": lambda c: os.truncate(c / "manifest.json", (c / "manifest.json").stat().st_size // 2),
    "manifest that is no JSON": lambda c: (c / "manifest.json").write_text("manifest"),
    "changed checksum in the manifest": lambda c: edit(c / "manifest.json", "checksum", "checksun"),
}


class Checkpoints(Sandbox):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.settings = write_json(cls.class_folder / "config.json", tiny_config(cls.prefix, run={"steps": 4}))
        cls.trained = cls.class_folder / "trained"
        result = octet("train", "--config", cls.settings, "--run-dir", cls.trained)
        if result.rc != OK:
            raise AssertionError(f"the run to be damaged failed\n{result}")

    def damaged(self, apply):
        """An empty sandbox with a damaged copy of the trained run in it."""
        holder = tempfile.TemporaryDirectory(prefix="octet-cli-")
        self.addCleanup(holder.cleanup)
        self.folder = pathlib.Path(holder.name)
        run = copy_run(self.trained, self.folder / "damaged")
        apply(checkpoints(run)[-1])
        return run

    def test_resume_refuses_damage(self):
        for damage, apply in DAMAGES.items():
            with self.subTest(damage=damage):
                run = self.damaged(apply)
                before = snapshot(run)
                result = octet("train", "--config", self.settings, "--set", "run.steps=8", "--run-dir", run, "--resume", "must")
                self.assert_one_line(result, CHECKPOINT, "step_0000000004")
                self.assertEqual(snapshot(run), before)

    def test_init_from_refuses_damage(self):
        for damage, apply in DAMAGES.items():
            with self.subTest(damage=damage):
                checkpoint = self.damaged(apply) / "checkpoints" / "step_0000000004"
                self.assert_refused(CHECKPOINT, checkpoint.name, arguments=["--config", self.settings, "--init-from", checkpoint])

    def test_init_from_nothing(self):
        self.assert_refused(CHECKPOINT, "nowhere", arguments=["--config", self.settings, "--init-from", self.folder / "nowhere"])

    def test_init_from_another_shape(self):
        self.assert_refused(CHECKPOINT, "gate_proj", arguments=[
            "--config", self.settings, "--set", "model.intermediate_size=192", "--init-from", self.trained])

    def test_resume_must_without_a_checkpoint(self):
        self.assert_refused(CHECKPOINT, "run", arguments=["--config", self.settings, "--resume", "must"])

    def test_damage_falls_back_to_the_previous_checkpoint_and_says_so(self):
        run = self.train("two", "--set", "ckpt.interval=2", run={"steps": 4})
        older, newest = checkpoints(run)
        flip_weight(newest)
        result = octet("train", "--config", self.settings, "--set", "ckpt.interval=2", "--run-dir", run, "--resume", "auto")
        self.assertEqual(result.rc, OK, result)
        self.assertIn(newest.name, result.stderr + (run / "log.txt").read_text())
        self.assertIn(older.name, result.stdout + result.stderr + (run / "log.txt").read_text())


class FullDisk(Sandbox):
    def limited(self, bytes_allowed):
        """A limit on file size that reports EFBIG, as a full disk reports ENOSPC: works without privileges."""
        return {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_allowed, bytes_allowed)), "restore_signals": False}

    def assert_full(self, result):
        self.assertEqual(result.rc, CHECKPOINT, result)
        errors = [line for line in result.stderr.splitlines() if line.startswith("octet: error: ")]
        self.assertEqual(len(errors), 1, result)
        self.assertNotIn("internal", errors[0])

    def test_checkpoint_does_not_fit(self):
        run = self.folder / "run"
        result = octet("train", "--config", self.config(), "--run-dir", run, **self.limited(65536))
        self.assert_full(result)
        self.assertEqual(checkpoints(run), [])
        self.assertEqual(list((run / "checkpoints").glob("*.tmp*")), [])

    def test_later_checkpoint_does_not_fit_and_the_earlier_stay(self):
        run = self.train("run", run={"steps": 4})
        before = snapshot(run / "checkpoints")
        result = octet("train", "--config", self.config(), "--set", "run.steps=8", "--run-dir", run, "--resume", "auto", **self.limited(65536))
        self.assert_full(result)
        self.assertEqual(snapshot(run / "checkpoints"), before)

    def test_token_file_does_not_fit(self):
        build_tokens(self.folder, 20000, "large")
        before = snapshot(self.folder)
        arguments = ["--input", self.folder / "large.txt", "--tokenizer", "byte", "--out", self.folder / "out"]
        result = octet("data", "build", *arguments, **self.limited(65536))
        self.assert_full(result)
        self.assertEqual(snapshot(self.folder), before)

    def test_small_file_system(self):
        """The same on a real full file system, where the test may mount one (root); else the limit above stands for it."""
        mount = self.folder / "small"
        mount.mkdir()
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", mount], capture_output=True, check=False).returncode == 0
        if mounted:
            self.addCleanup(subprocess.run, ["umount", mount], check=True)
        limit = {} if mounted else self.limited(65536)
        result = octet("train", "--config", self.config(), "--run-dir", mount / "run", **limit)
        self.assert_full(result)
        self.assertEqual(checkpoints(mount / "run"), [])
        self.assertEqual(list(mount.glob("run/checkpoints/*.tmp*")), [])


class RunDirectory(Sandbox):
    def test_directory_with_other_files(self):
        (self.folder / "run").mkdir()
        (self.folder / "run" / "notes.txt").write_text("mine")
        self.assert_refused(CONFIG, "run", arguments=["--config", self.config()])

    def test_directory_of_an_earlier_run(self):
        run = self.train("run")
        before = snapshot(run)
        result = octet("train", "--config", self.config(), "--run-dir", run)
        self.assert_one_line(result, CONFIG, str(run))
        self.assertEqual(snapshot(run), before)

    def test_file_in_its_place(self):
        (self.folder / "run").write_text("a file")
        self.assert_refused(CONFIG, "run", arguments=["--config", self.config()])

    def test_directory_that_another_run_writes(self):
        run = self.folder / "run"
        config = self.config(run={"steps": 100000})
        process = start("train", "--config", config, "--run-dir", run)
        self.addCleanup(end, process)
        wait_for(lambda: last_step(run) >= 1, process, "the first step")
        result = octet("train", "--config", config, "--run-dir", run, "--resume", "auto")
        self.assert_one_line(result, CONFIG, str(run), str(process.pid))
        self.assertIsNone(process.poll(), "the first run was disturbed")

    def test_lock_ends_with_its_run(self):
        run = self.folder / "run"
        config = self.config(run={"steps": 100000})
        process = start("train", "--config", config, "--run-dir", run, "--set", "ckpt.interval=5")
        wait_for(lambda: last_step(run) >= 6 and checkpoints(run), process, "the first checkpoint")
        end(process)
        more = ["--set", f"run.steps={last_step(run) + 2}", "--set", "ckpt.interval=5"]
        result = octet("train", "--config", config, "--run-dir", run, "--resume", "must", *more)
        self.assertEqual(result.rc, OK, result)


if __name__ == "__main__":
    unittest.main()
