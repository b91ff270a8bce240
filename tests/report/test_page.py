"""The comparison report in headless Chromium: it renders without a complaint, its controls work by mouse and by keys, it can be read
without script, in both schemes, by a screen reader, on narrow and wide windows."""

import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

import browser
import runs

PLOT = "#fig-loss .plot"
LONG_STEPS = 6000


def compare(out, paths, twins=(), *more):
    command = [os.environ["OCTET_BIN"], "compare", *map(str, paths), "--out", str(out), *more]
    for twin in twins:
        command += ["--twin", str(twin)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60 * float(os.environ.get("OCTET_TEST_PATIENCE", "1")))
    if done.returncode != 0:
        raise AssertionError(f"{command}\n{done.stdout}\n{done.stderr}")
    return out


class Page(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="octet-report-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)
        cls.paths, cls.twins = runs.example(cls.folder)
        cls.report = compare(cls.folder / "report.html", cls.paths, cls.twins)
        cls.browser = browser.Browser()
        cls.addClassCleanup(cls.browser.close)

    def setUp(self):
        self.page = self.browser
        self.page.complaints.clear()
        self.page.scheme("light")
        self.page.size(1280)
        self.page.open(self.report)

    def tearDown(self):
        self.assertEqual(self.page.complaints, [])

    def js(self, expression):
        return self.page.js(expression)

    def domain(self, plot=PLOT):
        return self.js(f"[Number(document.querySelector('{plot}').dataset.xMin), Number(document.querySelector('{plot}').dataset.xMax)]")

    def path(self, plot=PLOT, line=1):
        return self.js(f"document.querySelectorAll('{plot} g.line > path')[{line}].getAttribute('d')")

    # --- what is shown ---------------------------------------------------------------------------------------------------------

    def test_shows_every_part(self):
        self.assertEqual(self.js("document.documentElement.dataset.ready"), "true")
        self.assertEqual(self.js("[...document.querySelectorAll('main > section')].map((s) => s.id)"),
                         ["verdict", "notes", "curves", "health", "speed", "pairs", "quantized", "config", "events", "method"])
        self.assertEqual(self.js("[...document.querySelectorAll('figure[data-chart]')].map((f) => f.dataset.chart)"), ["loss", "gap", "grad-norm", "throughput", "lr"])
        self.assertEqual(self.js("[...document.querySelectorAll('figure[data-chart] .plot g.line > path')].filter((p) => p.getAttribute('d').length < 100).length"), 0)
        self.assertRegex(self.js("document.querySelector('#verdict').innerText"), "(?s)1 pass, .*blockwise: pass -- final loss .*harm_e2m1: fail")
        self.assertEqual(self.js(f"document.querySelectorAll('{PLOT} g.line').length"), 5)
        self.assertGreater(self.js(f"document.querySelectorAll('{PLOT} path.valid').length"), 20)
        self.assertGreater(self.js("document.querySelectorAll('#fig-gap .plot path.interval').length"), 2)
        self.assertIn("margin +0.25 %", self.js("document.querySelector('#fig-gap .plot').textContent"))
        self.assertRegex(self.js("document.querySelector('#events').innerText"), r"delayed-s2\s+90\s+nonfinite \(step skipped\)\s+consecutive 1, elements 12, tensor layers.1.mlp.down/dy")
        self.assertIn("precision.wgrad", self.js("document.querySelector('#config').innerText"))
        self.assertEqual(self.js("document.querySelectorAll('#speed tbody tr').length"), len(self.paths) + len(self.twins))

    def test_names_are_text(self):
        for run in (runs.HOSTILE.replace("\u202e", ""),):
            self.assertIn(run[:20], self.js("document.querySelector('#verdict').innerText"))
        self.assertEqual(self.js("document.querySelectorAll('main img, main script').length"), 0)
        source = self.report.read_text()
        self.assertEqual(source.count("<script"), 2)
        self.assertEqual(source.count("</script"), 2)
        self.assertEqual(self.js("document.scripts.length"), 2)

    def test_without_script_the_essentials_remain(self):
        self.page.open(self.report, script=False)
        self.page.call("Emulation.setScriptExecutionDisabled", value=False)
        shown = "(e) => e.getClientRects().length > 0"
        self.assertEqual(self.js(f"[...document.querySelectorAll('figure[data-chart] .static svg')].filter({shown}).length"), 5)
        self.assertGreater(self.js(f"[...document.querySelectorAll('table')].filter({shown}).length"), 5)
        self.assertEqual(self.js(f"[...document.querySelectorAll('button, input, select')].filter({shown}).length"), 0)
        self.assertIn("underflow", self.js("document.querySelector('#health').innerText"))

    # --- line charts -------------------------------------------------------------------------------------------------------------

    def test_drag_zooms_and_double_click_resets(self):
        whole, before = self.domain(), self.path()
        left, top, width, height = self.page.box(PLOT)
        self.page.mouse("mousePressed", left + 0.4 * width, top + height / 2, button="left", clickCount=1)
        self.page.mouse("mouseMoved", left + 0.7 * width, top + height / 2, button="left", buttons=1)
        self.page.mouse("mouseReleased", left + 0.7 * width, top + height / 2, button="left", clickCount=1)
        self.page.settle()
        zoomed = self.domain()
        self.assertGreater(zoomed[0], whole[0])
        self.assertLess(zoomed[1], whole[1])
        self.assertAlmostEqual((zoomed[1] - zoomed[0]) / (whole[1] - whole[0]), 0.3 * width / (width - 80), delta=0.02)
        self.assertNotEqual(self.path(), before)
        self.assertEqual(self.domain("#fig-gap .plot"), zoomed)
        for count in (1, 2):
            self.page.mouse("mousePressed", left + width / 2, top + height / 2, button="left", clickCount=count)
            self.page.mouse("mouseReleased", left + width / 2, top + height / 2, button="left", clickCount=count)
        self.page.settle()
        self.assertEqual(self.domain(), whole)
        self.assertEqual(self.path(), before)

    def test_wheel_zooms_a_focused_chart_only(self):
        whole = self.domain()
        left, top, width, height = self.page.box(PLOT)
        self.js(f"document.querySelector('{PLOT}').focus({{preventScroll: true}})")
        self.page.mouse("mouseWheel", left + width / 2, top + height / 2, deltaX=0, deltaY=-120)
        self.page.settle()
        zoomed = self.domain()
        self.assertLess(zoomed[1] - zoomed[0], 0.9 * (whole[1] - whole[0]))
        self.page.click("#reset")
        self.assertEqual(self.domain(), whole)
        left, top, width, height = self.page.box(PLOT)
        self.page.mouse("mouseWheel", left + width / 2, top + height / 2, deltaX=0, deltaY=-120)
        self.page.settle()
        self.assertEqual(self.domain(), whole)

    def test_keys_move_zoom_pan_and_reset(self):
        whole = self.domain()
        self.page.box(PLOT)
        self.js(f"document.querySelector('{PLOT}').focus()")
        self.page.key("ArrowRight")
        self.page.key("ArrowRight")
        self.js("new Promise((done) => setTimeout(done, 200))")
        spoken = self.js("document.querySelector('#announce').textContent")
        self.assertRegex(spoken, r"^Loss at [\d.]+K tokens: .*blockwise [\d.]+")
        self.assertEqual(self.js(f"document.querySelectorAll('{PLOT} .cursor line').length"), 1)
        self.page.key("ArrowDown")
        self.js("new Promise((done) => setTimeout(done, 200))")
        self.assertEqual(self.js("document.querySelector('#announce').textContent").count(","), 0)
        self.page.key("+")
        self.page.settle()
        zoomed = self.domain()
        self.assertAlmostEqual((zoomed[1] - zoomed[0]) / (whole[1] - whole[0]), 0.7, delta=0.01)
        self.page.key("ArrowRight", shift=True)
        self.page.settle()
        self.assertGreater(self.domain()[0], zoomed[0])
        self.page.key("-")
        self.page.key("Escape")
        self.page.settle()
        self.assertEqual(self.domain(), whole)

    def test_hover_shows_values(self):
        left, top, width, height = self.page.box(PLOT)
        self.page.mouse("mouseMoved", left + 0.6 * width, top + height / 2)
        self.page.settle()
        self.assertFalse(self.js("document.querySelector('#fig-loss .tip').hidden"))
        self.assertRegex(self.js("document.querySelector('#fig-loss .tip').innerText"), r"(?s)K tokens.*bf16 \(baseline\)\s+\d\.\d+")
        tip, plot = (self.js(f"(() => {{ const b = document.querySelector('{e}').getBoundingClientRect(); return [b.left, b.top, b.right, b.bottom]; }})()") for e in ("#fig-loss .tip", PLOT))
        self.assertTrue(plot[0] <= tip[0] and plot[1] <= tip[1] and tip[2] <= plot[2] and tip[3] <= plot[3], (tip, plot))
        self.page.mouse("mouseMoved", 2, 2)
        self.page.settle()
        self.assertTrue(self.js("document.querySelector('#fig-loss .tip').hidden"))

    def test_smoothing_changes_the_line(self):
        before = self.path()
        self.page.box("#smoothing")
        self.js("document.querySelector('#smoothing').focus()")
        for _ in range(3):
            self.page.key("ArrowLeft")
        self.page.settle()
        self.assertNotEqual(self.path(), before)
        self.assertEqual(self.js("document.querySelector('#smoothing').getAttribute('aria-valuetext')"), self.js("document.querySelector('#smoothing-value').textContent"))

    def test_axes_change(self):
        before, y = self.path(), self.js(f"document.querySelector('{PLOT}').dataset.yLog")
        self.page.click("input[value=steps]")
        self.assertEqual(self.domain()[1], 200)
        self.assertIn("training steps", self.js(f"document.querySelector('{PLOT}').textContent"))
        self.page.click("#logy")
        self.assertNotEqual(self.js(f"document.querySelector('{PLOT}').dataset.yLog"), y)
        self.assertNotEqual(self.path(), before)
        steps = self.path()
        self.page.click("#logx")
        self.assertNotEqual(self.path(), steps)
        self.assertEqual(self.domain(), [1, 200])
        self.assertEqual(self.js("[...document.querySelectorAll('.plot path, .plot text, .plot line')].filter((e) => /NaN|Infinity/.test(e.outerHTML)).length"), 0)

    def test_runs_toggle_by_mouse_and_key(self):
        shown = f"document.querySelectorAll('{PLOT} g.line').length"
        self.page.click("#legend li:nth-child(2) button")
        self.assertEqual(self.js(shown), 4)
        self.assertEqual(self.js("document.querySelector('#legend li:nth-child(2) button').getAttribute('aria-pressed')"), "false")
        self.js("document.querySelector('#legend li:nth-child(2) button').focus()")
        self.page.key(" ")
        self.page.settle()
        self.assertEqual(self.js(shown), 5)
        self.page.click("#each")
        self.assertEqual(self.js(shown), len(self.paths))
        self.assertEqual(self.js("document.querySelectorAll('#legend button').length"), len(self.paths))
        self.assertGreaterEqual(self.js(f"document.querySelectorAll('{PLOT} path.bad').length"), 2)
        raw = self.js(f"document.querySelectorAll('{PLOT} path.raw').length")
        self.page.click("#raw")
        self.assertGreater(raw, 0)
        self.assertEqual(self.js(f"document.querySelectorAll('{PLOT} path.raw').length"), 0)

    # --- heat map -----------------------------------------------------------------------------------------------------------------

    def cells(self):
        return self.js("[...document.querySelectorAll('.heat-plot > path')].map((p) => p.getAttribute('class') + p.getAttribute('d')).join()")

    def choose(self, selector, value):
        self.js(f"(() => {{ const s = document.querySelector('{selector}'); s.value = '{value}'; s.dispatchEvent(new Event('change')); }})()")
        self.page.settle()

    def test_heat_map_selectors_change_the_cells(self):
        seen, rows = {self.cells()}, "Number(document.querySelector('.heat-plot').dataset.rows)"
        self.assertEqual(self.js(rows), 40)
        for metric in ("saturation", "sqnr_db", "amax", "nonfinite"):
            self.choose("#health-metric", metric)
            seen.add(self.cells())
        self.assertEqual(len(seen), 5)
        self.choose("#health-role", "dy")
        self.assertEqual(self.js(rows), 16)
        self.choose("#health-image", "col")
        self.assertEqual(self.js(rows), 8)
        self.choose("#health-run", "1")
        self.assertNotIn(self.cells(), seen)
        self.choose("#health-metric", "sqnr_db")
        self.assertRegex(self.js("document.querySelector('.heat-legend').innerText"), "dB")

    def test_heat_map_by_keys_and_as_a_table(self):
        self.page.box(".heat-plot")
        self.page.click("#health-metric")
        self.page.key("Escape")
        self.js("document.querySelector('.heat-plot').focus()")
        for key in ("ArrowRight", "ArrowRight", "ArrowDown"):
            self.page.key(key)
        self.js("new Promise((done) => setTimeout(done, 200))")
        self.assertRegex(self.js("document.querySelector('#announce').textContent"), r"^layers.0.attn.qkv/x.col \(e4m3\), step 10: underflow [\d.e-]+ %$")
        self.js("document.querySelector('#health-data').open = true")
        self.page.settle()
        self.assertEqual(self.js("document.querySelectorAll('#health-data-table tbody tr').length"), 40)
        self.assertEqual(self.js("document.querySelectorAll('#health-data-table thead th').length"), 13)

    # --- everyone -----------------------------------------------------------------------------------------------------------------

    def test_theme_toggles_and_follows_the_system(self):
        back = "getComputedStyle(document.body).backgroundColor"
        light = self.js(back)
        self.page.click("#theme")
        self.page.click("#theme")
        dark = self.js(back)
        self.assertNotEqual(light, dark)
        self.page.click("#theme")
        self.assertEqual(self.js(back), light)
        self.page.scheme("dark")
        self.assertEqual(self.js(back), dark)

    def test_contrast_in_both_schemes(self):
        for scheme in ("light", "dark"):
            self.page.scheme(scheme)
            self.assertEqual(self.js(CONTRAST), [], scheme)

    def test_names_roles_and_focus_order(self):
        nodes = self.page.call("Accessibility.getFullAXTree")["nodes"]
        controls = {"button", "checkbox", "radio", "slider", "combobox", "link", "application", "region"}
        value = lambda node, key: (node.get(key) or {}).get("value")
        named = [(value(n, "role"), value(n, "name")) for n in nodes if not n.get("ignored") and value(n, "role") in controls]
        self.assertGreater(len(named), 40)
        self.assertEqual([pair for pair in named if not pair[1]], [])
        self.page.js("document.activeElement.blur()")
        order = []
        for _ in range(60):
            self.page.key("Tab")
            order.append(self.js("(() => { const e = document.activeElement; return e.id || (e.getAttribute('class') || e.tagName) + ':' + (e.textContent || '').slice(0, 12); })()"))
            if self.js("document.activeElement.matches('.heat-plot')"):
                break
        place = {name: i for i, name in reversed(list(enumerate(order)))}
        self.assertEqual(order[0], "skip:Skip to the ")
        self.assertLess(place["theme"], place["smoothing"])
        self.assertLess(place["smoothing"], place["reset"])
        self.assertLess(place["reset"], place["health-run"])
        self.assertTrue(self.js("document.activeElement.matches('.heat-plot')"), order)
        self.assertEqual(self.js("getComputedStyle(document.activeElement).outlineStyle"), "solid")
        self.assertEqual(self.js("[...document.querySelectorAll('figure[data-chart]')].filter((f) => !f.querySelector('figcaption').textContent.includes('Last values') || !f.querySelector('details table tbody tr')).length"), 0)
        self.assertEqual(self.js("[...document.querySelectorAll('[id]')].map((e) => e.id).filter((id, i, all) => all.indexOf(id) !== i)"), [])

    def test_no_sideways_scrolling(self):
        for width in (360, 1440):
            self.page.size(width)
            self.page.open(self.report)
            self.js("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
            self.page.settle()
            self.assertLessEqual(self.js("document.documentElement.scrollWidth"), width)
            self.assertEqual(self.js("[...document.querySelectorAll('h1, h2, p, li, button, select, figure, .controls, .plot')].filter((e) => e.getClientRects().length && !e.closest('.wide, .unseen') "
                                     f"&& e.getBoundingClientRect().right > {width} + 1).map((e) => e.outerHTML.slice(0, 80))"), [])

    def test_many_steps_stay_usable(self):
        folder = self.folder / "long"
        long = [runs.write_run(folder, "bf16", 1, LONG_STEPS), runs.write_run(folder, "blockwise", 1, LONG_STEPS, end_gap=0.1, bad_steps=(3777,))]
        report = compare(self.folder / "long.html", long)
        self.assertLess(report.stat().st_size, 1_500_000)
        self.page.open(report)
        self.assertIn("neighbouring steps are pooled", self.js("document.querySelector('#curves').innerText"))
        run = self.js("(() => { const r = JSON.parse(document.querySelector('#octet-data').textContent).runs[1]; return {n: r.step.length, low: Math.min(...r.loss.low), high: Math.max(...r.loss.high), bad: r.bad}; })()")
        losses = [line["loss"] for line in map(json.loads, (long[1] / "metrics.jsonl").read_text().splitlines()) if line["kind"] == "train" and line["loss"] is not None]
        self.assertEqual(run["n"], 2000)
        self.assertAlmostEqual(run["low"], min(losses), delta=1e-5)
        self.assertAlmostEqual(run["high"], max(losses), delta=1e-5)
        self.assertEqual(run["bad"], [3777])
        took = self.js("(() => { const s = document.querySelector('#smoothing'), t = performance.now(); s.value = 0; s.dispatchEvent(new Event('input')); return performance.now() - t; })()")
        self.assertLess(took, 1000)


# Texts whose contrast with what is behind them is below WCAG AA (4.5:1, large ones 3:1), and lines below 3:1.
CONTRAST = r"""(() => {
  const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
  const rgb = (color) => { canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = color; canvas.fillRect(0, 0, 1, 1); return [...canvas.getImageData(0, 0, 1, 1).data]; };
  const light = ([r, g, b]) => [r, g, b].map((v) => v / 255).map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4).reduce((s, v, i) => s + v * [0.2126, 0.7152, 0.0722][i], 0);
  const ratio = (a, b) => { const [x, y] = [light(a), light(b)].sort((p, q) => q - p); return (x + 0.05) / (y + 0.05); };
  const behind = (e) => { for (; e; e = e.parentElement) { const c = rgb(getComputedStyle(e).backgroundColor); if (c[3] === 255) return c; } return [255, 255, 255, 255]; };
  const bad = new Set();
  for (const e of document.querySelectorAll('body *')) {
    if (!e.getClientRects().length) continue;
    const style = getComputedStyle(e), inSvg = e instanceof SVGElement, text = [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
    if (text && !e.closest('.unseen, script, style, option, title, desc')) {
      const need = parseFloat(style.fontSize) >= 24 ? 3 : 4.5, got = ratio(rgb(inSvg ? style.fill : style.color), behind(inSvg ? e.closest('svg').parentElement : e));
      if (got < need) bad.add(`${e.tagName} ${e.getAttribute('class')} ${e.textContent.slice(0, 30)} ${got.toFixed(2)}`);
    }
    if (inSvg && e.closest('g.line') && style.stroke !== 'none') {
      const got = ratio(rgb(style.stroke), behind(e.closest('svg').parentElement));
      if (got < 3) bad.add(`line ${e.parentElement.getAttribute('class')} ${got.toFixed(2)}`);
    }
  }
  return [...bad];
})()"""


if __name__ == "__main__":
    unittest.main()
