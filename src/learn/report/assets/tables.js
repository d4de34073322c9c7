// Header, comparison, confusions, labels, environment.

function headSection() {
  const facts = [
    ['Data', DATA.data_set], ['Model', DATA.model], ['Parameters', DATA.parameters],
    ['Training time', DATA.time], ['Date', DATA.date], ...(DATA.facts || [])
  ].filter((f) => f[1]);
  const tiles = (DATA.metrics || []).filter((m) => m.headline);
  return el(
      'section', {class: 'head'}, el('h1', {}, DATA.title),
      facts.length ? el('dl', {class: 'facts'},
                        facts.map(([k, v]) => el('div', {}, el('dt', {}, k), el('dd', {}, v)))) :
                     null,
      (DATA.notes || []).map((n) => el('p', {class: 'note'}, n)),
      tiles.length ?
          el('div', {class: 'tiles'},
             tiles.map(
                 (m) =>
                     el('div', {class: 'tile', title: m.note}, el('div', {class: 'name'}, m.name),
                        el('div', {class: 'value'}, m.text[0],
                           m.interval && m.interval[0] ?
                               el('span', {class: 'interval'}, ` ${m.interval[0]}`) :
                               null),
                        el('div', {class: 'hint'}, m.better ? `${m.better} is better` : '')))) :
                                                              null);
}

function comparisonSection() {
  const systems = DATA.systems || ['value'];
  const several = systems.length > 1;
  const body = DATA.metrics.map(
      (m) => el(
          'tr', {},
          el('th', {scope: 'row'}, m.name,
             el('span', {class: 'hint'},
                [m.note, m.better && several ? `${m.better} is better` : ''].filter(Boolean).join(
                    '; '))),
          m.text.map(
              (t, i) =>
                  el('td', {class: m.mark[i] || null}, t,
                     m.interval && m.interval[i] ?
                         el('span', {class: 'interval'}, ` ${m.interval[i]}`) :
                         null,
                     several ? el('span', {class: 'slot'},
                                  m.mark[i] ? el('span', {class: 'mark'}, m.mark[i]) : '') :
                               null,
                     m.difference && m.difference[i] ?
                         el('span', {class: 'hint'}, m.difference[i]) :
                         null))));
  const table =
      el('div', scrolling('Table of measures'),
         el('table', {},
            el('thead', {},
               el('tr', {}, el('th', {class: 'text', scope: 'col'}, 'Measure'),
                  systems.map(
                      (s) => el(
                          'th', {scope: 'col'}, s, several ? el('span', {class: 'slot'}) : null)))),
            el('tbody', {}, body)));
  return section(
      'metrics', several ? 'Comparison' : 'Measures',
      several ?
          '\u201cbest\u201d marks the single best value of a row. Values that look the same at ' +
              'these digits, or whose difference to the best may be chance (its interval holds 0), ' +
              'are marked \u201ctie\u201d.' +
              (DATA.reference ?
                   ` Below a value stands its difference to ${DATA.reference}, in points, and the ` +
                       'interval of that difference over the same recordings.' :
                   '') :
          null,
      table);
}

// A plain table: head = [[text, isText]], rows = arrays of texts or nodes.
function plainTable(caption, head, rows) {
  return el(
      'div', {}, el('h3', {}, caption),
      rows.length ?
          el('div', scrolling(caption),
             el('table', {},
                el('thead', {},
                   el('tr', {},
                      head.map(
                          ([t, left]) =>
                              el('th', {scope: 'col', class: left ? 'text' : null}, t)))),
                el('tbody', {},
                   rows.map(
                       (r) => el(
                           'tr', {},
                           r.map((v, i) => el('td', {class: head[i][1] ? 'text' : null}, v))))))) :
          el('p', {class: 'lead'}, 'none'));
}

// Tables whose cells came as text; their first column is a name.
function tablesSection(list) {
  return section('tables', 'Results', null, ...list.map((t) => el('div', {},
      plainTable(t.title, t.head.map((h, i) => [h, i === 0]), t.rows),
      t.note ? el('p', {class: 'hint'}, t.note) : null)));
}

function heatMap(c) {
  const n = c.order.length;
  const place = new Map(c.order.map((l, i) => [l, i]));
  const box = el('div', scrolling('Confusion matrix'));
  const longest = Math.min(10, Math.max(...c.order.map((l) => Array.from(label(l)).length), 3));
  follow(box, (w) => {
    const left = Math.max(62, 24 + longest * 7),
          cell = clamp(Math.floor((w - left - 8) / (n + 1.3)), 11, 60);
    const turned = longest * 7 > cell - 2;
    const flat = !turned && cell >= 50;  // the word "deleted" fits too
    const top = flat ? 36 : Math.max(turned ? longest * 7 + 30 : 36, 58),
          gap = Math.round(cell * 0.3);
    const width = left + cell * (n + 1) + gap + 4, height = top + cell * (n + 1) + gap + 6;
    const root = svg('svg', {
      viewBox: `0 0 ${width} ${height}`,
      style: `width:${width}px;max-width:none`,
      role: 'img',
      'aria-label': `Confusion of ${n} labels; the tables below list the worst`
    });
    const at = (i) => i * cell + (i >= n ? gap : 0);
    const draw = (row, col, value, whole, right) => {
      if (!(value > 0)) return;
      const share = whole > 0 ? value / whole : 1;
      const paint = `rgb(var(--heat${right ? '' : '-wrong'}) / ${
          clamp(0.1 + 0.9 * Math.sqrt(share), 0, 1).toFixed(3)})`;
      root.append(svg(
          'rect',
          {x: left + at(col), y: top + at(row), width: cell - 1, height: cell - 1, fill: paint}));
      if (cell >= 34)
        root.append(
            svg('text', {
              x: left + at(col) + cell / 2,
              y: top + at(row) + cell / 2 + 4,
              'text-anchor': 'middle',
              style: `fill:${share > 0.3 ? 'var(--card)' : 'var(--ink)'}`
            },
                percent(share, share < 0.0995 ? 1 : 0).replace(/\s/g, '')));
    };
    root.append(svg(
        'rect', {x: left, y: top, width: cell * n - 1, height: cell * n - 1, fill: 'var(--soft)'}));
    for (const [g, d, v] of c.cells)
      draw(place.get(g), place.get(d), v, c.gold[place.get(g)], g === d);
    const inserted = sum(c.inserted);
    c.order.forEach((l, i) => {
      draw(i, n, c.deleted[i], c.gold[i], false);
      draw(n, i, c.inserted[i], inserted, false);
    });
    heatLabels(root, c, {left, top, cell, n, turned, flat, at});
    heatHover(root, c, {left, top, cell, n, at, place});
    box.replaceChildren(root);
  });
  return box;
}

function heatLabels(root, c, m) {
  const small = m.cell < 13 ? 'font-size:9px' : null;
  const name = (l) => shorten(label(l), 10);
  [...c.order.map(name), ''].forEach((text, i) => {
    const x = m.left + m.at(i) + m.cell / 2, y = m.top + m.at(i) + m.cell / 2;
    root.append(
        svg('text', {x: m.left - 5, y: y + 4, 'text-anchor': 'end', style: small},
            i === m.n ? 'inserted' : text));
    root.append(
        m.turned || (i === m.n && !m.flat) ?
            svg('text', {transform: `translate(${x + 4} ${m.top - 5}) rotate(-90)`, style: small},
                i === m.n ? 'deleted' : text) :
            svg('text', {x, y: m.top - 6, 'text-anchor': 'middle', style: small},
                i === m.n ? 'deleted' : text));
  });
  root.append(
      svg('text', {class: 'strong', x: m.left + m.cell * m.n / 2, y: 11, 'text-anchor': 'middle'},
          'decoded label'),
      svg('text', {
        class: 'strong',
        transform: `translate(11 ${m.top + m.cell * m.n / 2}) rotate(-90)`,
        'text-anchor': 'middle'
      },
          'gold label'));
}

function heatHover(root, c, m) {
  const counts = new Map(c.cells.map(([g, d, v]) => [m.place.get(g) * m.n + m.place.get(d), v]));
  const frame = svg(
      'path', {fill: 'none', stroke: 'var(--ink)', 'stroke-width': 1.5, 'pointer-events': 'none'});
  root.append(frame);
  const index = (v) => {
    const i = Math.floor(v / m.cell);
    return i < m.n ? i : v >= m.at(m.n) && v < m.at(m.n) + m.cell ? m.n : -1;
  };
  root.addEventListener('pointerleave', () => {
    hideTip();
    frame.setAttribute('d', '');
  });
  root.addEventListener('pointermove', (e) => {
    const r = root.getBoundingClientRect();
    const col = index(e.clientX - r.left - m.left), row = index(e.clientY - r.top - m.top);
    if (col < 0 || row < 0 || (col === m.n && row === m.n)) {
      frame.setAttribute('d', '');
      return hideTip();
    }
    frame.setAttribute(
        'd',
        `M${m.left + m.at(col) - 1} ${m.top + m.at(row) - 1}h${m.cell + 1}v${m.cell + 1}h${
            - m.cell - 1}z`);
    if (row === m.n)
      return showTip(e.clientX, e.clientY, `${label(c.order[col])} inserted`, [
        ['segments', count(c.inserted[col])],
        ['share of insertions', percent(c.inserted[col] / sum(c.inserted))]
      ]);
    const v = col === m.n ? c.deleted[row] : counts.get(row * m.n + col) || 0;
    const title = col === m.n ? `${label(c.order[row])} deleted` :
        col === row ? `${label(c.order[row])} right` :
                      `${label(c.order[row])} decoded as ${label(c.order[col])}`;
    showTip(
        e.clientX, e.clientY, title,
        [['segments', count(v)], ['share of gold', percent(v / c.gold[row])]]);
  });
}

function confusionSection(c) {
  const gold = new Map(c.order.map((l, i) => [l, c.gold[i]]));
  const worst = c.cells.filter(([g, d]) => g !== d).sort((a, b) => b[2] - a[2]).slice(0, 12);
  const top = (values) => c.order.map((l, i) => [l, values[i], c.gold[i]])
                              .filter((r) => r[1] > 0)
                              .sort((a, b) => b[1] - a[1])
                              .slice(0, 12);
  const right = sum(c.cells.filter(([g, d]) => g === d).map((x) => x[2]));
  const wrong = sum(c.cells.map((x) => x[2])) - right;
  const hidden = c.hidden > 0 ? ` The ${c.hidden} rarest labels are left out.` : '';
  return section(
      'confusions', 'Label confusions',
      `Aligned segments: ${count(right)} right, ${count(wrong)} with another label, ${
          count(sum(c.deleted))} deleted, ${count(sum(c.inserted))} inserted. ` +
          `Labels are sorted by frequency; colour is the share of the gold label, ` +
          `in the last row the share of all insertions.${hidden}`,
      el('div', {class: 'legend'}, swatch('box', 'rgb(var(--heat))', 'right'),
         swatch('box', 'rgb(var(--heat-wrong))', 'wrong'),
         el('span', {}, 'stronger colour: larger share')),
      heatMap(c),
      el('div', {class: 'three'},
         plainTable(
             'Worst confusions', [['gold \u2192 decoded', true], ['segments'], ['of gold']],
             worst.map(
                 ([g, d,
                   v]) => [`${label(g)} \u2192 ${label(d)}`, count(v), percent(v / gold.get(g))])),
         plainTable(
             'Most deleted', [['gold', true], ['segments'], ['of gold']],
             top(c.deleted).map(([l, v, g]) => [label(l), count(v), percent(v / g)])),
         plainTable(
             'Most inserted', [['decoded', true], ['segments']],
             top(c.inserted).map(([l, v]) => [label(l), count(v)]))));
}

// Per-label table; a click on a column head sorts by it.
function labelsSection(rows) {
  const columns = [
    ['label', (v) => shorten(label(v), 40)], ['gold', count], ['decoded', count],
    ['precision', percent], ['recall', percent], ['F1', percent],
    ['mean duration', (v) => millis(v, 0)], ['duration error', millis], ['bias', millis]
  ];
  const used = columns.map((_, k) => k === 0 || rows.some((r) => finite(r[k])));
  const keep = (list) => list.filter((_, k) => used[k]);
  const body = el('tbody');
  const state = {column: 1, down: true};
  const heads = columns.map(
      ([name], k) =>
          el('th', {scope: 'col', class: k === 0 ? 'text' : null},
             el('button', {
               type: 'button',
               onclick() {
                 state.down = state.column === k ? !state.down : k !== 0;
                 state.column = k;
                 place();
               }
             },
                name)));
  const key = (r) => state.column === 0 ? label(r[0]) : r[state.column];
  const compare = (a, b) => {
    const [x, y] = [key(a), key(b)];
    if (!finite(x) && typeof x !== 'string') return finite(y) ? 1 : 0;
    if (!finite(y) && typeof y !== 'string') return -1;
    return (x < y ? -1 : x > y ? 1 : 0) * (state.down ? -1 : 1);
  };
  const place = () => {
    heads.forEach(
        (h, k) => h.setAttribute(
            'aria-sort',
            k !== state.column ? 'none' :
                state.down     ? 'descending' :
                                 'ascending'));
    body.replaceChildren(...[...rows].sort(compare).map(
        (r) =>
            el('tr', {},
               keep(columns.map(
                   ([, text], k) => k === 0 ? el('th', {scope: 'row'}, text(r[0])) :
                                              el('td', {}, text(r[k])))))));
  };
  place();
  return section(
      'labels', 'Labels',
      'One row a label; press a heading to sort. Duration error is the mean absolute difference ' +
          'of matched segments, bias is decoded minus gold.',
      el('div', scrolling('Table of labels', 'tall'),
         el('table', {class: 'sortable'}, el('thead', {}, el('tr', {}, keep(heads))), body)));
}

// Where to look first: bad recordings, and gold labels that may be wrong.
function scrutinySection() {
  const worst = DATA.worst || [], doubted = DATA.doubted || [];
  const time = (v) => `${v.toFixed(3)}\u00a0s`;
  return section(
      'scrutiny', 'Where to look first',
      'The recordings with the highest label error rate, and the gold segments whose label has the ' +
          'lowest posterior: the mean, over the frames of the segment, of the probability that the ' +
          'model gives to the label. Some of these labels may be mistakes in the gold.',
      el('div', {class: 'two'},
         plainTable(
             'Worst recordings',
             [['recording', true], ['length'], ['segments'], ['errors'], ['label error rate']],
             worst),
         plainTable(
             'Gold labels that the model doubts most',
             [['recording', true], ['from'], ['to'], ['gold', true], ['decoded', true],
              ['posterior']],
             doubted.map(([r, a, b, g, d, p]) => [r, time(a), time(b), g, d, String(p)]))));
}

function environmentSection() {
  const rows = DATA.environment || [];
  return section(
      'environment', 'Environment and configuration', null,
      rows.length ? el('div', scrolling('Environment'),
                       el('table', {},
                          el('tbody', {},
                             rows.map(
                                 ([k, v]) =>
                                     el('tr', {}, el('th', {scope: 'row'}, k),
                                        el('td', {class: 'text'}, v)))))) :
                    null,
      DATA.config ? el('details', {open: true}, el('summary', {}, 'Configuration'),
                       el('pre', {tabindex: 0}, DATA.config)) :
                    null);
}
