// Wires the page: which lines there are, the controls, the legend, the theme.

const shownRuns = data.runs.map((run, index) => ({...run, index})).filter((run) => !run.twin);
const runsOfGroup = data.groups.map((group, g) => shownRuns.filter((run) => run.group === g));
const groupLabel = (g) => data.groups[g].label + (g === 0 ? ' (baseline)' : '');

const xOf = (run) => view.unit === 'tokens' ? run.tokens : run.step;
const validX = (run) => view.unit === 'tokens' ? run.valid.tokens : run.valid.step;

// Steps without a value, at the place of the bucket that holds them.
function badX(run) {
  return [...new Set(run.bad.map((step) => xOf(run)[Math.min(lowerBound(run.step, step), run.step.length - 1)]))].filter(known);
}

// Speeds without the first steps, which pay for page faults and cold caches (at least one, at most ten, a tenth of the run).
function withoutWarmUp(run, field, values) {
  if (field !== 'tokens_per_s') return values;
  const skip = Math.max(1, Math.min(10, Math.floor(run.steps / 10)));
  let lines = 0;
  return values.map((v, i) => { const before = lines; lines += run.lines ? run.lines[i] : 1; return before < skip ? null : v; });
}

function fieldOf(run, field) { return Array.isArray(run[field]) ? {mean: run[field]} : run[field]; }

function runLine(run, field, label, key) {
  const f = fieldOf(run, field), line = {key, label, series: run.group, x: xOf(run)};
  const smooth = field !== 'lr';
  line.y = smooth ? centredMean(withoutWarmUp(run, field, f.mean), run.lines, view.window) : f.mean;
  if (f.low) [line.low, line.high] = [f.low, f.high];
  else if (smooth && view.window > 1) line.raw = withoutWarmUp(run, field, f.mean);
  if (field === 'loss') {
    line.valid = {x: validX(run), y: run.valid.loss};
    line.bad = badX(run);
  }
  return line;
}

// The mean over a group's runs at the points of its shortest, with the range of the runs' raw values.
function meanLine(runs, field, label, key) {
  if (runs.length === 1) return runLine(runs[0], field, label, key);
  const lines = runs.map((run) => runLine(run, field, label, key));
  const base = lines.reduce((a, b) => (b.x[b.x.length - 1] ?? 0) < (a.x[a.x.length - 1] ?? 0) ? b : a);
  const at = (line, ys, i) => line.x[i] === base.x[i] ? ys[i] : interpolate(line.x, ys, base.x[i]);
  const combine = (pick, how) => base.x.map((_, i) => {
    const values = lines.map((line, k) => at(line, pick(line, k), i)).filter(known);
    return values.length === lines.length ? how(values) : null;
  });
  const mean = (values) => values.reduce((a, b) => a + b, 0) / values.length;
  const line = {key, label, series: runs[0].group, x: base.x, y: combine((l) => l.y, mean), bad: [...new Set(lines.flatMap((l) => l.bad || []))]};
  if (field !== 'lr') {
    const raw = (k) => withoutWarmUp(runs[k], field, fieldOf(runs[k], field).mean);
    line.low = combine((l, k) => l.low || raw(k), (v) => Math.min(...v));
    line.high = combine((l, k) => l.high || raw(k), (v) => Math.max(...v));
  }
  if (field === 'loss') {
    const x = lines[0].valid.x.filter((v) => lines.every((l) => l.valid.x.includes(v)));
    line.valid = {x, y: x.map((v) => { const ys = lines.map((l) => l.valid.y[l.valid.x.indexOf(v)]); return ys.every(known) ? mean(ys) : null; })};
  }
  return line;
}

function runLines(field) {
  if (view.each) return shownRuns.map((run) => runLine(run, field, run.name, `run-${run.index}`));
  return runsOfGroup.map((runs, g) => [runs, g]).filter(([runs]) => runs.length).map(([runs, g]) => meanLine(runs, field, groupLabel(g), `group-${g}`));
}

// The step of a count of tokens; in proportion before the first point of a pooled run.
function stepAt(run, tokens) {
  const last = run.step.length - 1;
  if (tokens < run.tokens[0]) return run.step[0] * tokens / run.tokens[0];
  return tokens >= run.tokens[last] ? run.step[last] : interpolate(run.tokens, run.step, tokens);
}

// Gaps are of pairs: they are drawn by group, smoothed as the verdict's method says.
function gapLines() {
  const out = [];
  data.groups.forEach((group, g) => {
    if (!group.gap || !runsOfGroup[g].length) return;
    const run = runsOfGroup[g][0], x = view.unit === 'tokens' ? group.gap.tokens : group.gap.tokens.map((t) => stepAt(run, t));
    const line = {key: `group-${g}`, label: group.label, series: g, x, y: group.gap.mean};
    if (group.gap.lower) Object.assign(line, {low: group.gap.lower, high: group.gap.upper, interval: true});
    out.push(line);
  });
  if (view.each) for (const line of out) if (runsOfGroup[line.series].every((run) => view.hidden.has(`run-${run.index}`))) line.key = 'run-hidden';
  return out;
}

const SPECS = {
  loss: {title: 'Loss', yLabel: 'loss (nats per token)', build: () => runLines('loss')},
  gap: {title: `Gap to ${data.groups[0].label}`, yLabel: 'loss difference (%)', build: gapLines, percent: true, zero: true, linearOnly: true,
        guide: data.margin, band: data.twin_band},
  'grad-norm': {title: 'Gradient norm', yLabel: 'gradient norm', build: () => runLines('grad_norm')},
  throughput: {title: 'Speed', yLabel: 'tokens/s', build: () => runLines('tokens_per_s'), zero: true, linearOnly: true},
  lr: {title: 'Learning rate', yLabel: 'learning rate', build: () => runLines('lr'), zero: true, small: true},
};

// --- controls ------------------------------------------------------------------------------------------------------------------

function buildLegend() {
  const entries = view.each ? shownRuns.map((run) => [`run-${run.index}`, run.name, run.group])
                            : data.groups.map((group, g) => [`group-${g}`, groupLabel(g), g]).filter(([, , g]) => runsOfGroup[g].length);
  byId('legend').replaceChildren(...entries.map(([key, label, series]) => {
    const button = make('button', {type: 'button', title: `Show or hide ${label}`, 'aria-pressed': String(!view.hidden.has(key)), 'data-key': key}, swatch(series), make('span', {class: 'name'}, label));
    button.addEventListener('click', () => {
      if (!view.hidden.delete(key)) view.hidden.add(key);
      button.setAttribute('aria-pressed', String(!view.hidden.has(key)));
      for (const chart of charts) if (chart.spec.build === gapLines) chart.rebuild();
      renderAll();
    });
    return make('li', {}, button);
  }));
}

function smoothingWindows() {
  const longest = Math.max(1, ...shownRuns.map((run) => run.steps)), usual = Math.max(1, ...shownRuns.map((run) => run.window));
  const windows = new Set([1, usual]);
  for (let power = 1; power <= longest; power *= 10) for (const f of [1, 2, 5]) if (f * power <= longest / 2) windows.add(f * power);
  return {windows: [...windows].sort((a, b) => a - b), usual};
}

function setUpControls() {
  const {windows, usual} = smoothingWindows(), slider = byId('smoothing');
  const showWindow = () => {
    view.window = windows[Number(slider.value)];
    const text = view.window === 1 ? 'none' : `${view.window} steps`;
    byId('smoothing-value').textContent = text;
    slider.setAttribute('aria-valuetext', text);
  };
  slider.max = windows.length - 1;
  slider.value = windows.indexOf(usual);
  showWindow();
  slider.addEventListener('input', () => { showWindow(); rebuildAll(); });
  for (const radio of document.querySelectorAll('input[name=xunit]')) {
    radio.checked = radio.value === view.unit;
    radio.addEventListener('change', () => { view.unit = radio.value; view.domain = view.cursor = null; rebuildAll(); });
  }
  const check = (id, key, more) => {
    const box = byId(id);
    box.checked = view[key];
    box.addEventListener('change', () => { view[key] = box.checked; if (more) more(); rebuildAll(); });
  };
  check('logx', 'logX', () => { view.domain = null; });
  check('logy', 'logY');
  check('raw', 'raw');
  check('each', 'each', buildLegend);
  byId('each-label').hidden = runsOfGroup.every((runs) => runs.length < 2);
  byId('reset').addEventListener('click', () => { view.domain = null; renderAll(); announce('Zoom reset'); });
  byId('controls').hidden = byId('chart-help').hidden = false;
}

function setUpTheme() {
  const button = byId('theme'), names = ['system', 'light', 'dark'];
  let at = 0;
  button.hidden = false;
  button.addEventListener('click', () => {
    at = (at + 1) % names.length;
    if (at === 0) delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = names[at];
    button.textContent = `Theme: ${names[at]}`;
    announce(`Theme: ${names[at]}`);
  });
}

setUpTheme();
if (shownRuns.length) {
  setUpControls();
  buildLegend();
  for (const figure of document.querySelectorAll('figure[data-chart]')) {
    const id = figure.dataset.chart;
    if (Object.hasOwn(SPECS, id)) new LineChart(figure, {id, ...SPECS[id]});
  }
  renderAll();
}
if (data.health.length) new HeatMap();
document.documentElement.dataset.ready = 'true';
