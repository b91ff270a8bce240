"""Makes scripts/ and tests/golden importable, wherever the tests are started from."""
import os
import sys

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
GOLDEN = os.path.join(ROOT, "tests", "golden")

for folder in (GOLDEN, os.path.join(ROOT, "scripts")):
    if folder not in sys.path:
        sys.path.insert(0, folder)
