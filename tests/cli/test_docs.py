"""Every command in the documentation works as written.

A code block of README.md or docs/ that contains a command is marked by an HTML comment on a line before it:
  <!-- run -->                     the test runs it; blocks of a page run in order, in one shell
  <!-- run: outside the test -->   it needs what a test has not (root, an hour, a network); the quickstart and the tutorial's first step
  <!-- usage -->                   a synopsis with placeholders
The test's folder has configs/, scripts/ and docs/ of the clone, my.txt (these pages and the Python sources), data/my (bytes), runs/my-bf16 and runs/my-blockwise. `octet train` is
given few and short steps behind its own arguments; everything else runs as it stands.
"""

import os
import re
import shutil
import subprocess
import unittest

from octet_cli import OK, PATIENCE, SOURCE, Sandbox

PAGES = [SOURCE / "README.md", *sorted((SOURCE / "docs").rglob("*.md"))]
COMMAND = re.compile(r"^ *(?:\$octet|octet|build/release/octet|scripts/\w+\.(?:sh|py)|\.venv/bin/python)(?: |$)", re.M)
SMALL = ["run.steps=12", "data.seq_len=64", "batch.micro=2", "batch.global=2", "eval.samples=4", "eval.interval=6", "sched.warmup_steps=1", "ckpt.interval=6"]
WRAPPER = """#!/bin/bash
case $1 in
  train) exec {octet} "$@" --set {small} ;;
  *) exec {octet} "$@" ;;
esac
"""


def blocks(page):
    """(line number, mark or None, code) of each indented code block."""
    lines = page.read_text(encoding="utf-8").split("\n")
    found, mark, i = [], None, 0
    while i < len(lines):
        line = lines[i]
        comment = re.fullmatch(r"<!-- (run|run: outside the test|usage) -->", line.strip())
        if comment:
            mark = comment.group(1)
        elif line.startswith("    ") and (i == 0 or not lines[i - 1].strip()):
            begin = i
            while i < len(lines) and (lines[i].startswith("    ") or not lines[i].strip()):
                i += 1
            code = "\n".join(part[4:] for part in lines[begin:i]).strip("\n")
            found.append((begin + 1, mark, code))
            mark = None
            continue
        elif line.strip():
            mark = None
        i += 1
    return found


class Documentation(Sandbox):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.template = cls.class_folder / "template"
        (cls.template / "build" / "release").mkdir(parents=True)   # a fresh clone has neither data/ nor runs/
        for folder in ("configs", "scripts", "docs", "tests", ".venv"):
            (cls.template / folder).symlink_to(SOURCE / folder)
        # Real text, rich enough for a vocabulary of 4096: the project's own pages and scripts.
        sources = [*PAGES, *sorted(SOURCE.glob("scripts/**/*.py")), *sorted(SOURCE.glob("tests/**/*.py"))]
        (cls.template / "my.txt").write_text("\n\n".join(path.read_text(encoding="utf-8") for path in sources), encoding="utf-8")
        wrapper = cls.template / "build" / "release" / "octet"
        wrapper.write_text(WRAPPER.format(octet=os.environ["OCTET_BIN"], small=" ".join(SMALL)))
        wrapper.chmod(0o755)
        cls.shell(cls.template, "octet data build --input my.txt --tokenizer byte --split-documents blank-lines --out data/my\n" + "\n".join(
            f"octet train --config configs/models/tiny_byte.json configs/runs/quickstart.json --data-path data/my --fp8-recipe {recipe} --run-dir runs/my-{recipe}"
            for recipe in ("bf16", "blockwise")))

    @classmethod
    def shell(cls, home, code):
        path = f"{home / 'build' / 'release'}:{os.environ['PATH']}"
        done = subprocess.run(["bash", "-euo", "pipefail", "-c", code], cwd=home, env={**os.environ, "PATH": path}, text=True, capture_output=True, timeout=300 * PATIENCE)
        if done.returncode != OK:
            raise AssertionError(f"exit code {done.returncode}\n{code}\n--- stdout\n{done.stdout[-3000:]}\n--- stderr\n{done.stderr[-3000:]}")

    def run_page(self, page):
        code = "\n".join(code for _, mark, code in blocks(page) if mark == "run")
        home = self.folder / "home"
        shutil.copytree(self.template, home, symlinks=True)
        # What the page makes itself is not there beforehand.
        for made in set(re.findall(r"--(?:out|run-dir) ((?:data|runs)/my[\w-]*)", code)):
            for path in home.glob(made + "*"):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        self.shell(home, code)

    def test_every_command_is_marked(self):
        unmarked = [f"{page.relative_to(SOURCE)}:{line}" for page in PAGES for line, mark, code in blocks(page) if COMMAND.search(code) and mark is None]
        self.assertEqual(unmarked, [])

    def test_links_lead_somewhere(self):
        dead = []
        for page in PAGES:
            for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
                if not target.startswith(("http://", "https://")) and not (page.parent / target).exists():
                    dead.append(f"{page.relative_to(SOURCE)}: {target}")
        self.assertEqual(dead, [])


def add_page(page):
    name = re.sub(r"\W+", "_", str(page.relative_to(SOURCE)).removesuffix(".md"))
    setattr(Documentation, f"test_page_{name}", lambda self: self.run_page(page))


for _page in PAGES:
    if any(mark == "run" for _, mark, _ in blocks(_page)):
        add_page(_page)


if __name__ == "__main__":
    unittest.main()
