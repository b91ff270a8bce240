"""What surrounds the program: file-size limits, closed pipes, outputs that are no files, folders that are missing; damage `octet ckpt` must see."""

import os
import resource
import shutil
import signal
import stat
import subprocess
import unittest

from octet_cli import CHECKPOINT, CONFIG, DATA, OK, TIMEOUT_S, VERDICT_NO, Sandbox, binary, build_tokens, checkpoints, octet, records, text


def small_files():
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)   # Python ignores it, and children inherit that
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))


class Limits(Sandbox):
    def test_a_file_size_limit_is_a_full_disk(self):
        run = self.folder / "run"
        done = subprocess.run([binary(), "train", "--config", self.config(), "--run-dir", run], preexec_fn=small_files, text=True, capture_output=True)
        self.assertEqual(done.returncode, CHECKPOINT, done)
        self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
        self.assertEqual([p.name for p in (run / "checkpoints").glob("*.tmp*")], [])
        source = self.folder / "my.txt"
        source.write_text(text(30000))
        done = subprocess.run([binary(), "data", "build", "--input", source, "--tokenizer", "byte", "--out", self.folder / "out"], preexec_fn=small_files,
                              text=True, capture_output=True)
        self.assertIn(done.returncode, (DATA, CHECKPOINT), done)
        self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)

    def test_training_outlives_its_console(self):
        run = self.folder / "run"
        process = subprocess.Popen([binary(), "train", "--config", self.config(run={"steps": 40}), "--run-dir", run], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        process.stdout.readline()
        process.stdout.close()
        self.assertEqual(process.wait(timeout=TIMEOUT_S), OK)
        self.assertEqual(len(records(run, "train")), 40)
        process.stderr.close()


class Outputs(Sandbox):
    def test_only_files_are_replaced(self):
        curve = "step,tokens,loss\n" + "".join(f"{i},{10 * i},{3 - 0.01 * i}\n" for i in range(1, 60))
        for name in ("a.csv", "b.csv"):
            (self.folder / name).write_text(curve)
        os.mkfifo(self.folder / "pipe")
        result = octet("compare", "a.csv", "b.csv", "--out", "pipe", cwd=self.folder)
        self.assertEqual(result.rc, CONFIG, result)
        self.assertIn("pipe", result.stderr)
        self.assertTrue(stat.S_ISFIFO(os.stat(self.folder / "pipe").st_mode))
        (self.folder / "target.html").write_text("old")
        (self.folder / "link.html").symlink_to("target.html")
        self.assertEqual(octet("compare", "a.csv", "b.csv", "--out", "link.html", cwd=self.folder).rc, OK)
        self.assertTrue((self.folder / "link.html").is_symlink())
        self.assertIn("<html", (self.folder / "target.html").read_text())

    def test_curves_without_common_tokens_are_said_to_be_so(self):
        (self.folder / "a.csv").write_text("step,tokens,loss\n" + "".join(f"{i},{1000 * i},2.5\n" for i in range(1, 9)))
        (self.folder / "b.csv").write_text("step,tokens,loss\n" + "".join(f"{i},{i},2.5\n" for i in range(1, 9)))
        result = octet("compare", "b.csv", "--baseline", "a.csv", cwd=self.folder)
        self.assertEqual(result.rc, DATA, result)
        self.assertIn("tokens", result.stderr)

    def test_missing_folders_are_made(self):
        prefix = build_tokens(self.folder, 500, "elsewhere")
        result = octet("data", "build", "--input", self.folder / "elsewhere.txt", "--tokenizer", "byte", "--out", self.folder / "deep" / "er" / "my")
        self.assertEqual(result.rc, OK, result)
        self.assertEqual((self.folder / "deep" / "er" / "my.bin").stat().st_size > 0, prefix.with_suffix(".bin").stat().st_size > 0)

    def test_statistics_of_no_module_are_refused(self):
        self.assert_refused(CONFIG, "log.stats_modules", "nosuch", arguments=["--config", self.config(), "--set", 'log.stats_modules=["nosuch.*"]'])


class Checkpoints(Sandbox):
    def test_names_and_latest_are_checked(self):
        run = self.train("run", ckpt={"interval": 4})
        folder = run / "checkpoints"
        (folder / "LATEST").unlink()
        for command in ("ls", "verify"):
            self.assertIn("LATEST is missing", octet("ckpt", command, run).stdout)
        shutil.move(folder / "step_0000000008", folder / "step_0000000033")
        result = octet("ckpt", "verify", run)
        self.assertEqual(result.rc, VERDICT_NO, result)
        self.assertIn("its name says step 33, its manifest step 8", result.stdout)

    def test_diff_takes_the_checkpoint_a_run_would_resume_from(self):
        run = self.train("run", ckpt={"interval": 4})
        shard = next(checkpoints(run)[-1].glob("*.safetensors"))
        content = bytearray(shard.read_bytes())
        content[-1] ^= 1
        shard.write_bytes(content)
        result = octet("ckpt", "diff", run, run)
        self.assertEqual(result.rc, OK, result)
        self.assertIn("step 4", result.stdout)


if __name__ == "__main__":
    unittest.main()
