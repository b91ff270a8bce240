"""Harness of the command-line tests: runs the program that OCTET_BIN names, in a sandbox folder of its own.

Standard library only. The tests know the program by its contract: flags, exit codes, files of a run directory.
"""

import hashlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
RECIPES = ["fp32", "bf16", "tensorwise", "delayed", "rowwise", "blockwise", "mxfp8", "rowwise_with_gw_hp", "mxfp6", "nvfp4"]
QUANTIZING = ["tensorwise", "delayed", "rowwise", "blockwise", "mxfp8", "rowwise_with_gw_hp", "mxfp6", "nvfp4"]
FILES = SOURCE / "configs" / "recipes"  # recipes that have no name of their own, but a file
PATIENCE = float(os.environ.get("OCTET_TEST_PATIENCE", "1"))  # for programs that are so many times slower (scripts/test.sh asan)
TIMEOUT_S = 120 * PATIENCE

# Exit codes of the contract.
OK, VERDICT_NO, USAGE, CONFIG, DATA, CHECKPOINT, STOPPED = 0, 1, 2, 10, 11, 12, 20


class Result:
    def __init__(self, command, rc, stdout, stderr):
        self.command, self.rc, self.stdout, self.stderr = command, rc, stdout, stderr

    def __str__(self):
        return f"$ {' '.join(self.command)}\nexit code {self.rc}\n--- stdout\n{self.stdout[-2000:]}\n--- stderr\n{self.stderr[-2000:]}"


def binary():
    path = os.environ.get("OCTET_BIN", "")
    if not os.access(path, os.X_OK):
        raise RuntimeError(f"OCTET_BIN must name the octet program, it is '{path}'")
    return path


def octet(*arguments, **options):
    """Runs octet to its end. `options` go to subprocess.run (cwd, preexec_fn, ...)."""
    command = [binary(), *map(str, arguments)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=TIMEOUT_S, text=True, errors="replace", **options)
    return Result(command, done.returncode, done.stdout, done.stderr)


def start(*arguments):
    """Starts octet and returns the process; its output is dropped."""
    return subprocess.Popen([binary(), *map(str, arguments)], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def text(words, seed=1):
    """Deterministic text in short paragraphs (one document each with --split-documents blank-lines)."""
    vocabulary = "the of and to in a is that for it as was with be by on not he his but at are this have an had they you which one".split()
    state, out = seed, []
    for i in range(words):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        out.append(vocabulary[(state >> 33) * len(vocabulary) >> 31])
        out.append("\n\n" if i % 23 == 22 else "\n" if i % 7 == 6 else " ")
    return "".join(out)


def build_tokens(folder, words, name="corpus"):
    """Builds a byte-level token file and returns its prefix."""
    source, prefix = folder / f"{name}.txt", folder / name
    source.write_text(text(words), encoding="ascii")
    result = octet("data", "build", "--input", source, "--tokenizer", "byte", "--split-documents", "blank-lines", "--out", prefix)
    if result.rc != OK:
        raise AssertionError(f"the test corpus could not be built\n{result}")
    return prefix


def tiny_config(prefix, **changes):
    """A config whose step takes milliseconds. `changes` are section dictionaries merged over it."""
    config = {
        "model": {"vocab_size": 257, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2,
                  "num_key_value_heads": 1, "head_dim": 32},
        "data": {"train": [{"path": str(prefix)}], "split": "90,10,0", "seq_len": 32},
        "batch": {"micro": 2, "global": 4},
        "optim": {"lr": 2e-3},
        "sched": {"type": "cosine", "warmup_steps": 2},
        "run": {"steps": 8, "seed": 7, "device": "cpu", "threads": 1},
    }
    for section, values in changes.items():
        config.setdefault(section, {}).update(values)
    return config


def write_json(path, value):
    path.write_text(value if isinstance(value, str) else json.dumps(value, indent=1), encoding="utf-8")
    return path


def steps(run):
    """The training lines of a run by step; the later line of a step counts, and a torn last line does not."""
    out = {}
    lines = (run / "metrics.jsonl").read_bytes().split(b"\n")
    for i, line in enumerate(lines):
        if not line:
            continue
        try:
            record = json.loads(line)
        except ValueError:
            # A kill can tear a line; it is never followed by anything on the same line.
            if i + 1 < len(lines) - 1 and b'"kind"' in line[2:]:
                raise
            continue
        if record["kind"] == "train":
            out[record["step"]] = record
    return out


def records(run, kind):
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [r for r in map(json.loads, lines) if r["kind"] == kind]


def checkpoints(run):
    """Committed checkpoints, oldest first."""
    return sorted(p for p in (run / "checkpoints").glob("step_*") if p.is_dir() and ".tmp" not in p.name and (p / "manifest.json").exists())


def newer(run, saved):
    """Whether the run has committed a checkpoint behind step `saved`."""
    try:
        return any(int(p.name.removeprefix("step_")) > saved for p in checkpoints(run))
    except (FileNotFoundError, ValueError):
        return False  # a directory was renamed while it was being listed


def tensor_bytes(checkpoint):
    """Every shard's content: file name -> hash."""
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(checkpoint.glob("*.safetensors"))}


def last_step(run):
    """The newest step in metrics.jsonl of a run that may be in progress; 0 before the first."""
    try:
        content = (run / "metrics.jsonl").read_bytes()
    except FileNotFoundError:
        return 0
    newest = 0
    for line in content.split(b"\n")[:-1]:
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if record.get("kind") == "train":
            newest = record["step"]
    return newest


def wait_for(condition, process, what, timeout_s=60):
    """Polls until `condition()` holds; fails when the process ends or the time is over."""
    timeout_s *= PATIENCE
    deadline = time.monotonic() + timeout_s
    while not condition():
        if process.poll() is not None and not condition():
            raise AssertionError(f"the run ended (exit code {process.returncode}) before {what}")
        if time.monotonic() > deadline:
            raise AssertionError(f"{timeout_s} s passed before {what}")
        time.sleep(0.001)


def end(process, number=signal.SIGKILL):
    """Sends a signal and returns the exit code."""
    if process.poll() is None:
        process.send_signal(number)
    return process.wait(timeout=TIMEOUT_S)


def snapshot(folder):
    """Every file below a folder: path -> content hash. Lock files are left out: taking a lock is not writing a run."""
    out = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name != ".lock":
            out[str(path.relative_to(folder))] = hashlib.sha256(path.read_bytes()).hexdigest()
        elif path.is_dir():
            out[str(path.relative_to(folder)) + "/"] = ""
    return out


class Sandbox(unittest.TestCase):
    """Each test gets an empty folder `self.folder`; a class gets one corpus, `self.prefix`."""

    words = 6000

    @classmethod
    def setUpClass(cls):
        holder = tempfile.TemporaryDirectory(prefix="octet-cli-")
        cls.addClassCleanup(holder.cleanup)
        cls.class_folder = pathlib.Path(holder.name)
        cls.prefix = build_tokens(cls.class_folder, cls.words)

    def setUp(self):
        holder = tempfile.TemporaryDirectory(prefix="octet-cli-")
        self.addCleanup(holder.cleanup)
        self.folder = pathlib.Path(holder.name)

    def config(self, **changes):
        """Writes a tiny config into the sandbox and returns its path."""
        return write_json(self.folder / "config.json", tiny_config(self.prefix, **changes))

    def train(self, name, *arguments, **changes):
        """A run that must succeed; returns its directory."""
        run = self.folder / name
        result = octet("train", "--config", self.config(**changes), "--run-dir", run, *arguments)
        self.assertEqual(result.rc, OK, result)
        return run

    def recipe_flags(self, recipe):
        return ["--fp8-recipe", recipe] if recipe in RECIPES else ["--config", FILES / f"{recipe}.json"]

    def assert_one_line(self, result, code, *fragments):
        """The contract of an error: its exit code, one line on stderr that holds `fragments`, nothing before it on stdout."""
        self.assertEqual(result.rc, code, result)
        lines = result.stderr.splitlines()
        self.assertEqual(len(lines), 1, f"one line was expected on stderr\n{result}")
        self.assertTrue(lines[0].startswith("octet: error: "), result)
        self.assertEqual(result.stdout, "", f"inputs are checked before anything is printed\n{result}")
        for fragment in fragments:
            self.assertIn(fragment, lines[0])

    def assert_refused(self, code, *fragments, arguments, run="run"):
        """`octet train` with a bad input: one line, and the sandbox is as it was."""
        run = self.folder / run
        before = snapshot(self.folder)
        result = octet("train", *arguments, "--run-dir", run)
        self.assert_one_line(result, code, *fragments)
        self.assertEqual(snapshot(self.folder), before, f"a refused run wrote something\n{result}")

    def assert_stops_change_nothing(self, straight, count, **settings):
        """kill -9 behind (nearly) every step of a run like `straight`, which saves after each: the same training. Returns the stopped run."""
        stopped, stops = self.folder / "stopped", 0
        while last_step(stopped) < count:
            saved = len(checkpoints(stopped)) and int(checkpoints(stopped)[-1].name.removeprefix("step_"))
            process = start("train", "--config", self.config(**settings), "--run-dir", stopped, "--resume", "auto")
            self.addCleanup(end, process)
            wait_for(lambda: newer(stopped, saved) or process.poll() is not None, process, "the next checkpoint")
            end(process)
            stops += 1
            self.assertLessEqual(stops, count, "a start made no progress")
        self.assertGreaterEqual(stops, 5, "too few stops to mean anything")
        result = octet("train", "--config", self.config(**settings), "--run-dir", stopped, "--resume", "auto")
        self.assertEqual(result.rc, OK, result)
        self.assert_same_training(straight, stopped, count)
        return stopped

    def assert_same_training(self, left, right, count):
        """Losses, gradient norms and final tensors of two runs are the same bits."""
        a, b = steps(left), steps(right)
        self.assertEqual(sorted(a), list(range(1, count + 1)))
        self.assertEqual(sorted(b), list(range(1, count + 1)))
        for step in a:
            for key in ("loss", "grad_norm", "lr", "tokens"):
                self.assertEqual(a[step][key], b[step][key], f"{key} of step {step}")
        ends = checkpoints(left)[-1], checkpoints(right)[-1]
        self.assertEqual(ends[0].name, ends[1].name)
        self.assertIn(f"{count:010d}", ends[0].name)
        tensors = tensor_bytes(ends[0])
        self.assertTrue(tensors)
        self.assertEqual(tensors, tensor_bytes(ends[1]))


def copy_run(source, target):
    shutil.copytree(source, target)
    (target / ".lock").unlink(missing_ok=True)
    return target
