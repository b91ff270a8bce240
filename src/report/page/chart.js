// Line charts: zoom, cursor with values, keys. All charts share one view, so that they show the same part of the runs.

const view = {unit: 'tokens', logX: false, logY: false, raw: true, each: false, window: 1, domain: null, cursor: null, hidden: new Set()};
const charts = [];
const LEFT = 66, RIGHT = 14, TOP = 12, BOTTOM = 46;

function renderAll() { for (const chart of charts) chart.render(); }
function rebuildAll() {
  for (const chart of charts) chart.rebuild();
  renderAll();
}

// A spec has id, title, yLabel, build(view) -> lines, and may have percent, zero, guide, band, linearOnly, small.
// A line: key, label, series, x, y; may have low, high (an area), raw (a faint line), valid {x, y}, bad (x of steps without a value).
class LineChart {
  constructor(figure, spec) {
    this.figure = figure;
    this.spec = spec;
    this.chosen = -1;  // the line that up and down have chosen; -1: all
    this.svg = draw('svg', {class: 'plot', tabindex: 0, role: 'application', 'aria-roledescription': 'interactive line chart',
                            'aria-label': spec.title, 'aria-describedby': `cap-${spec.id} chart-hint`});
    this.tip = make('div', {class: 'tip', 'aria-hidden': 'true', hidden: true});
    this.beyond = make('span', {class: 'soft'});
    this.box = make('div', {class: 'live-plot'}, make('p', {class: 'plot-title'}, make('span', {}, spec.title), this.beyond), this.svg, this.tip);
    figure.prepend(this.box);
    figure.classList.add('live');
    this.listen();
    this.rebuild();
    charts.push(this);
    new ResizeObserver(() => { if (this.box.clientWidth !== this.width) this.render(); }).observe(this.box);
  }

  rebuild() { this.lines = this.spec.build(view); }
  visible() { return this.lines.filter((line) => !view.hidden.has(line.key)); }

  fullDomain() {
    let low = Infinity, high = -Infinity;
    for (const line of this.lines) {
      for (const xs of [line.x, line.valid ? line.valid.x : []]) {
        if (!xs.length) continue;
        low = Math.min(low, xs[0]);
        high = Math.max(high, xs[xs.length - 1]);
      }
    }
    if (!(low <= high)) return [0, 1];
    if (view.logX) return [Math.max(low, 1), Math.max(high, 2)];
    return [low < 0.2 * high ? 0 : low, high > low ? high : high + 1];
  }

  domain() { return view.domain || this.fullDomain(); }

  // Lines that end many margins away would flatten the others: they leave the picture, and a text says so.
  within() {
    const {guide} = this.spec, lines = this.visible();
    if (guide === undefined) return lines;
    const reach = 8 * Math.max(Math.abs(guide), 0.01), last = (line) => Math.abs(line.y.findLast(known) ?? 0);
    const near = lines.filter((line) => last(line) <= reach);
    return near.length ? near : lines;
  }

  range(domain, log) {
    const values = [], areas = [], {zero, guide} = this.spec;
    // The first steps would flatten the rest of the whole view.
    const whole = !view.domain && !log, start = whole ? domain[0] + 0.04 * (domain[1] - domain[0]) : domain[0];
    for (const line of this.within()) {
      const from = Math.max(0, lowerBound(line.x, domain[0]) - 1), to = lowerBound(line.x, domain[1]);
      for (let i = from; i <= to && i < line.x.length; ++i) {
        if (known(line.y[i]) && (!log || line.y[i] > 0) && (line.x[i] >= start || !whole)) values.push(line.y[i]);
        if (line.x[i] < start || !(view.raw || line.interval)) continue;
        for (const v of line.raw ? [line.raw[i]] : line.low ? [line.low[i], line.high[i]] : []) if (known(v) && (!log || v > 0)) areas.push(v);
      }
      for (let i = 0; line.valid && i < line.valid.x.length; ++i) {
        if (line.valid.x[i] >= start && line.valid.x[i] <= domain[1] && known(line.valid.y[i])) values.push(line.valid.y[i]);
      }
    }
    if (!values.length) return log ? [1, 10] : [0, 1];
    values.sort((a, b) => a - b);
    const at = (q) => values[Math.round(q * (values.length - 1))];
    let low = whole ? at(0.002) : values[0], high = whole ? at(0.998) : values[values.length - 1];
    if (areas.length) {  // most of what is faint, but no spike of it, is in the picture too
      areas.sort((a, b) => a - b);
      low = Math.min(low, areas[Math.round(0.03 * (areas.length - 1))]);
      high = Math.max(high, areas[Math.round(0.97 * (areas.length - 1))]);
    }
    if (zero && !log) [low, high] = [Math.min(low, 0), Math.max(high, 0)];
    if (guide !== undefined) [low, high] = [Math.min(low, guide), Math.max(high, guide)];
    if (log) return [low * (low / high) ** 0.05, high * (high / low) ** 0.05].map((v, i) => low === high ? low * (i ? 2 : 0.5) : v);
    const pad = high > low ? 0.08 * (high - low) : Math.max(1e-3, 0.05 * Math.abs(high));
    return [zero && low === 0 ? 0 : low - pad, high + pad];
  }

  render() {
    this.width = this.box.clientWidth;
    if (!this.width) return;
    const w = Math.max(this.width, 240), h = this.height = this.spec.small ? 200 : w < 560 ? 270 : 350;
    const domain = this.domain(), log = view.logY && !this.spec.linearOnly, range = this.range(domain, log);
    this.x = makeScale(domain[0], domain[1], LEFT, w - RIGHT, view.logX);
    this.y = makeScale(range[0], range[1], h - BOTTOM, TOP, log);
    this.w = w;
    const clip = `clip-${this.spec.id}`;
    const layer = draw('g', {'clip-path': `url(#${clip})`});
    for (const part of this.guides()) layer.append(part);
    for (const line of this.visible()) this.drawArea(layer, line);
    for (const line of this.visible()) this.drawLine(layer, line);
    this.cursor = draw('g', {class: 'cursor'});
    this.selection = draw('rect', {class: 'selection', y: TOP, height: h - TOP - BOTTOM, x: 0, width: 0});
    this.svg.replaceChildren(
        draw('clipPath', {id: clip}, draw('rect', {x: LEFT - 4, y: TOP - 4, width: w - LEFT - RIGHT + 8, height: h - TOP - BOTTOM + 8})),
        ...this.axes(), layer, this.selection, this.cursor);
    for (const [key, value] of Object.entries({viewBox: `0 0 ${w} ${h}`, width: w, height: h, 'data-x-min': domain[0], 'data-x-max': domain[1],
                                               'data-y-log': log, 'data-x-log': view.logX, 'data-unit': view.unit})) {
      this.svg.setAttribute(key, String(value));
    }
    this.showCursor(view.cursor, this.hasTip);
  }

  axes() {
    const {w, height: h} = this, out = [], bottom = h - BOTTOM;
    for (const v of this.y.ticks(6)) {
      const y = this.y(v).toFixed(1), text = this.spec.percent ? (Math.abs(v) < 1e-12 ? '0' : `${v > 0 ? '+' : ''}${Number(v.toPrecision(4))}`) : shortNumber(v);
      out.push(draw('line', {class: 'grid', x1: LEFT, x2: w - RIGHT, y1: y, y2: y}),
               draw('text', {class: 'tick', 'text-anchor': 'end', x: LEFT - 8, y: Number(y) + 4}, text));
    }
    for (const v of this.x.ticks(w < 560 ? 4 : 8)) {
      const x = this.x(v).toFixed(1);
      out.push(draw('line', {class: 'axis', x1: x, x2: x, y1: bottom, y2: bottom + 5}),
               draw('text', {class: 'tick', 'text-anchor': 'middle', x, y: bottom + 19}, countText(v)));
    }
    out.push(draw('line', {class: 'axis', x1: LEFT, x2: w - RIGHT, y1: bottom, y2: bottom}),
             draw('text', {class: 'label', 'text-anchor': 'middle', x: (LEFT + w - RIGHT) / 2, y: h - 8}, view.unit === 'tokens' ? 'training tokens' : 'training steps'),
             draw('text', {class: 'label', 'text-anchor': 'middle', transform: `translate(14 ${(TOP + bottom) / 2}) rotate(-90)`}, this.spec.yLabel));
    return out;
  }

  guides() {
    this.beyond.textContent = '';
    const out = [], {band, zero, guide} = this.spec, right = this.w - RIGHT;
    if (known(band)) {
      out.push(draw('rect', {class: 'band', x: LEFT, width: right - LEFT, y: this.y(band), height: this.y(-band) - this.y(band)}));
    }
    if (zero && !view.logY) out.push(draw('line', {class: 'axis', x1: LEFT, x2: right, y1: this.y(0), y2: this.y(0)}));
    if (guide !== undefined) {
      const y = this.y(guide);
      out.push(draw('line', {class: 'guide', x1: LEFT, x2: right, y1: y, y2: y}),
               draw('text', {class: 'tick', 'text-anchor': 'end', x: right - 4, y: y - 5}, `margin ${guide > 0 ? '+' : ''}${guide} %`));
      const near = this.within(), far = this.visible().filter((line) => !near.includes(line));
      if (far.length) {
        const names = far.slice(0, 2).map((line) => `${line.label.slice(0, 24)} ${percentText(line.y.findLast(known))}`).join(', ');
        this.beyond.textContent = `beyond this range: ${names}${far.length > 2 ? ', ...' : ''}`;
      }
    }
    return out;
  }

  // One point beyond each side of the view, so that lines reach its edge.
  path(xs, ys) {
    const from = Math.max(0, lowerBound(xs, this.domain()[0]) - 1), to = Math.min(xs.length - 1, lowerBound(xs, this.domain()[1]));
    let d = '', pen = 'M';
    for (let i = from; i <= to; ++i) {
      const y = known(ys[i]) ? this.y(ys[i]) : NaN;
      if (Number.isFinite(y)) {
        d += `${pen}${this.x(xs[i]).toFixed(1)} ${Math.max(-9999, Math.min(9999, y)).toFixed(1)}`;
        pen = 'L';
      } else {
        pen = 'M';
      }
    }
    return d;
  }

  drawArea(layer, line) {
    const css = seriesClasses(line.series).split(' ')[0];
    if (line.low && (view.raw || line.interval)) {
      let top = [], bottom = [], d = '';
      const flush = () => {
        if (top.length > 1) d += 'M' + top.join('L') + 'L' + bottom.reverse().join('L') + 'Z';
        top = [];
        bottom = [];
      };
      line.x.forEach((x, i) => {
        const [px, a, b] = [this.x(x), this.y(line.high[i]), this.y(line.low[i])];
        if (!known(line.high[i]) || !known(line.low[i]) || !Number.isFinite(px + a + b)) return flush();
        top.push(`${px.toFixed(1)} ${a.toFixed(1)}`);
        bottom.push(`${px.toFixed(1)} ${b.toFixed(1)}`);
      });
      flush();
      layer.append(draw('path', {class: `interval ${css}`, d}));
    }
    if (line.raw && view.raw) layer.append(draw('path', {class: `raw ${css}`, opacity: Math.max(0.1, 0.4 / Math.sqrt(this.visible().length)), d: this.path(line.x, line.raw)}));
  }

  drawLine(layer, line) {
    const group = draw('g', {class: `line ${seriesClasses(line.series)}`, 'data-key': line.key}, draw('path', {d: this.path(line.x, line.y)}));
    layer.append(group);
    const [low, high] = this.domain(), inside = (x) => x >= low && x <= high;
    const css = seriesClasses(line.series).split(' ')[0];
    if (line.valid) {
      line.valid.x.forEach((x, i) => {
        if (inside(x) && known(line.valid.y[i])) layer.append(this.marker(line.series, this.x(x), this.y(line.valid.y[i]), css));
      });
    }
    for (const x of line.bad || []) {
      if (!inside(x)) continue;
      const px = this.x(x), py = this.height - BOTTOM - 7;
      layer.append(draw('path', {class: `bad ${css}`, d: `M${px - 4} ${py - 4}l8 8m0 -8l-8 8`}));
    }
  }

  // Shapes tell the series apart where colours do not.
  marker(series, x, y, css) {
    const shapes = ['M-3 0a3 3 0 1 0 6 0a3 3 0 1 0 -6 0Z', 'M-3 -3h6v6h-6Z', 'M0 -4l4 7h-8Z', 'M0 -4.2l4.2 4.2l-4.2 4.2l-4.2 -4.2Z', 'M0 4l4 -7h-8Z'];
    return draw('path', {class: `valid ${css}`, transform: `translate(${x.toFixed(1)} ${y.toFixed(1)})`, d: shapes[series % shapes.length]});
  }

  // --- cursor -----------------------------------------------------------------------------------------------------------------

  // Values of the visible lines at x, best first; with a chosen line, that alone.
  valuesAt(x) {
    const lines = this.visible(), picked = this.chosen >= 0 && this.chosen < lines.length ? [lines[this.chosen]] : lines;
    return picked.map((line) => {
      const at = lowerBound(line.x, x), i = at > 0 && (at === line.x.length || x - line.x[at - 1] < line.x[at] - x) ? at - 1 : at;
      const outside = !line.x.length || x > line.x[line.x.length - 1] * (1 + 1e-9);  // it ended before
      return {line, x: line.x[i], value: outside ? null : line.y[i], low: line.interval ? line.low[i] : null, high: line.interval ? line.high[i] : null};
    }).filter((v) => known(v.value)).sort((a, b) => a.value - b.value);
  }

  valueText(v) {
    if (!this.spec.percent) return shortNumber(v.value);
    return percentText(v.value) + (known(v.low) ? ` [${percentText(v.low)} to ${percentText(v.high)}]` : '');
  }

  showCursor(x, withTip) {
    if (!this.cursor) return;
    this.cursor.replaceChildren();
    this.tip.hidden = true;
    this.hasTip = withTip;
    const [low, high] = this.domain();
    if (x === null || x < low || x > high) return;
    const px = this.x(x), values = this.valuesAt(x);
    this.cursor.append(draw('line', {x1: px, x2: px, y1: TOP, y2: this.height - BOTTOM}));
    for (const v of values) {
      const py = this.y(v.value);
      if (py >= TOP && py <= this.height - BOTTOM) this.cursor.append(draw('circle', {class: seriesClasses(v.line.series).split(' ')[0], cx: this.x(v.x), cy: py, r: 4}));
    }
    if (!withTip || !values.length) return;
    const shown = values.slice(0, 12);
    this.tip.replaceChildren(make('p', {}, this.whereText(x)), ...shown.map((v) => make('p', {class: 'tip-row'},
      swatch(v.line.series), make('span', {class: 'name'}, v.line.label), make('b', {}, this.valueText(v)))));
    if (values.length > shown.length) this.tip.append(make('p', {}, `and ${values.length - shown.length} more`));
    this.tip.hidden = false;
    const tipWidth = this.tip.offsetWidth, place = px + 14 + tipWidth > this.w ? px - 14 - tipWidth : px + 14;
    this.tip.style.left = `${Math.max(0, Math.min(place, this.w - tipWidth))}px`;
    this.tip.style.top = `${this.svg.getBoundingClientRect().top - this.box.getBoundingClientRect().top + TOP}px`;
  }

  whereText(x) { return `${view.unit === 'tokens' ? countText(x) : Math.round(x)} ${view.unit}`; }

  moveCursor(x, speak) {
    view.cursor = x;
    for (const chart of charts) chart.showCursor(x, chart === this);
    if (!speak) return;
    const values = this.valuesAt(x).map((v) => `${v.line.label} ${this.valueText(v)}`);
    announce(`${this.spec.title} at ${this.whereText(x)}: ${values.length ? values.join(', ') : 'no values'}`);
  }

  // --- zoom ---------------------------------------------------------------------------------------------------------------------

  // In the axis' own measure, so that it works on a logarithmic axis too.
  setPixels(from, to) {
    const full = this.fullDomain(), least = (this.x(full[1]) - this.x(full[0])) * 1e-5;
    if (to - from < least) return;
    const low = Math.max(full[0], this.x.invert(from)), high = Math.min(full[1], this.x.invert(to));
    if (!(high > low)) return;
    view.domain = low <= full[0] && high >= full[1] ? null : [low, high];
    renderAll();
  }

  zoom(factor, centre) {
    const left = this.x(this.domain()[0]), right = this.x(this.domain()[1]);
    this.setPixels(centre - (centre - left) * factor, centre + (right - centre) * factor);
  }

  pan(share) {
    const left = this.x(this.domain()[0]), right = this.x(this.domain()[1]), full = this.fullDomain().map((v) => this.x(v));
    const by = Math.max(full[0] - left, Math.min(full[1] - right, share * (right - left)));
    if (by) this.setPixels(left + by, right + by);
  }

  reset() {
    view.domain = null;
    renderAll();
  }

  pixel(event) { return Math.max(LEFT, Math.min(this.w - RIGHT, event.clientX - this.svg.getBoundingClientRect().left)); }

  listen() {
    const {svg} = this;
    let from = null;
    svg.addEventListener('pointerdown', (event) => {
      if (event.button !== 0) return;
      from = this.pixel(event);
      svg.setPointerCapture(event.pointerId);
    });
    svg.addEventListener('pointermove', (event) => {
      const to = this.pixel(event);
      this.moveCursor(this.x.invert(to), false);
      if (from !== null) fill(this.selection, {x: Math.min(from, to), width: Math.abs(to - from)}, []);
    });
    svg.addEventListener('pointerup', (event) => {
      const to = this.pixel(event), start = from;
      from = null;
      fill(this.selection, {width: 0}, []);
      if (start !== null && Math.abs(to - start) > 5) this.setPixels(Math.min(start, to), Math.max(start, to));
    });
    svg.addEventListener('pointercancel', () => { from = null; fill(this.selection, {width: 0}, []); });
    svg.addEventListener('pointerleave', () => { if (from === null) this.moveCursor(null, false); });
    svg.addEventListener('dblclick', () => this.reset());
    svg.addEventListener('wheel', (event) => {
      if (document.activeElement !== svg && !event.ctrlKey) return;  // else the page scrolls
      event.preventDefault();
      this.zoom(event.deltaY > 0 ? 1.25 : 0.8, this.pixel(event));
    }, {passive: false});
    svg.addEventListener('keydown', (event) => this.key(event));
    svg.addEventListener('blur', () => this.moveCursor(null, false));
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const [low, high] = this.domain(), left = this.x(low), right = this.x(high);
    const at = view.cursor !== null && view.cursor >= low && view.cursor <= high ? this.x(view.cursor) : null;
    const move = (by) => this.moveCursor(this.x.invert(at === null ? (left + right) / 2 : Math.max(left, Math.min(right, at + by))), true);
    const stride = (right - left) / 50, count = this.visible().length;
    const choose = (by) => {
      this.chosen = (this.chosen + 1 + by + count + 1) % (count + 1) - 1;
      this.moveCursor(view.cursor === null ? high : view.cursor, true);
    };
    const actions = {
      ArrowLeft: () => event.shiftKey ? this.pan(-0.2) : move(-stride), ArrowRight: () => event.shiftKey ? this.pan(0.2) : move(stride),
      ArrowUp: () => choose(-1), ArrowDown: () => choose(1),
      Home: () => this.moveCursor(low, true), End: () => this.moveCursor(high, true),
      '+': () => this.zoom(0.7, at === null ? (left + right) / 2 : at), '-': () => this.zoom(1 / 0.7, at === null ? (left + right) / 2 : at),
      0: () => this.reset(), Escape: () => this.reset(),
    };
    actions['='] = actions['+'];
    if (!actions[event.key]) return;
    event.preventDefault();
    actions[event.key]();
    if (!event.key.startsWith('Arrow') || event.shiftKey) {
      announce(`${this.spec.title}: ${this.whereText(this.domain()[0])} to ${this.whereText(this.domain()[1])}`);
    }
  }
}

function swatch(series) {
  return draw('svg', {width: 34, height: 12, viewBox: '0 0 34 12', 'aria-hidden': 'true'}, draw('g', {class: `line ${seriesClasses(series)}`}, draw('path', {d: 'M0 6h34'})));
}
