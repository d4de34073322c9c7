// Curves, duration histograms and reliability diagrams, as SVG.

const RIGHT = 12, TOP = 16, BOTTOM = 36;

// Axes with ticks and titles. `frame` = {w, h, x: [low, high], y: [low, high], xTitle, yTitle,
// xText, yText}.
function axes(root, frame) {
  const yt = ticks(frame.y[0], frame.y[1], frame.yTicks || 5);
  const yText = frame.yText || yt.text;
  const letters = Math.max(...yt.values.map((v) => yText(v).length));
  const inner = {
    l: (frame.yTitle ? 26 : 10) + 6.4 * letters,
    r: frame.w - RIGHT,
    t: TOP,
    b: frame.h - BOTTOM
  };
  const sx = (v) => inner.l + (v - frame.x[0]) / (frame.x[1] - frame.x[0]) * (inner.r - inner.l);
  const sy = (v) => inner.b - (v - frame.y[0]) / (frame.y[1] - frame.y[0]) * (inner.b - inner.t);
  for (const v of yt.values) {
    root.append(
        svg('path', {class: 'grid', d: `M${inner.l} ${sy(v)}H${inner.r}`}),
        svg('text', {x: inner.l - 6, y: sy(v) + 4, 'text-anchor': 'end'}, yText(v)));
  }
  const xt = ticks(
      frame.x[0], frame.x[1], Math.max(2, Math.floor((inner.r - inner.l) / (frame.xSpace || 50))));
  const whole = frame.wholeX && xt.step < 1;
  for (const v of xt.values.filter((t) => !whole || Number.isInteger(t))) {
    root.append(
        svg('path', {class: 'axis', d: `M${sx(v)} ${inner.b}v4`}),
        svg('text', {x: sx(v), y: inner.b + 16, 'text-anchor': 'middle'},
            (frame.xText || xt.text)(v)));
  }
  root.append(
      svg('path', {class: 'axis', d: `M${inner.l} ${inner.t}V${inner.b}H${inner.r}`}),
      svg('text', {x: (inner.l + inner.r) / 2, y: frame.h - 4, 'text-anchor': 'middle'},
          frame.xTitle || ''));
  if (frame.yTitle) {
    const y = (inner.t + inner.b) / 2;
    root.append(
        svg('text', {transform: `translate(11 ${y}) rotate(-90)`, 'text-anchor': 'middle'},
            frame.yTitle));
  }
  return {...inner, sx, sy};
}

// Path through the finite points; a gap where a value is missing.
function linePath(xs, ys, sx, sy) {
  let d = '', pen = 'M';
  xs.forEach((x, i) => {
    if (!finite(x) || !finite(ys[i])) {
      pen = 'M';
      return;
    }
    d += `${pen}${sx(x).toFixed(1)} ${sy(ys[i]).toFixed(1)}`;
    pen = 'L';
  });
  return d;
}

function span(values, fromZero) {
  const known = values.filter(finite);
  let low = Math.min(...known), high = Math.max(...known);
  if (fromZero && low >= 0) low = 0;
  if (!(high > low))
    [low, high] = [low - (Math.abs(low) || 1) / 2, high + (Math.abs(high) || 1) / 2];
  const room = (high - low) * 0.04;
  return [fromZero && low === 0 ? 0 : low - room, high + room];
}

// One panel of the training curves. panel = {title, yTitle, series: [{name, paint, dash, values}],
// text, fromZero}.
function curvePanel(panel, epochs, shared) {
  const xs = epochs.epoch;
  const box = el('div');
  const last =
      panel.series.map((s) => `${s.name} ${panel.text(s.values[s.values.length - 1])}`).join(', ');
  follow(box, (w) => {
    const h = 230;
    const root = svg('svg', {
      viewBox: `0 0 ${w} ${h}`,
      role: 'img',
      tabindex: 0,
      'aria-label': `${panel.title} over ${xs.length} epochs; at the last epoch: ${last}`
    });
    const x = xs.length > 1 ? [xs[0], xs[xs.length - 1]] : [xs[0] - 1, xs[0] + 1];
    const all = panel.series.flatMap((s) => s.values);
    const a = axes(root, {
      w,
      h,
      x,
      y: span(all, panel.fromZero),
      xTitle: 'epoch',
      yTitle: panel.yTitle,
      yText: panel.tickText,
      wholeX: true
    });
    if (finite(epochs.selected)) {
      const at = a.sx(epochs.selected);
      root.append(
          svg('path', {class: 'kept', d: `M${at} ${a.t}V${a.b}`}),
          svg('text', {x: at, y: a.t - 3, 'text-anchor': at > (a.l + a.r) / 2 ? 'end' : 'start'},
              `kept: epoch ${epochs.selected}`));
    }
    for (const s of panel.series) {
      root.append(svg('path', {
        d: linePath(xs, s.values, a.sx, a.sy),
        fill: 'none',
        stroke: `var(--${s.paint})`,
        'stroke-width': 2,
        'stroke-dasharray': s.dash ? '6 3' : null,
        'stroke-linejoin': 'round'
      }));
      if (xs.length < 40) {
        xs.forEach(
            (v, i) => finite(s.values[i]) &&
                root.append(
                    svg('circle',
                        {cx: a.sx(v), cy: a.sy(s.values[i]), r: 2.2, fill: `var(--${s.paint})`})));
      }
    }
    const cursor = svg('path', {class: 'cursor', d: '', visibility: 'hidden'});
    root.append(cursor);
    shared.panels.set(panel, (i) => {
      cursor.setAttribute('visibility', i === null ? 'hidden' : 'visible');
      if (i !== null) cursor.setAttribute('d', `M${a.sx(xs[i])} ${a.t}V${a.b}`);
    });
    hoverCurve(root, a, xs, shared);
    box.replaceChildren(root);
  });
  const legend =
      el('div', {class: 'legend'},
         panel.series.map((s) => swatch(s.dash ? 'dash' : 'line', `var(--${s.paint})`, s.name)));
  return el('figure', {}, el('figcaption', {}, panel.title), legend, box);
}

function hoverCurve(root, a, xs, shared) {
  let at = xs.length - 1;
  const nearest = (event) => {
    const box = root.getBoundingClientRect();
    const x = (event.clientX - box.left) * (root.viewBox.baseVal.width / box.width);
    let best = 0;
    xs.forEach((v, i) => {
      if (Math.abs(a.sx(v) - x) < Math.abs(a.sx(xs[best]) - x)) best = i;
    });
    return best;
  };
  root.addEventListener('pointermove', (e) => shared.show(at = nearest(e), e.clientX, e.clientY));
  root.addEventListener('pointerleave', () => shared.show(null));
  root.addEventListener('blur', () => shared.show(null));
  root.addEventListener('keydown', (e) => {
    const step = {ArrowLeft: -1, ArrowRight: 1}[e.key];
    if (!step) return;
    e.preventDefault();
    at = clamp(at + step, 0, xs.length - 1);
    const box = root.getBoundingClientRect();
    shared.show(at, box.left + a.sx(xs[at]) * box.width / root.viewBox.baseVal.width, box.top + 30);
  });
}

function curvesSection(epochs) {
  const has = (key) => (epochs[key] || []).some(finite);
  const lines =
      [
        ['train_loss', 'train loss', 'accent', false, num],
        ['dev_loss', 'dev loss', 'wrong', true, num],
        ['dev_label_error_rate', 'dev label error rate', 'decoded', false, percent],
        ['learning_rate', 'learning rate', 'wave', false, num],
        ['crf_largest', 'largest CRF score', 'wrong', false, num],
        ['other_largest', 'largest other parameter', 'wave', true, num]
      ].filter((l) => has(l[0]))
          .map(([key, name, paint, dash,
                 text]) => ({key, name, paint, dash, text, values: epochs[key]}));
  const pick = (...keys) => lines.filter((l) => keys.includes(l.key));
  const panels = [
    {title: 'Loss', yTitle: 'loss', series: pick('train_loss', 'dev_loss'), text: num},
    {
      title: 'Dev label error rate',
      yTitle: 'label errors / gold segments',
      series: pick('dev_label_error_rate'),
      text: percent,
      tickText: (v) => percent(v, 0),
      fromZero: true
    },
    {
      title: 'Learning rate',
      yTitle: 'learning rate',
      series: pick('learning_rate'),
      text: num,
      fromZero: true
    },
    {
      title: 'Parameters',
      yTitle: 'greatest magnitude',
      series: pick('crf_largest', 'other_largest'),
      text: num,
      fromZero: true
    },
  ].filter((p) => p.series.length > 0);
  const shared = {
    panels: new Map(),
    show(i, x, y) {
      for (const move of this.panels.values()) move(i);
      if (i === null) return hideTip();
      showTip(
          x, y, `epoch ${epochs.epoch[i]}${epochs.epoch[i] === epochs.selected ? ' (kept)' : ''}`,
          lines.map((l) => [l.name, l.text(l.values[i])]));
    }
  };
  return section(
      'curves', 'Training',
      finite(epochs.selected) ?
          `The model of epoch ${epochs.selected} was kept; the yellow line marks it.` :
          null,
      el('div', {class: 'charts'}, panels.map((p) => curvePanel(p, epochs, shared))));
}

// A chart of lines with intervals: how the first measure changes over something.
function lineChart(c) {
  const box = el('div');
  const paints = ['accent', 'decoded', 'wrong', 'wave', 'gold'];
  const paint = (i) => `var(--${paints[i % paints.length]})`;
  const xs = c.doubling ? c.x.map(Math.log2) : c.x;
  const xText = (v) => count(c.doubling ? 2 ** v : v);
  follow(box, (w) => {
    const h = 260;
    const all = c.lines.flatMap((l) => [...l.values, ...(l.intervals || []).flat()]);
    const last = c.lines.map((l) => `${l.name} ${percent(l.values[l.values.length - 1])}`);
    const root = svg('svg', {
      viewBox: `0 0 ${w} ${h}`,
      role: 'img',
      'aria-label': `${c.title}; at the last point: ${last.join(', ')}`
    });
    const a = axes(root, {
      w,
      h,
      x: span(xs),
      y: span(all, true),
      xTitle: c.x_title,
      yTitle: c.y_title,
      xText,
      yText: (v) => percent(v, 0),
      wholeX: c.doubling
    });
    c.lines.forEach((l, k) => {
      root.append(svg('path', {
        d: linePath(xs, l.values, a.sx, a.sy),
        fill: 'none',
        stroke: paint(k),
        'stroke-width': 2,
        'stroke-linejoin': 'round'
      }));
      xs.forEach((x, i) => {
        if (!finite(l.values[i])) return;
        const [low, high] = (l.intervals || [])[i] || [];
        if (finite(low) && finite(high))
          root.append(svg('path', {
            d: `M${a.sx(x)} ${a.sy(low)}V${a.sy(high)}m-3 0h6M${a.sx(x) - 3} ${a.sy(low)}h6`,
            fill: 'none',
            stroke: paint(k),
            'stroke-opacity': 0.6
          }));
        const dot = svg('circle', {cx: a.sx(x), cy: a.sy(l.values[i]), r: 3.5, fill: paint(k)});
        dot.addEventListener(
            'pointermove',
            (e) => showTip(e.clientX, e.clientY, l.name, [
              [c.x_title, xText(x)], ['value', percent(l.values[i], 2)],
              ['interval', `${percent(low, 2)} to ${percent(high, 2)}`]
            ]));
        dot.addEventListener('pointerleave', hideTip);
        root.append(dot);
      });
    });
    box.replaceChildren(root);
  });
  const legend =
      el('div', {class: 'legend'}, c.lines.map((l, i) => swatch('line', paint(i), l.name)));
  return el('figure', {}, el('figcaption', {}, c.title), legend, box);
}

function chartsSection(list) {
  return section(
      'curve', 'Curve', 'Bars are the intervals of the values.', ...list.map(lineChart));
}

// Adds up neighbours so that about `most` bars are left.
function coarser(d, most, upto) {
  const group = Math.max(1, Math.ceil(upto / most));
  const add = (values) => {
    if (!values.length) return [];
    const out = new Array(Math.ceil(upto / group)).fill(0);
    values.slice(0, upto).forEach((v, i) => out[Math.floor(i / group)] += v || 0);
    const all = sum(values);
    return all > 0 ? out.map((v) => v / all) : [];
  };
  return {
    first: d.first + d.step * (group - 1) / 2,
    step: d.step * group,
    gold: add(d.gold),
    model: add(d.model),
    decoded: add(d.decoded)
  };
}

// Index after the last entry that is worth drawing: 99.5 % of each curve lies before it.
function usefulLength(d) {
  const reach = (values) => {
    const all = sum(values);
    let run = 0;
    return all > 0 ? values.findIndex((v) => (run += v || 0) >= 0.995 * all) + 1 : 0;
  };
  return Math.max(2, reach(d.gold), reach(d.model), reach(d.decoded));
}

function meanDuration(d, values) {
  const all = sum(values);
  return all > 0 ? values.reduce((a, v, i) => a + (v || 0) * (d.first + i * d.step), 0) / all :
                   null;
}

function durationChart(d) {
  const box = el('div');
  const means = [['gold', d.gold], ['model', d.model], ['decoded', d.decoded]]
                    .filter(([, v]) => sum(v) > 0)
                    .map(([name, v]) => [`mean ${name}`, millis(meanDuration(d, v), 0)]);
  follow(box, (w) => {
    const h = 150;
    const c = coarser(d, Math.max(8, Math.floor((w - 60) / 5)), usefulLength(d));
    const n = Math.max(c.gold.length, c.model.length, c.decoded.length);
    const top = Math.max(...c.gold, ...c.model, ...c.decoded, 1e-9);
    const edge = c.first - c.step / 2;
    const long = edge + n * c.step > 2;
    const root = svg('svg', {
      viewBox: `0 0 ${w} ${h}`,
      role: 'img',
      'aria-label': `Durations of ${label(d.label)}: ${means.map((m) => m.join(' ')).join(', ')}`
    });
    const a = axes(root, {
      w,
      h,
      x: [Math.max(0, edge), edge + n * c.step],
      y: [0, top * 1.06],
      xSpace: 34,
      yTicks: 3,
      xTitle: long ? 'duration (s)' : 'duration (ms)',
      xText: (v) => long ? num(v, 2) : String(Math.round(v * 1000)),
      yText: (v) => Math.round(v * 1000) / 10 + ' %'
    });
    const x0 = (i) => a.sx(Math.max(0, edge + i * c.step)),
          x1 = (i) => a.sx(edge + (i + 1) * c.step);
    c.gold.forEach((v, i) => v > 0 && root.append(svg('rect', {
      x: x0(i) + 0.4,
      width: Math.max(0.8, x1(i) - x0(i) - 0.8),
      y: a.sy(v),
      height: a.b - a.sy(v),
      fill: 'var(--gold)'
    })));
    const steps = (values) =>
        values
            .map(
                (v, i) =>
                    `${i ? 'L' : 'M'}${x0(i).toFixed(1)} ${a.sy(v).toFixed(1)}H${x1(i).toFixed(1)}`)
            .join('');
    const centers = c.model.map((_, i) => c.first + i * c.step);
    if (c.decoded.length)
      root.append(svg('path', {
        d: steps(c.decoded),
        fill: 'none',
        stroke: 'var(--decoded)',
        'stroke-width': 1.4,
        'stroke-dasharray': '4 2'
      }));
    if (c.model.length)
      root.append(svg('path', {
        d: linePath(centers, c.model, a.sx, a.sy),
        fill: 'none',
        stroke: 'var(--model)',
        'stroke-width': 2
      }));
    root.addEventListener('pointermove', (e) => {
      const r = root.getBoundingClientRect();
      const i =
          Math.floor(((e.clientX - r.left) * w / r.width - a.sx(edge)) / (a.sx(c.step) - a.sx(0)));
      if (i < 0 || i >= n) return hideTip();
      const from = Math.max(0, edge + i * c.step);
      showTip(
          e.clientX, e.clientY,
          `${label(d.label)}: ${millis(from, 0)} to ${millis(edge + (i + 1) * c.step, 0)}`, [
            ['gold', c.gold], ['model', c.model], ['decoded', c.decoded]
          ].filter(([, v]) => v.length).map(([k, v]) => [k, percent(v[i] || 0)]).concat(means));
    });
    root.addEventListener('pointerleave', hideTip);
    box.replaceChildren(root);
  });
  return el(
      'figure', {},
      el('figcaption', {}, shorten(label(d.label), 24), ' ',
         el('span', {class: 'hint'}, `${count(sum(d.gold))} gold`)),
      box);
}

function durationsSection(list) {
  const grid = el('div', {class: 'multiples'});
  const shown = new Set(list.slice(0, 12));
  const figures = new Map();
  const place = () => {
    for (const d of list) {
      if (shown.has(d) && !figures.has(d)) figures.set(d, durationChart(d));
    }
    grid.replaceChildren(...list.filter((d) => shown.has(d)).map((d) => figures.get(d)));
  };
  const chips = list.map(
      (d) =>
          el('button', {
            type: 'button',
            'aria-pressed': String(shown.has(d)),
            title: `${count(sum(d.gold))} gold segments`,
            onclick(e) {
              if (!shown.delete(d)) shown.add(d);
              e.currentTarget.setAttribute('aria-pressed', String(shown.has(d)));
              place();
            }
          },
             shorten(label(d.label), 16)));
  place();
  const any = (key) => list.some((d) => sum(d[key]) > 0);
  return section(
      'durations', 'Durations',
      'How long segments of a label last. Each histogram adds up to 100 %. ' +
          'Press a label to show or hide it; the most frequent come first.',
      el('div', {class: 'legend'}, any('gold') ? swatch('box', 'var(--gold)', 'gold') : null,
         any('model') ? swatch('line', 'var(--model)', 'model') : null,
         any('decoded') ? swatch('dash', 'var(--decoded)', 'decoded') : null),
      list.length > 1 ? el('div', {class: 'chips', role: 'group', 'aria-label': 'Labels'}, chips) :
                        null,
      grid);
}

function reliabilityChart(c) {
  const box = el('div');
  const most = Math.max(...c.bins.map((b) => b[2] || 0), 1);
  follow(box, (full) => {
    const w = Math.min(full, 460), h = Math.min(w, 340);
    const root = svg('svg', {
      viewBox: `0 0 ${w} ${h}`,
      style: `max-width:${w}px`,
      role: 'img',
      'aria-label': `Reliability of ${c.name}: expected calibration error ${c.error}`
    });
    const a = axes(
        root,
        {w, h, x: [0, 1], y: [0, 1], xTitle: 'predicted probability', yTitle: 'observed share'});
    root.append(svg('path', {class: 'cursor', d: `M${a.sx(0)} ${a.sy(0)}L${a.sx(1)} ${a.sy(1)}`}));
    const known = c.bins.filter((b) => finite(b[0]) && finite(b[1]));
    root.append(svg('path', {
      d: linePath(known.map((b) => b[0]), known.map((b) => b[1]), a.sx, a.sy),
      fill: 'none',
      stroke: 'var(--model)',
      'stroke-width': 2
    }));
    for (const b of known) {
      const dot = svg('circle', {
        cx: a.sx(b[0]),
        cy: a.sy(b[1]),
        r: 3 + 7 * Math.sqrt((b[2] || 0) / most),
        fill: 'var(--model)',
        'fill-opacity': 0.55,
        stroke: 'var(--model)'
      });
      dot.addEventListener(
          'pointermove',
          (e) => showTip(
              e.clientX, e.clientY, c.name,
              [['predicted', percent(b[0])], ['observed', percent(b[1])], ['cases', count(b[2])]]));
      dot.addEventListener('pointerleave', hideTip);
      root.append(dot);
    }
    box.replaceChildren(root);
  });
  return el(
      'figure', {},
      el('figcaption', {}, c.name, ' ',
         el('span', {class: 'hint'}, `expected calibration error ${c.error}`)),
      box);
}

function calibrationSection(list) {
  return section(
      'calibration', 'Calibration',
      'Can the probabilities be believed? On the diagonal, 80 % means right in 80 of 100 cases. ' +
          'The area of a dot is the number of cases.',
      el('div', {class: 'charts'}, list.map(reliabilityChart)));
}
