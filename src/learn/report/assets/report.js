// Puts the page together.

const DATA = JSON.parse(document.getElementById('data').textContent);

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  document.getElementById('theme').textContent = theme === 'dark' ? 'Light' : 'Dark';
  redraw();
}

function buildPage() {
  const page = document.getElementById('page');
  const parts = [
    [true, headSection],
    [(DATA.metrics || []).length, comparisonSection],
    [DATA.charts, () => chartsSection(DATA.charts)],
    [DATA.tables, () => tablesSection(DATA.tables)],
    [DATA.recordings, () => viewerSection(DATA.recordings)],
    [DATA.epochs, () => curvesSection(DATA.epochs)],
    [DATA.durations, () => durationsSection(DATA.durations)],
    [DATA.confusions, () => confusionSection(DATA.confusions)],
    [DATA.label_rows, () => labelsSection(DATA.label_rows)],
    [DATA.calibrations, () => calibrationSection(DATA.calibrations)],
    [DATA.worst || DATA.doubted, scrutinySection],
    [DATA.environment || DATA.config, environmentSection],
  ];
  for (const [there, build] of parts) {
    if (!there) continue;
    try {
      page.append(build());
    } catch (error) {
      fail(error);
    }
  }
  page.append(
      el('footer', {}, 'Written by segfuse. This file is complete in itself: it loads nothing.'));
}

function fail(error) {
  document.documentElement.dataset.failed = String(error && error.message || error);
  document.getElementById('page').append(
      el('p', {class: 'note failure'},
         'A part of this report could not be drawn: ' + (error && error.message || error)));
}

// Browsers report a delayed size change as an error; it is none.
window.addEventListener(
    'error', (e) => /ResizeObserver/.test(e.message) || fail(e.error || e.message));
const darkWanted = window.matchMedia('(prefers-color-scheme: dark)');
darkWanted.addEventListener('change', (e) => setTheme(e.matches ? 'dark' : 'light'));
setTheme(darkWanted.matches ? 'dark' : 'light');
document.getElementById('theme').addEventListener(
    'click', () => setTheme(document.documentElement.dataset.theme === 'dark' ? 'light' : 'dark'));
let themeBeforePrint = null;
window.addEventListener('beforeprint', () => {
  themeBeforePrint = document.documentElement.dataset.theme;
  setTheme('light');
});
window.addEventListener('afterprint', () => themeBeforePrint && setTheme(themeBeforePrint));
buildPage();
requestAnimationFrame(() => requestAnimationFrame(() => {
                        document.documentElement.dataset.ready = 'true';
                      }));
