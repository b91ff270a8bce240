// FP8 health: one heat map of sites (rows) over steps (columns), chosen by run, measure, tensor role and image.

const MEASURES = {
  underflow: {title: 'underflow', log: true, share: true, worst: 'high'},
  saturation: {title: 'saturation', log: true, share: true, worst: 'high'},
  sqnr_db: {title: 'SQNR (dB)', log: false, worst: 'low'},
  amax: {title: 'amax', log: true, worst: 'high'},
  nonfinite: {title: 'non-finite elements', log: true, worst: 'high'},
};
const ROLES = {x: 'x: activations', w: 'w: weights', dy: 'dy: gradients'};
const IMAGES = {row: 'row', col: 'column', both: 'row and column'};
const LEVELS = 9, MAX_ROWS = 250, ROW = 17;

class HeatMap {
  constructor() {
    this.box = byId('health-map');
    this.selects = {run: byId('health-run'), metric: byId('health-metric'), role: byId('health-role'), image: byId('health-image')};
    this.details = byId('health-data');
    const option = (value, text) => make('option', {value}, text);
    this.selects.run.append(...data.health.map((h, i) => option(i, data.runs[h.run].name)));
    this.selects.metric.append(...Object.entries(MEASURES).map(([key, m]) => option(key, m.title)));
    this.selects.run.addEventListener('change', () => { this.fillFilters(); this.render(); });
    for (const key of ['metric', 'role', 'image']) this.selects[key].addEventListener('change', () => this.render());
    this.details.addEventListener('toggle', () => this.table());
    this.svg = draw('svg', {class: 'heat-plot', tabindex: 0, role: 'application', 'aria-roledescription': 'heat map', 'aria-describedby': 'heat-hint'});
    this.readout = make('p', {class: 'readout', id: 'heat-readout'});
    this.note = make('p', {class: 'soft', id: 'heat-hint'});
    this.legend = make('div', {class: 'heat-legend'});
    this.box.append(this.legend, make('div', {class: 'heat-scroll'}, this.svg), this.readout, this.note);
    this.svg.addEventListener('keydown', (event) => this.key(event));
    this.svg.addEventListener('pointermove', (event) => this.point(event));
    this.fillFilters();
    for (const element of [byId('health-controls'), this.box, this.details]) element.hidden = false;
    this.render();
    new ResizeObserver(() => { if (this.box.clientWidth !== this.width) this.render(); }).observe(this.box);
  }

  health() { return data.health[Number(this.selects.run.value)]; }

  fillFilters() {
    for (const [key, names] of [['role', ROLES], ['image', IMAGES]]) {
      const select = this.selects[key], had = select.value, values = [...new Set(this.health().sites.map((site) => site[key]))];
      select.replaceChildren(make('option', {value: ''}, 'all'), ...values.map((v) => make('option', {value: v}, Object.hasOwn(names, v) ? names[v] : v)));
      select.value = values.includes(had) ? had : '';
    }
  }

  // Rows of the chosen kind; of more than fit, those with the worst values.
  rows() {
    const h = this.health(), metric = this.selects.metric.value, {role, image} = this.selects;
    let rows = h.sites.map((site, i) => ({site, values: h[metric][i], order: i}))
                   .filter((row) => (!role.value || row.site.role === role.value) && (!image.value || row.site.image === image.value));
    const all = rows.length;
    if (all > MAX_ROWS) {
      const sign = MEASURES[metric].worst === 'low' ? 1 : -1;
      const worst = (row) => row.values.reduce((w, v) => known(v) ? Math.min(w, sign * v) : w, Infinity);
      rows = rows.map((row) => ({...row, key: worst(row)})).sort((a, b) => a.key - b.key).slice(0, MAX_ROWS).sort((a, b) => a.order - b.order);
    }
    return {rows, all};
  }

  // The scale is the whole run's: choosing other tensors does not change the meaning of a colour.
  extent(metric) {
    let low = Infinity, high = -Infinity;
    for (const row of this.health()[metric]) {
      for (const v of row) {
        if (!known(v) || MEASURES[metric].log && v <= 0) continue;
        low = Math.min(low, v);
        high = Math.max(high, v);
      }
    }
    if (MEASURES[metric].share) low = Math.max(low, 1e-7);
    return low <= high ? [low, high] : [0, 0];
  }

  // 0: nothing to worry about (or zero); LEVELS - 1: the worst, or largest, of the run; -1: undefined.
  level(value, metric, [low, high]) {
    const m = MEASURES[metric];
    if (!known(value)) return -1;
    if (m.log && value <= 0) return 0;
    const f = m.log ? Math.log10 : (v) => v;
    const t = high > low ? Math.max(0, Math.min(1, (f(value) - f(low)) / (f(high) - f(low)))) : 1;
    return m.worst === 'low' ? Math.round((1 - t) * (LEVELS - 1)) : 1 + Math.round(t * (LEVELS - 2));
  }

  text(value, metric) {
    if (!known(value)) return 'undefined';
    return MEASURES[metric].share ? `${shortNumber(100 * value)} %` : shortNumber(value) + (metric === 'sqnr_db' ? ' dB' : '');
  }

  stepsText(column) {
    const h = this.health(), first = h.first[column], last = h.last[column];
    return first === last ? `step ${first}` : `steps ${first} to ${last}`;
  }

  render() {
    this.width = this.box.clientWidth;
    if (!this.width) return;
    const h = this.health(), metric = this.selects.metric.value, extent = this.extent(metric), {rows, all} = this.rows();
    this.shown = rows;
    this.columns = h.first.length;
    this.labelWidth = Math.min(250, Math.round(this.width * 0.36));
    this.cell = Math.min(40, Math.max(3, (this.width - this.labelWidth - 12) / this.columns));
    const w = this.labelWidth + this.cell * this.columns + 4, height = rows.length * ROW + 26, parts = new Map();
    rows.forEach((row, r) => row.values.forEach((value, c) => {
      const level = this.level(value, metric, extent);
      const d = `M${(this.labelWidth + c * this.cell).toFixed(1)} ${r * ROW + 1}h${this.cell.toFixed(1)}v${ROW - 2}h-${this.cell.toFixed(1)}z`;
      parts.set(level, (parts.get(level) || '') + d);
    }));
    const pattern = draw('pattern', {id: 'undefined', width: 6, height: 6, patternUnits: 'userSpaceOnUse', patternTransform: 'rotate(45)'},
                         draw('rect', {class: 'h-none', width: 6, height: 6}), draw('rect', {class: 'h-stripe', width: 1.5, height: 6}));
    this.mark = draw('rect', {class: 'heat-mark', width: this.cell, height: ROW - 1, visibility: 'hidden'});
    const letters = Math.floor((this.labelWidth - 8) / 6.7);
    this.svg.replaceChildren(draw('defs', {}, pattern),
      ...[...parts].sort((a, b) => a[0] - b[0]).map(([level, d]) => draw('path', {class: level < 0 ? 'h-undefined' : `h${level}`, d})),
      ...rows.map((row, r) => draw('text', {class: 'heat-label', 'text-anchor': 'end', x: this.labelWidth - 6, y: r * ROW + 12.5},
        draw('title', {}, row.site.name), row.site.name.length > letters ? '\u2026' + row.site.name.slice(1 - letters) : row.site.name)),
      ...this.stepTicks(rows.length), this.mark);
    fill(this.svg, {viewBox: `0 0 ${w} ${height}`, width: w, height, 'data-metric': metric, 'data-rows': rows.length,
                    'aria-label': `Heat map of ${MEASURES[metric].title}: ${rows.length} sites over ${this.columns} columns of steps`}, []);
    this.drawLegend(metric, extent);
    this.note.textContent = (all > rows.length ? `The ${rows.length} worst of ${all} sites are shown. ` : '') +
      'Point at a cell, or move with the arrow keys, to read its value. A column holds the worst of its steps.';
    this.readout.textContent = '\u00a0';
    this.at = null;
    this.table();
  }

  stepTicks(count) {
    const out = [], every = Math.max(1, Math.ceil(60 / this.cell)), h = this.health();
    for (let c = 0; c < this.columns; c += every) {
      const edge = c + every >= this.columns && this.columns > 1 && this.labelWidth + (c + 1) * this.cell > this.width - 30;
      out.push(draw('text', {class: 'tick', 'text-anchor': edge ? 'end' : 'start', x: this.labelWidth + (edge ? c + 1 : c) * this.cell, y: count * ROW + 16}, countText(h.first[c])));
    }
    out.push(draw('text', {class: 'tick', 'text-anchor': 'end', x: this.labelWidth - 6, y: count * ROW + 16}, 'step'));
    return out;
  }

  drawLegend(metric, [low, high]) {
    const worst = MEASURES[metric].worst === 'low', ends = worst ? [high, low] : [low, high], none = !(high > 0) && MEASURES[metric].log;
    const boxes = draw('svg', {width: LEVELS * 18, height: 14, 'aria-hidden': 'true'});
    for (let i = 0; i < LEVELS; ++i) boxes.append(draw('rect', {class: `h${i}`, x: i * 18, width: 18, height: 14}));
    const zero = MEASURES[metric].log ? '\u2264 ' : '';
    this.legend.replaceChildren(make('span', {}, none ? 'all 0' : `${zero}${this.text(ends[0], metric)}`), boxes, make('span', {}, none ? '' : this.text(ends[1], metric)),
      draw('svg', {width: 18, height: 14, 'aria-hidden': 'true'}, draw('rect', {class: 'h-undefined', width: 18, height: 14})), make('span', {}, 'undefined'));
  }

  read(row, column, speak) {
    const metric = this.selects.metric.value, line = this.shown[row];
    if (!line) return;
    this.at = [row, column];
    fill(this.mark, {x: this.labelWidth + column * this.cell, y: row * ROW + 0.5, visibility: 'visible'}, []);
    const text = `${line.site.name} (${line.site.format}), ${this.stepsText(column)}: ${MEASURES[metric].title} ${this.text(line.values[column], metric)}`;
    this.readout.textContent = text;
    if (speak) announce(text);
  }

  point(event) {
    const box = this.svg.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left - this.labelWidth) / this.cell), row = Math.floor((event.clientY - box.top) / ROW);
    if (column >= 0 && column < this.columns && row >= 0 && row < this.shown.length) this.read(row, column, false);
  }

  key(event) {
    const by = {ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0], Home: [0, -Infinity], End: [0, Infinity]}[event.key];
    if (!by || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    const bound = (v, n) => Math.max(0, Math.min(n - 1, v)), from = this.at || [0, 0], step = this.at ? by : [0, 0];
    this.read(bound(from[0] + step[0], this.shown.length), bound(from[1] + step[1], this.columns), true);
    const scroll = this.svg.parentElement, y = this.at[0] * ROW;
    if (y < scroll.scrollTop) scroll.scrollTop = y;
    if (y + 2 * ROW > scroll.scrollTop + scroll.clientHeight) scroll.scrollTop = y + 2 * ROW - scroll.clientHeight;
  }

  // Made only when it is opened; at most a dozen columns of it.
  table() {
    const box = byId('health-data-table');
    box.replaceChildren();
    if (!this.details.open || !this.shown) return;
    const metric = this.selects.metric.value, n = Math.min(12, this.columns);
    const columns = [...Array(n).keys()].map((i) => n === 1 ? 0 : Math.round(i * (this.columns - 1) / (n - 1)));
    const head = make('tr', {}, make('th', {scope: 'col', class: 'left'}, 'site'), ...columns.map((c) => make('th', {scope: 'col'}, this.stepsText(c))));
    const body = this.shown.map((row) => make('tr', {}, make('th', {scope: 'row'}, row.site.name), ...columns.map((c) => make('td', {}, this.text(row.values[c], metric)))));
    box.append(make('table', {}, make('caption', {class: 'soft left'}, `${MEASURES[metric].title} of ${this.shown.length} sites, ${n} of ${this.columns} columns.`),
                    make('thead', {}, head), make('tbody', {}, ...body)));
  }
}
