// What a page does by itself: theme, copying, charts, and news of the cluster.
// Nothing here is needed to read a page or to send a form.

// Theme: the system's, until somebody chooses.
const root = document.documentElement;
const chosen = localStorage.getItem("vq-theme");
if (chosen === "light" || chosen === "dark") root.dataset.theme = chosen;

function isDark() {
  if (root.dataset.theme) return root.dataset.theme === "dark";
  return matchMedia("(prefers-color-scheme: dark)").matches;
}

document.addEventListener("click", (event) => {
  const target = event.target instanceof Element ? event.target.closest("button") : null;
  if (!target) return;
  if (target.hasAttribute("data-theme-switch")) {
    root.dataset.theme = isDark() ? "light" : "dark";
    localStorage.setItem("vq-theme", root.dataset.theme);
    drawCharts();
  } else if (target.hasAttribute("data-copy")) {
    copy(target, target.dataset.copy);
  } else if (target.hasAttribute("data-copy-table")) {
    const table = target.closest(".tabled").querySelector("table");
    const lines = [...table.rows].map((row) =>
      [...row.cells].map((cell) => cell.innerText.trim().replace(/\s+/g, " ")).join("\t"));
    copy(target, lines.join("\n"));
  }
});

async function copy(button, text) {
  const before = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "✓";
  } catch {
    button.textContent = "✗";
  }
  setTimeout(() => { button.textContent = before; }, 1200);
}

// On a narrow window the menu is one line: the page that is shown is in sight.
document.querySelector(".menu [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });

// News: one stream a tab, closed while the tab is hidden.
let stream = null;

function listen() {
  const address = document.body.dataset.events;
  if (!address || stream || document.hidden) return;
  stream = new EventSource(address);
  stream.addEventListener("look", () => {
    if (document.activeElement && document.activeElement.matches("#live input, #live select")) return;
    document.body.dispatchEvent(new CustomEvent("vq-look"));
  });
}

document.addEventListener("visibilitychange", () => {
  if (document.hidden && stream) {
    stream.close();
    stream = null;
  } else {
    listen();
  }
});
addEventListener("pagehide", () => stream && stream.close());

// Charts.
const UNITS = ["", "Ki", "Mi", "Gi", "Ti"];
// Distances between the lines of a chart: bytes count in powers of two, times in round parts of their unit.
const BINARY = Array.from({ length: 50 }, (_, place) => 2 ** place);
const TIMES = [
  ...[-3, -2, -1].flatMap((power) => [1, 2, 5].map((each) => each * 10 ** power)),
  ...[1, 60].flatMap((unit) => [1, 2, 5, 10, 15, 30].map((each) => each * unit)),
  ...[1, 2, 3, 6, 12].map((each) => each * 3600),
  ...Array.from({ length: 20 }, (_, place) => 86400 * 2 ** place),
];
const STEPS = { bytes: BINARY, rate: BINARY, duration: TIMES };
const FORMATS = {
  bytes: (value) => scaled(value, 1024, "B"),
  rate: (value) => scaled(value, 1024, "B/s"),
  percent: (value) => `${Math.round(value * 100)} %`,
  duration,
  count: (value) => value.toLocaleString("en", { maximumFractionDigits: 1 }),
  per_s: (value) => `${value.toLocaleString("en", { maximumFractionDigits: 1 })}/s`,
};

function scaled(value, base, unit) {
  let place = 0;
  while (Math.abs(value) >= base && place < UNITS.length - 1) { value /= base; place += 1; }
  return `${place ? +value.toPrecision(3) : +value.toFixed(1)} ${UNITS[place]}${unit}`;
}

function duration(value) {
  if (value > 0 && value < 1) return `${+(value * 1000).toPrecision(2)} ms`;
  const [size, unit] = value < 120 ? [1, "s"] : value < 7200 ? [60, "min"] : value < 172800 ? [3600, "h"] : [86400, "d"];
  return `${+(value / size).toPrecision(3)} ${unit}`;
}

function clock(moment, span) {
  const text = new Date(moment * 1000).toISOString();
  if (span === Infinity) return `${text.slice(0, 10)} ${text.slice(11, 16)}`;
  const midnight = text.slice(11, 16) === "00:00";
  return span > 2 * 86400 && midnight ? text.slice(5, 10) : text.slice(11, 16);
}

// Colours are the tokens of the style sheet, as the browser resolves them.
const probe = document.body.appendChild(document.createElement("span"));
probe.hidden = true;
const LINES = 6;

function colour(token) {
  probe.style.color = `var(--${token})`;
  return getComputedStyle(probe).color;
}

async function drawChart(figure) {
  const plot = figure.querySelector(".plot");
  const answer = await fetch(figure.dataset.chart, { headers: { accept: "application/json" } });
  if (!answer.ok) return;
  const found = await answer.json();
  const format = FORMATS[figure.dataset.kind] || FORMATS.count;
  const known = found.series.some((each) => each.values.some((value) => value !== null));
  figure.querySelector(".nodata").hidden = known;
  plot.hidden = !known;
  plot.replaceChildren();
  if (!known) return;
  const soft = colour("soft");
  const span = found.times[found.times.length - 1] - found.times[0];
  const few = Math.max(...found.series.map((each) => each.values.filter((value) => value !== null).length)) < 40;
  const grid = { stroke: colour("line"), width: 1 };
  const options = {
    width: plot.clientWidth || 400, height: 180, tzDate: (ts) => uPlot.tzDate(new Date(ts * 1e3), "Etc/UTC"),
    series: [{ label: "UTC", value: (_, value) => (value === null ? "–" : clock(value, Infinity)) }, ...found.series.map((each, place) => ({
      label: each.name, stroke: colour(`line-${place % LINES}`), width: 2, dash: place >= LINES ? [6, 4] : undefined,
      value: (_, value) => (value === null ? "–" : format(value)), points: { show: few, size: 5 } }))],
    axes: [{ stroke: soft, grid, values: (_, ticks) => ticks.map((each) => clock(each, span)) }, { stroke: soft, grid, size: 78, values: (_, ticks) => ticks.map(format),
      ...(STEPS[figure.dataset.kind] ? { incrs: STEPS[figure.dataset.kind] } : {}) }],
    scales: { y: { range: (_, low, high) => [Math.min(0, low || 0), high > 0 ? high * 1.1 : 1] } },
  };
  const chart = new uPlot(options, [found.times, ...found.series.map((each) => each.values)], plot);
  const last = Math.max(...found.series.map((each) => each.values.findLastIndex((value) => value !== null)));
  // Where no pointer says which point; uPlot first says that itself.
  const sayLast = () => requestAnimationFrame(() => chart.setLegend({ idx: last }));
  chart.over.addEventListener("mouseleave", sayLast);
  sayLast();
}

function drawCharts() {
  document.querySelectorAll("[data-chart]").forEach((each) => drawChart(each).catch(() => {}));
}

let resized = 0;
addEventListener("resize", () => { clearTimeout(resized); resized = setTimeout(drawCharts, 200); });
drawCharts();
setInterval(() => { if (!document.hidden) drawCharts(); }, 60_000);
listen();

// A choice that stands for several fields.
document.addEventListener("change", (event) => {
  const select = event.target;
  if (!(select instanceof HTMLSelectElement) || !select.dataset.splits) return;
  const values = select.value.split(",");
  select.dataset.splits.split(",").forEach((name, place) => {
    select.form.elements[name].value = values[place];
  });
});

// On a narrow screen the menu is one line: the page that is open is in sight there.
const current = document.querySelector(".menu [aria-current]");
if (current) current.parentElement.scrollLeft = current.offsetLeft - current.parentElement.clientWidth / 2;
