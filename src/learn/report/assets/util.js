// Small helpers: elements, numbers, ticks, tooltip, base64, drawing that follows the width.

const SVG_NS = 'http://www.w3.org/2000/svg';
const DASH = '\u2013';
const NBSP = '\u00a0';

function fill(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith('on'))
      node.addEventListener(key.slice(2), value);
    else
      node.setAttribute(key, value === true ? '' : value);
  }
  for (const child of children.flat()) {
    if (child !== null && child !== undefined && child !== '') node.append(child);
  }
  return node;
}

function el(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

// Attributes of a box that scrolls. A keyboard can scroll it only if it takes the focus.
function scrolling(name, height = '') {
  return {class: `scroll ${height}`, tabindex: 0, role: 'group', 'aria-label': name};
}

function svg(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG_NS, tag), attributes, children);
}

function finite(v) { return typeof v === 'number' && Number.isFinite(v); }

function sum(values) { return (values || []).reduce((a, v) => a + (finite(v) ? v : 0), 0); }

function clamp(v, low, high) { return Math.min(high, Math.max(low, v)); }

// Three significant digits without needless zeros, an exponent only for the very large and small.
function num(v, digits = 3) {
  if (!finite(v)) return DASH;
  if (v === 0) return '0';
  const size = Math.abs(v);
  if (size >= 1e6 || size < 1e-4)
    return minus(
        v.toExponential(Math.min(2, digits - 1)).replace(/\.?0+e/, 'e').replace('e+', 'e'));
  const places = clamp(digits - 1 - Math.floor(Math.log10(size)), 0, 8);
  return minus(v.toFixed(places));
}

function minus(text) { return text.replace(/^-/, '\u2212').replace(/e-/, 'e\u2212'); }

function count(v) {
  if (!finite(v)) return DASH;
  const digits = minus(String(Math.round(v * 10) / 10));
  return digits.replace(/\B(?=(\d{3})+(?!\d|\.))/g, '\u202f');
}

function percent(v, places = 1) {
  return finite(v) ? minus((100 * v).toFixed(places)) + NBSP + '%' : DASH;
}

function millis(v, places = 1) {
  return finite(v) ? minus((1000 * v).toFixed(places)) + NBSP + 'ms' : DASH;
}

function seconds(v, places = 3) { return finite(v) ? v.toFixed(places) + NBSP + 's' : DASH; }

function label(index) {
  const name = (DATA.labels || [])[index];
  return name === undefined ? '?' : name === '' ? '(empty)' : name;
}

function shorten(text, length) {
  const letters = Array.from(text);
  return letters.length <= length ? text : letters.slice(0, length - 1).join('') + '\u2026';
}

// About n round values that span [low, high]: {values, text(v)}.
function ticks(low, high, n) {
  if (!(high > low)) high = low + (Math.abs(low) || 1);
  const raw = (high - low) / Math.max(1, n);
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= raw * 0.999);
  const values = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; ++i)
    values.push(i * step);
  const places =
      clamp(-Math.floor(Math.log10(step) + 1e-9) + (step / power === 2.5 ? 1 : 0), 0, 10);
  const small = Math.max(Math.abs(low), Math.abs(high)) < 1e-3;
  const text = (v) => (small ? num(v, 2) : minus(v.toFixed(places)));
  return {values, step, text};
}

function bytes(code) {
  const raw = atob(code);
  const out = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; ++i) out[i] = raw.charCodeAt(i);
  return out;
}

function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue('--' + name).trim();
}

const redraws = [];

// Calls draw(width) now, when the width of `box` changes and when the theme changes.
function follow(box, draw) {
  let width = 0;
  const run = () => {
    if (width > 0) draw(width);
  };
  const look = () => {
    const now = Math.floor(box.clientWidth);
    if (now > 0 && now !== width) {
      width = now;
      run();
    }
  };
  redraws.push(run);
  new ResizeObserver(look).observe(box);
  requestAnimationFrame(look);
}

function redraw() {
  for (const run of redraws) run();
}

const tip = document.getElementById('tip');

// Rows of the tooltip: strings or [name, value].
function showTip(x, y, title, rows) {
  tip.replaceChildren(
      el('b', {}, title),
      ...rows.map(
          (r) => Array.isArray(r) ?
              el('div', {class: 'row'}, el('span', {}, r[0]), el('b', {}, r[1])) :
              el('div', {}, r)));
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  const page = document.documentElement;
  const left = x + 16 + box.width > page.clientWidth ? x - box.width - 12 : x + 16;
  const top = y + 14 + box.height > page.clientHeight ? y - box.height - 10 : y + 14;
  tip.style.left = Math.max(4, left) + window.scrollX + 'px';
  tip.style.top = Math.max(4, top) + window.scrollY + 'px';
}

function hideTip() { tip.hidden = true; }

// A section with its entry in the navigation.
function section(id, title, lead, ...children) {
  document.getElementById('links').append(el('a', {href: '#' + id}, title));
  return el(
      'section', {id, 'aria-labelledby': id + '-title'}, el('h2', {id: id + '-title'}, title),
      lead ? el('p', {class: 'lead'}, lead) : null, ...children);
}

function swatch(kind, paint, text) {
  const shapes = {
    line: [svg('path', {d: 'M1 7H25', stroke: paint, 'stroke-width': 2.5})],
    dash: [svg(
        'path', {d: 'M1 7H25', stroke: paint, 'stroke-width': 2.5, 'stroke-dasharray': '5 3'})],
    box: [svg('rect', {x: 2, y: 1, width: 22, height: 12, rx: 2, fill: paint})],
    frame: [svg('rect', {
      x: 3,
      y: 2,
      width: 20,
      height: 10,
      fill: 'none',
      stroke: paint,
      'stroke-width': 2,
      'stroke-dasharray': '4 2'
    })],
    under: [
      svg('rect', {x: 2, y: 1, width: 22, height: 12, fill: paint, opacity: 0.35}),
      svg('rect', {x: 2, y: 10, width: 22, height: 3, fill: paint})
    ],
  };
  return el(
      'span', {}, svg('svg', {viewBox: '0 0 26 14', 'aria-hidden': 'true'}, ...shapes[kind]), text);
}
