// Shared by the page's scripts: elements, numbers, ticks, smoothing. Text enters the page as text nodes and attributes only.

const data = JSON.parse(document.getElementById('octet-data').textContent);
const SVG_NAMESPACE = 'http://www.w3.org/2000/svg';
const SERIES_COLOURS = 8, DASHES = 5;  // as svg.cpp

function make(name, attributes, ...children) { return fill(document.createElement(name), attributes, children); }
function draw(name, attributes, ...children) { return fill(document.createElementNS(SVG_NAMESPACE, name), attributes, children); }

function fill(element, attributes, children) {
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value === true) element.setAttribute(key, '');
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(key, String(value));
  }
  element.append(...children);
  return element;
}

const byId = (id) => document.getElementById(id);

function seriesClasses(series) {
  return series === 0 ? 's0 d0' : `s${1 + (series - 1) % SERIES_COLOURS} d${(series - 1) % DASHES}`;
}

// --- numbers -------------------------------------------------------------------------------------------------------------------

const known = (v) => v !== null && v !== undefined && Number.isFinite(v);

function shortNumber(v) {
  if (!known(v)) return '-';
  if (v === 0) return '0';
  const size = Math.abs(v);
  if (size < 1e-3) return Number(v.toPrecision(3)).toExponential();
  return size >= 1e4 ? countText(v) : String(Number(v.toPrecision(4)));
}

function countText(v) {
  for (const [unit, suffix] of [[1e12, 'T'], [1e9, 'G'], [1e6, 'M'], [1e3, 'K']]) {
    if (Math.abs(v) >= unit) return String(Number((v / unit).toPrecision(4))) + suffix;
  }
  return String(Number(v.toPrecision(4)));
}

const percentText = (v) => known(v) ? `${v > 0 ? '+' : ''}${v.toFixed(3)} %` : '-';

// --- ticks -----------------------------------------------------------------------------------------------------------------------

// Round numbers (1, 2, 2.5 or 5 times a power of ten) inside [low, high].
function niceTicks(low, high, count) {
  if (!(high > low) || !Number.isFinite(high - low)) return [];
  const raw = (high - low) / count, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((f) => f * power).find((s) => s >= raw * (1 - 1e-9));
  const ticks = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + 1e-9 * step && ticks.length <= count + 1; ++i) ticks.push(i * step);
  return ticks;
}

// Powers of ten, with 2 and 5 between them where there is room; where less than a decade is seen, round numbers.
function logTicks(low, high, count) {
  if (!(low > 0) || !(high > low)) return [];
  const decades = Math.log10(high / low);
  if (decades < 1) return niceTicks(low, high, count);
  const factors = decades * 3 <= count ? [1, 2, 5] : [1], every = Math.max(1, Math.ceil(decades / count));
  const ticks = [];
  for (let p = Math.floor(Math.log10(low)); p <= Math.log10(high); ++p) {
    for (const f of factors) {
      const tick = f * 10 ** p;
      if (tick >= low && tick <= high && p % every === 0) ticks.push(tick);
    }
  }
  return ticks;
}

// A map from [low, high] to [from, to], linear or logarithmic.
function makeScale(low, high, from, to, log) {
  const f = log ? Math.log10 : (v) => v, a = f(low), b = f(high), g = log ? (v) => 10 ** v : (v) => v;
  const scale = (v) => log && !(v > 0) ? NaN : from + (f(v) - a) / (b - a) * (to - from);
  scale.invert = (p) => g(a + (p - from) / (to - from) * (b - a));
  scale.ticks = (count) => log ? logTicks(low, high, count) : niceTicks(low, high, count);
  return scale;
}

// --- curves --------------------------------------------------------------------------------------------------------------------

// First index with xs[index] >= x.
function lowerBound(xs, x) {
  let low = 0, high = xs.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (xs[middle] < x) low = middle + 1; else high = middle;
  }
  return low;
}

function interpolate(xs, ys, x) {
  const i = lowerBound(xs, x);
  if (i === xs.length) return null;
  if (xs[i] === x) return ys[i];
  if (i === 0 || !known(ys[i - 1]) || !known(ys[i])) return null;
  return ys[i - 1] + (ys[i] - ys[i - 1]) * (x - xs[i - 1]) / (xs[i] - xs[i - 1]);
}

// Mean over the window of steps around each point, cut at the ends; null where more than half of them have no value. `lines`: steps in
// each point. Around it, because a mean of the steps before would lag behind a falling loss by half the window.
function centredMean(values, lines, window) {
  const sum = [0], finite = [0], steps = [0], n = values.length, half = (window - 1) / 2;
  values.forEach((value, i) => {
    const weight = lines ? lines[i] : 1, has = known(value);
    sum.push(sum[i] + (has ? weight * value : 0));
    finite.push(finite[i] + (has ? weight : 0));
    steps.push(steps[i] + weight);
  });
  let begin = 0, end = 0;
  return values.map((_, i) => {
    const middle = (steps[i] + steps[i + 1]) / 2;
    while (begin < i && middle - (steps[begin] + steps[begin + 1]) / 2 > half) ++begin;
    end = Math.max(end, i + 1);
    while (end < n && (steps[end] + steps[end + 1]) / 2 - middle <= half) ++end;
    const weight = finite[end] - finite[begin];
    return weight > 0 && 2 * weight >= steps[end] - steps[begin] ? (sum[end] - sum[begin]) / weight : null;
  });
}

function announce(text) {
  clearTimeout(announce.timer);  // the last of a burst of keys is read
  announce.timer = setTimeout(() => { byId('announce').textContent = text; }, 150);
}
