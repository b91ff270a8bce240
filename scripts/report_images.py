#!/usr/bin/env python3
"""Makes the pictures of docs/images/ from the synthetic runs of tests/report: OCTET_BIN=build/release/octet scripts/report_images.py"""

import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "report"))
import browser  # noqa: E402
import runs  # noqa: E402

MAX_BYTES = 300_000  # of all pictures


def main():
    octet = os.environ.get("OCTET_BIN", str(ROOT / "build" / "release" / "octet"))
    images = ROOT / "docs" / "images"
    images.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="octet-images-") as folder:
        report = pathlib.Path(folder) / "report.html"
        paths, twins = runs.example(folder, hostile=False)
        subprocess.run([octet, "compare", *map(str, paths), "--twin", str(twins[0]), "--out", str(report)], check=True, stdout=subprocess.DEVNULL)
        page = browser.Browser()
        try:
            page.scheme("light")
            page.size(1000)
            page.open(report)
            page.screenshot(images / "report-light.png", "header", "#verdict ul", ".forest-figure")
            page.js("document.querySelector('#health-role').value = 'dy'; document.querySelector('#health-role').dispatchEvent(new Event('change'))")
            page.settle()
            page.screenshot(images / "report-health.png", "#health-controls", ".heat-scroll")
            page.scheme("dark")
            page.js("document.querySelector('#fig-loss .plot').focus({preventScroll: true})")
            for key in ("Home", *["ArrowRight"] * 12):
                page.key(key)
            page.settle()
            page.screenshot(images / "report-dark.png", "#legend", "#controls", "#fig-loss .live-plot", padding=7)
            if page.complaints:
                raise SystemExit(f"the page complains: {page.complaints}")
        finally:
            page.close()
    total = sum(path.stat().st_size for path in images.glob("report-*.png"))
    print(f"docs/images: {total} bytes")
    return 0 if total < MAX_BYTES else 1


if __name__ == "__main__":
    sys.exit(main())
