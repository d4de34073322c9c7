// The sequence viewer: one canvas with signal, segment lanes and boundary posterior over time.

const RAMPS = {
  light: [[255, 255, 255], [219, 229, 241], [126, 164, 207], [43, 87, 143], [14, 32, 66]],
  dark: [[22, 29, 39], [38, 56, 88], [66, 104, 160], [146, 172, 198], [255, 240, 200]],
};
const MARK_TEXT = {
  '=': 'right',
  '~': 'wrong label',
  '+': 'inserted',
  '-': 'deleted'
};

function ramp(theme) {
  const stops = RAMPS[theme];
  const table = new Uint8ClampedArray(256 * 3);
  for (let v = 0; v < 256; ++v) {
    const at = v / 255 * (stops.length - 1), i = Math.min(stops.length - 2, Math.floor(at));
    for (let k = 0; k < 3; ++k)
      table[3 * v + k] = stops[i][k] + (stops[i + 1][k] - stops[i][k]) * (at - i);
  }
  return table;
}

// The feature matrix as a picture, one pixel a cell, low bins at the bottom.
function featurePicture(f, data, theme) {
  const canvas = document.createElement('canvas');
  canvas.width = f.frames;
  canvas.height = f.bins;
  const ctx = canvas.getContext('2d');
  const image = ctx.createImageData(f.frames, f.bins);
  const table = ramp(theme);
  for (let t = 0; t < f.frames; ++t) {
    for (let b = 0; b < f.bins; ++b) {
      const v = data[t * f.bins + b], o = 4 * ((f.bins - 1 - b) * f.frames + t);
      image.data.set([table[3 * v], table[3 * v + 1], table[3 * v + 2], 255], o);
    }
  }
  ctx.putImageData(image, 0, 0);
  return canvas;
}

function segmentAt(segments, t) {
  let low = 0, high = segments.length;
  while (low < high) {
    const mid = (low + high) >> 1;
    if (segments[mid][1] <= t)
      low = mid + 1;
    else
      high = mid;
  }
  return low < segments.length && segments[low][0] <= t ? low : -1;
}

// Times of the errors of the first decoded lane, in order.
function errorTimes(rec) {
  const lane = rec.decoded[0];
  if (!lane || !lane.marks) return [];
  const middle = (s) => (s[0] + s[1]) / 2;
  const out = [];
  lane.segments.forEach((s, i) => lane.marks[i] !== '=' && out.push(middle(s)));
  rec.gold.forEach((s, i) => lane.gold_marks[i] === '-' && out.push(middle(s)));
  return out.sort((a, b) => a - b);
}

function laneName(lane) { return lane.name || 'decoded'; }

class Viewer {
  constructor(list) {
    this.list = list;
    this.view = el('canvas', {class: 'view', role: 'img', tabindex: 0});
    this.map = el('canvas', {class: 'map', 'aria-hidden': 'true'});
    this.status = el('span', {class: 'status'});
    this.table = el('tbody');
    this.select =
        el('select', {onchange: () => this.open(this.select.selectedIndex)},
           list.map(
               (r, i) =>
                   el('option', {value: i},
                      shorten(r.name || `recording ${i + 1}`, 40) +
                          (r.label_error_rate ? ` (${r.label_error_rate} label errors)` : ''))));
    this.details =
        el('details', {ontoggle: () => this.fillTable()},
           el('summary', {}, 'These segments as a table'));
    this.details.append(
        el('div', scrolling('Table of segments', 'tall'),
           el('table', {},
              el('thead', {},
                 el('tr', {},
                    ['lane', 'label', 'start (s)', 'end (s)', 'duration', 'posterior', ''].map(
                        (t, i) =>
                            el('th', {scope: 'col', class: i < 2 || i === 6 ? 'text' : null}, t)))),
              this.table)));
    this.signals = new Map();
    this.pointers = new Map();
    this.cursor = null;
    [this.width, this.gutter, this.plot] = [900, 100, 788];
    this.sized = false;
    this.open(0);
    this.listen();
  }

  element() {
    const button = (text, title, action) =>
        el('button', {type: 'button', title, 'aria-label': title, onclick: action}, text);
    const step = (by) => this.open((this.index + by + this.list.length) % this.list.length);
    const errors = this.list.some((r) => errorTimes(r).length > 0);
    const box = el('div');
    const bar =
        el('div', {class: 'bar'}, el('label', {}, 'Recording', this.select),
           this.list.length > 1 ?
               [
                 button('\u25C0', 'Previous recording', () => step(-1)),
                 button('\u25B6', 'Next recording', () => step(1))
               ] :
               null,
           button('+', 'Zoom in', () => this.zoom(0.6)),
           button('\u2212', 'Zoom out', () => this.zoom(1 / 0.6)),
           button('all', 'Show the whole recording', () => this.show(0, this.length)),
           errors ?
               [
                 button('\u2190 error', 'Previous error', () => this.toError(-1)),
                 button('error \u2192', 'Next error', () => this.toError(1))
               ] :
               null,
           this.status);
    box.append(
        bar, this.legend(), el('div', {}, this.view, this.map),
        el('p', {class: 'keys'},
           'Drag to pan; double-click or pinch to zoom; click first, then the wheel zooms too. ' +
               'Keys: ',
           el('kbd', {}, '\u2190'), ' ', el('kbd', {}, '\u2192'), ' pan, ', el('kbd', {}, '+'), ' ',
           el('kbd', {}, '\u2212'), ' zoom, ', el('kbd', {}, '0'), ' all, ', el('kbd', {}, 'n'),
           ' ', el('kbd', {}, 'p'), ' next and previous error, ', el('kbd', {}, '['), ' ',
           el('kbd', {}, ']'), ' recording.'),
        this.details);
    follow(this.view.parentElement, (w) => {
      const first = !this.sized;
      [this.width, this.sized] = [w, true];
      if (first)
        this.open(this.index);
      else
        this.draw();
    });
    return box;
  }

  legend() {
    const any = (test) => this.list.some(test);
    const marks = any((r) => r.decoded.some((l) => l.marks));
    return el(
        'div', {class: 'legend'},
        any((r) => r.gold.length) ? swatch('box', 'var(--gold-soft)', 'gold') : null,
        any((r) => r.decoded.length) ?
            swatch('box', 'var(--right)', marks ? 'decoded, right' : 'decoded') :
            null,
        marks ?
            [
              swatch('under', 'var(--wrong)', 'decoded, wrong label, or + inserted'),
              swatch('frame', 'var(--wrong)', 'gold segment that was missed')
            ] :
            null,
        any((r) => r.boundary) ? swatch('line', 'var(--decoded)', 'boundary posterior') : null,
        any((r) => r.decoded.some((l) => l.segments.some((s) => finite(s[3])))) ?
            el('span', {}, 'stronger colour: higher posterior') :
            null);
  }

  open(index) {
    this.index = index;
    this.select.selectedIndex = index;
    const rec = this.rec = this.list[index];
    this.length = Math.max(rec.kept || rec.seconds, 1e-3);
    if (!this.signals.has(rec)) {
      const decode = (s) => s ? bytes(s.bytes) : null;
      this.signals.set(rec, {
        wave: decode(rec.wave),
        features: decode(rec.features),
        boundary: decode(rec.boundary),
        pictures: {}
      });
    }
    this.data = this.signals.get(rec);
    this.errors = errorTimes(rec);
    this.error = null;
    const lane = rec.gold.length ? rec.gold : rec.decoded.length ? rec.decoded[0].segments : [];
    const mean = lane.length ? this.length / lane.length : this.length;
    const from = lane.length ? Math.max(0, Math.min(lane[0][0], this.length)) : 0;
    this.view.setAttribute(
        'aria-label',
        `Recording ${rec.name}, ${seconds(rec.seconds, 2)}: ${rec.gold.length} gold segments` +
            rec.decoded.map((l) => `, ${l.segments.length} segments of ${laneName(l)}`).join('') +
            (lane.length && rec.gold.length ? `, ${this.errors.length} errors` : ''));
    this.show(
        from > 0.3 * this.length ? from : 0,
        (from > 0.3 * this.length ? from : 0) + mean * this.width / 24);
    if (this.details.open) this.fillTable();
  }

  show(from, to) {
    const width = clamp(to - from, Math.min(0.02, this.length), this.length);
    this.from = clamp(from, 0, this.length - width);
    this.to = this.from + width;
    const cut = this.rec.kept ? `; the first ${seconds(this.rec.kept, 1)} are kept here` : '';
    this.status.textContent = `${seconds(this.from, 2)} to ${seconds(this.to, 2)} of ${
        seconds(this.rec.seconds, 2)}${cut}`;
    this.later();
  }

  zoom(factor, at = (this.from + this.to) / 2) {
    this.show(at - (at - this.from) * factor, at + (this.to - at) * factor);
  }

  toError(direction) {
    if (!this.errors.length) return;
    const now = this.error ?? (direction > 0 ? this.from - 1e-9 : this.to + 1e-9);
    const ahead = this.errors.filter((t) => direction > 0 ? t > now + 1e-6 : t < now - 1e-6);
    this.error = ahead.length ? ahead[direction > 0 ? 0 : ahead.length - 1] :
                                this.errors[direction > 0 ? 0 : this.errors.length - 1];
    const half = (this.to - this.from) / 2;
    this.show(this.error - half, this.error + half);
  }

  later() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      this.draw();
    });
  }

  // Lanes from top to bottom: {kind, y, h, title}.
  lanes() {
    const rec = this.rec, narrow = this.width < 640;
    const out = [];
    const add = (kind, h, title, more) => out.push({kind, h, title, ...more});
    if (rec.wave) add('wave', narrow ? 52 : 66, 'waveform');
    if (rec.features) add('features', narrow ? 80 : 112, 'features');
    if (rec.gold.length) add('gold', 30, 'gold');
    rec.decoded.forEach((lane, i) => add('decoded', 30, laneName(lane), {lane, i}));
    if (rec.boundary) add('boundary', 56, 'boundary');
    let y = 4;
    for (const lane of out) {
      if (narrow) y += 15;
      lane.y = y;
      y += lane.h + (narrow ? 4 : 6);
    }
    this.gutter = narrow ? 6 : 100;
    this.plot = this.width - this.gutter - 12;
    this.height = y + 38;
    return out;
  }

  x(t) { return this.gutter + (t - this.from) / (this.to - this.from) * this.plot; }

  time(x) { return this.from + (x - this.gutter) / this.plot * (this.to - this.from); }

  prepare(canvas, height) {
    const scale = window.devicePixelRatio || 1;
    const w = Math.round(this.width * scale), h = Math.round(height * scale);
    if (canvas.width !== w || canvas.height !== h) [canvas.width, canvas.height] = [w, h];
    canvas.style.height = height + 'px';
    const ctx = canvas.getContext('2d');
    ctx.setTransform(scale, 0, 0, scale, 0, 0);
    ctx.clearRect(0, 0, this.width, height);
    ctx.font = '12px system-ui, \'Segoe UI\', Roboto, Arial, sans-serif';
    ctx.textBaseline = 'middle';
    return ctx;
  }

  draw() {
    if (!this.sized) return;
    this.paint = Object.fromEntries([
      'ink', 'muted', 'line', 'grid', 'soft', 'gold', 'gold-soft', 'gold-ink', 'decoded', 'wrong',
      'right', 'wave', 'accent', 'card'
    ].map((n) => [n, color(n)]));
    const lanes = this.lanes();
    const ctx = this.prepare(this.view, this.height);
    for (const lane of lanes) {
      this.drawTitle(ctx, lane);
      ctx.save();
      ctx.beginPath();
      ctx.rect(this.gutter, lane.y - 1, this.plot, lane.h + 2);
      ctx.clip();
      this[{
        wave: 'drawWave',
        features: 'drawFeatures',
        gold: 'drawGold',
        decoded: 'drawDecoded',
        boundary: 'drawBoundary'
      }[lane.kind]](ctx, lane);
      ctx.restore();
    }
    this.drawAxis(ctx);
    this.drawGuides(ctx, lanes);
    this.drawMap();
  }

  drawTitle(ctx, lane) {
    ctx.fillStyle = this.paint.muted;
    ctx.textAlign = 'left';
    if (this.gutter < 50) return ctx.fillText(shorten(lane.title, 40), this.gutter, lane.y - 7);
    ctx.textAlign = 'right';
    ctx.fillText(shorten(lane.title, 15), this.gutter - 8, lane.y + lane.h / 2);
  }

  drawWave(ctx, lane) {
    const {columns, seconds: whole} = this.rec.wave, data = this.data.wave;
    const middle = lane.y + lane.h / 2, y = (v) => middle - (v - 128) / 127 * lane.h / 2;
    const perPixel = columns / whole * (this.to - this.from) / this.plot;
    ctx.fillStyle = this.paint.soft;
    ctx.fillRect(this.gutter, lane.y, this.plot, lane.h);
    ctx.fillStyle = ctx.strokeStyle = this.paint.wave;
    if (perPixel >= 1) {
      for (let p = 0; p < this.plot; ++p) {
        const a = Math.floor((this.from / whole * columns) + p * perPixel),
              b = Math.min(columns, Math.ceil((this.from / whole * columns) + (p + 1) * perPixel));
        let low = 255, high = 0;
        for (let c = a; c < b; ++c)
          [low, high] = [Math.min(low, data[2 * c]), Math.max(high, data[2 * c + 1])];
        if (high >= low) ctx.fillRect(this.gutter + p, y(high), 1, Math.max(1, y(low) - y(high)));
      }
      return;
    }
    const first = Math.max(0, Math.floor(this.from / whole * columns) - 1),
          last = Math.min(columns - 1, Math.ceil(this.to / whole * columns) + 1);
    const at = (c) => this.x((c + 0.5) * whole / columns);
    ctx.beginPath();
    for (let c = first; c <= last; ++c) ctx.lineTo(at(c), y(data[2 * c + 1]));
    for (let c = last; c >= first; --c) ctx.lineTo(at(c), y(data[2 * c]));
    ctx.closePath();
    ctx.fill();
    ctx.stroke();
  }

  drawFeatures(ctx, lane) {
    const f = this.rec.features, theme = document.documentElement.dataset.theme;
    const picture = this.data.pictures[theme] ||
        (this.data.pictures[theme] = featurePicture(f, this.data.features, theme));
    const a = this.from / f.seconds * f.frames,
          b = Math.min(f.frames, this.to / f.seconds * f.frames);
    if (b <= a) return;
    ctx.imageSmoothingEnabled = true;
    ctx.drawImage(
        picture, a, 0, b - a, f.bins, this.gutter, lane.y,
        this.x(b * f.seconds / f.frames) - this.gutter, lane.h);
  }

  eachVisible(segments, visit) {
    segments.forEach(
        (s, i) => s[1] >= this.from && s[0] <= this.to && visit(s, i, this.x(s[0]), this.x(s[1])));
  }

  // Label in the visible part of [l, r], when it fits.
  drawLabel(ctx, text, l, r, y, paint) {
    const a = Math.max(l, this.gutter), b = Math.min(r, this.gutter + this.plot);
    const fit = ctx.measureText(text).width + 4 <= b - a ? text : shorten(text, 2);
    if (ctx.measureText(fit).width + 3 > b - a) return;
    ctx.textAlign = 'center';
    ctx.fillStyle = paint;
    ctx.fillText(fit, (a + b) / 2, y);
  }

  drawGold(ctx, lane) {
    const marks = this.rec.decoded.length ? this.rec.decoded[0].gold_marks : null;
    this.eachVisible(this.rec.gold, (s, i, l, r) => {
      const missed = marks && marks[i] === '-';
      ctx.fillStyle = this.paint['gold-soft'];
      ctx.fillRect(l, lane.y, Math.max(1, r - l - 1), lane.h);
      if (missed) {
        ctx.strokeStyle = this.paint.wrong;
        ctx.lineWidth = 2;
        ctx.setLineDash([4, 2]);
        ctx.strokeRect(l + 1, lane.y + 1, Math.max(1, r - l - 3), lane.h - 2);
        ctx.setLineDash([]);
      }
      this.drawLabel(ctx, label(s[2]), l, r, lane.y + lane.h / 2 + 1, this.paint['gold-ink']);
    });
  }

  drawDecoded(ctx, lane) {
    const {segments, marks} = lane.lane;
    this.eachVisible(segments, (s, i, l, r) => {
      const right = !marks || marks[i] === '=', w = Math.max(1, r - l - 1);
      ctx.globalAlpha = finite(s[3]) ? 0.14 + 0.56 * clamp(s[3], 0, 1) : 0.55;
      ctx.fillStyle = right ? this.paint.right : this.paint.wrong;
      ctx.fillRect(l, lane.y, w, lane.h);
      ctx.globalAlpha = 1;
      if (!right) ctx.fillRect(l, lane.y + lane.h - 4, w, 4);
      const text = (marks && marks[i] === '+' ? '+' : '') + label(s[2]);
      this.drawLabel(ctx, text, l, r, lane.y + lane.h / 2 + (right ? 1 : 0), this.paint.ink);
    });
  }

  drawBoundary(ctx, lane) {
    const {columns, seconds: whole} = this.rec.boundary, data = this.data.boundary;
    const y = (v) => lane.y + lane.h - 1 - v / 255 * (lane.h - 4);
    ctx.fillStyle = this.paint.soft;
    ctx.fillRect(this.gutter, lane.y, this.plot, lane.h);
    ctx.strokeStyle = this.paint.grid;
    ctx.lineWidth = 1;
    ctx.strokeRect(this.gutter, y(127.5), this.plot, 0.01);
    const first = Math.max(0, Math.floor(this.from / whole * columns) - 1),
          last = Math.min(columns - 1, Math.ceil(this.to / whole * columns) + 1);
    ctx.beginPath();
    for (let c = first; c <= last; ++c) ctx.lineTo(this.x((c + 0.5) * whole / columns), y(data[c]));
    ctx.strokeStyle = this.paint.decoded;
    ctx.lineWidth = 1.6;
    ctx.lineJoin = 'round';
    ctx.stroke();
    ctx.lineTo(this.x((last + 0.5) * whole / columns), y(0));
    ctx.lineTo(this.x((first + 0.5) * whole / columns), y(0));
    ctx.globalAlpha = 0.18;
    ctx.fillStyle = this.paint.decoded;
    ctx.fill();
    ctx.globalAlpha = 1;
  }

  drawAxis(ctx) {
    const t = ticks(this.from, this.to, Math.max(2, Math.floor(this.plot / 75)));
    const y = this.height - 36;
    ctx.strokeStyle = this.paint.line;
    ctx.fillStyle = this.paint.muted;
    ctx.lineWidth = 1;
    ctx.beginPath();
    ctx.moveTo(this.gutter, y);
    ctx.lineTo(this.gutter + this.plot, y);
    for (const v of t.values) {
      ctx.moveTo(this.x(v), y);
      ctx.lineTo(this.x(v), y + 5);
    }
    ctx.stroke();
    for (const v of t.values) {
      const x = this.x(v), half = ctx.measureText(t.text(v)).width / 2;
      ctx.textAlign = 'center';
      if (x - half >= 0 && x + half <= this.width) ctx.fillText(t.text(v), x, y + 12);
    }
    ctx.textAlign = 'center';
    ctx.fillText('time (s)', this.gutter + this.plot / 2, y + 29);
  }

  drawGuides(ctx, lanes) {
    const last = lanes[lanes.length - 1];
    if (!last) return;
    ctx.lineWidth = 1;
    ctx.strokeStyle = this.paint.gold;
    ctx.globalAlpha = 0.75;
    ctx.beginPath();
    this.eachVisible(this.rec.gold, (s, i, l) => {
      if (l < this.gutter) return;
      for (const lane of lanes) {
        if (!['wave', 'features', 'boundary'].includes(lane.kind)) continue;
        ctx.moveTo(l, lane.y);
        ctx.lineTo(l, lane.y + lane.h);
      }
    });
    ctx.stroke();
    ctx.globalAlpha = 1;
    for (const [t, paint, dash] of [
             [this.error, this.paint.wrong, []], [this.cursor, this.paint.ink, [3, 3]]]) {
      if (t === null || t < this.from || t > this.to) continue;
      ctx.strokeStyle = paint;
      ctx.setLineDash(dash);
      ctx.beginPath();
      ctx.moveTo(this.x(t), 0);
      ctx.lineTo(this.x(t), last.y + last.h);
      ctx.stroke();
      ctx.setLineDash([]);
    }
  }

  drawMap() {
    const h = 22, ctx = this.prepare(this.map, h);
    const x = (t) => this.gutter + t / this.length * this.plot;
    ctx.fillStyle = this.paint.soft;
    ctx.fillRect(this.gutter, 0, this.plot, h);
    ctx.fillStyle = this.paint.wrong;
    for (const t of this.errors) ctx.fillRect(x(t) - 1, 5, 2, h - 10);
    ctx.strokeStyle = this.paint.accent;
    ctx.lineWidth = 2;
    ctx.strokeRect(x(this.from) + 1, 1, Math.max(3, x(this.to) - x(this.from) - 2), h - 2);
    ctx.globalAlpha = 0.1;
    ctx.fillStyle = this.paint.accent;
    ctx.fillRect(x(this.from), 0, Math.max(3, x(this.to) - x(this.from)), h);
    ctx.globalAlpha = 1;
    if (this.gutter >= 50) {
      ctx.fillStyle = this.paint.muted;
      ctx.textAlign = 'right';
      ctx.fillText(
          this.errors.length ?
              this.errors.length === 1 ? '1 error' : `${this.errors.length} errors` :
                                         'overview',
          this.gutter - 8, h / 2);
    }
  }

  hover(e) {
    const box = this.view.getBoundingClientRect();
    const t = this.time(e.clientX - box.left);
    this.cursor = t >= this.from && t <= this.to ? t : null;
    this.later();
    if (this.cursor === null) return hideTip();
    const rows = [];
    const describe = (name, segments, marks) => {
      const i = segmentAt(segments, t);
      if (i < 0) return rows.push([name, DASH]);
      const s = segments[i];
      rows.push([
        name,
        `${label(s[2])}, ${millis(s[1] - s[0], 0)}` +
            (finite(s[3]) ? `, ${percent(s[3], 0)}` : '') +
            (marks && marks[i] !== '=' ? `, ${MARK_TEXT[marks[i]]}` : '')
      ]);
    };
    const first = this.rec.decoded[0];
    if (this.rec.gold.length)
      describe(
          'gold', this.rec.gold, first && first.gold_marks && first.gold_marks.replace(/~/g, '='));
    for (const lane of this.rec.decoded) describe(laneName(lane), lane.segments, lane.marks);
    if (this.rec.boundary) {
      const b = this.rec.boundary,
            c = clamp(Math.floor(t / b.seconds * b.columns), 0, b.columns - 1);
      rows.push(['boundary posterior', (this.data.boundary[c] / 255).toFixed(2)]);
    }
    showTip(e.clientX, e.clientY, seconds(t), rows);
  }

  listen() {
    const v = this.view;
    v.addEventListener('pointerdown', (e) => {
      this.pointers.set(e.pointerId, e.clientX);
      v.setPointerCapture(e.pointerId);
      hideTip();
    });
    v.addEventListener(
        'pointermove', (e) => this.pointers.has(e.pointerId) ? this.drag(e) : this.hover(e));
    for (const name of ['pointerup', 'pointercancel'])
      v.addEventListener(name, (e) => this.pointers.delete(e.pointerId));
    v.addEventListener('pointerleave', () => {
      this.cursor = null;
      hideTip();
      this.later();
    });
    v.addEventListener(
        'dblclick', (e) => this.zoom(0.5, this.time(e.clientX - v.getBoundingClientRect().left)));
    v.addEventListener('wheel', (e) => this.wheel(e), {passive: false});
    v.addEventListener('keydown', (e) => this.key(e));
    const jump = (e) => {
      const t = (e.clientX - this.map.getBoundingClientRect().left - this.gutter) / this.plot *
          this.length,
            half = (this.to - this.from) / 2;
      this.show(t - half, t + half);
    };
    this.map.addEventListener('pointerdown', (e) => {
      this.map.setPointerCapture(e.pointerId);
      jump(e);
    });
    this.map.addEventListener('pointermove', (e) => e.buttons && jump(e));
  }

  drag(e) {
    const before = [...this.pointers.values()];
    this.pointers.set(e.pointerId, e.clientX);
    const now = [...this.pointers.values()];
    const perPixel = (this.to - this.from) / this.plot;
    if (now.length === 1) {
      this.show(
          this.from - (now[0] - before[0]) * perPixel, this.to - (now[0] - before[0]) * perPixel);
    } else if (now.length === 2) {
      const middle = (now[0] + now[1]) / 2 - this.view.getBoundingClientRect().left;
      this.zoom(
          clamp(Math.abs(before[0] - before[1]) / Math.max(1, Math.abs(now[0] - now[1])), 0.5, 2),
          this.time(middle));
    }
  }

  // The wheel belongs to the page until the viewer has been clicked.
  wheel(e) {
    if (document.activeElement !== this.view && !e.ctrlKey) return;
    e.preventDefault();
    const unit = e.deltaMode === 1 ? 16 : 1;
    if (Math.abs(e.deltaX) > Math.abs(e.deltaY)) {
      const by = e.deltaX * unit * (this.to - this.from) / this.plot;
      return this.show(this.from + by, this.to + by);
    }
    this.zoom(
        clamp(1.0016 ** (e.deltaY * unit), 0.5, 2),
        this.time(e.clientX - this.view.getBoundingClientRect().left));
  }

  key(e) {
    if (e.ctrlKey || e.metaKey || e.altKey) return;
    const by = (this.to - this.from) * 0.2, n = this.list.length;
    const actions = {
      ArrowLeft: () => this.show(this.from - by, this.to - by),
      ArrowRight: () => this.show(this.from + by, this.to + by),
      '+': () => this.zoom(0.6),
      '=': () => this.zoom(0.6),
      '-': () => this.zoom(1 / 0.6),
      0: () => this.show(0, this.length),
      Home: () => this.show(0, this.to - this.from),
      End: () => this.show(this.length - (this.to - this.from), this.length),
      n: () => this.toError(1),
      p: () => this.toError(-1),
      '[': () => this.open((this.index + n - 1) % n),
      ']': () => this.open((this.index + 1) % n),
    };
    if (!actions[e.key]) return;
    e.preventDefault();
    actions[e.key]();
  }

  fillTable() {
    if (!this.details.open) return;
    const first = this.rec.decoded[0];
    const rows = (name, segments, marks) => segments.map(
        (s, i) => el(
            'tr', {}, el('td', {class: 'text'}, name), el('td', {class: 'text'}, label(s[2])),
            el('td', {}, s[0].toFixed(3)), el('td', {}, s[1].toFixed(3)),
            el('td', {}, millis(s[1] - s[0], 0)), el('td', {}, finite(s[3]) ? s[3].toFixed(2) : ''),
            el('td', {class: 'text'},
               marks && marks[i] !== '=' ? el('span', {class: 'wrong'}, MARK_TEXT[marks[i]]) :
                                           '')));
    this.table.replaceChildren(
        ...rows(
            'gold', this.rec.gold,
            first && first.gold_marks && first.gold_marks.replace(/~/g, '=')),
        ...this.rec.decoded.flatMap((l) => rows(laneName(l), l.segments, l.marks)));
  }
}

function viewerSection(list) {
  const more = DATA.recordings_given > list.length ?
      ` ${list.length} of ${DATA.recordings_given} are kept here.` :
      '';
  return section(
      'viewer', 'Recordings', `Decoded recordings against gold.${more}`,
      new Viewer(list).element());
}
