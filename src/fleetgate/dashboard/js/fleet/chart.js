// The history chart: running slots under their limit, below them the queue, and a mark for every rate limit. The queue
// has its own scale: it may be a thousand times longer than there are slots.
import { attr, byId, h, reconcile, s, show, text } from "../base/dom.js";
import { clock, count, some } from "../base/format.js";
import { now } from "../base/clock.js";
import { ticks, timeTicks } from "../base/scale.js";
import { showSpan } from "../state/series.js";
import { onChange, poolKey, store, update } from "../state/store.js";

/** @type {[number, string][]} */
const SPANS = [[15, "15 min"], [60, "1 h"], [360, "6 h"], [1440, "24 h"]];
const SHORTEST_MS = 120_000;
const LEFT = 40;
const RIGHT = 12;
const UPPER = { top: 10, height: 92 };
const LOWER = { top: 118, height: 38 };
const MARKS = { top: 164, height: 9 };
const HEIGHT = 196;

const drawing = s("svg", { class: "chart-drawing", "aria-hidden": "true" });
const cross = s("line", { class: "cross", y1: UPPER.top, y2: MARKS.top + MARKS.height });
const plot = h("div", {
  class: "chart-plot", role: "slider", tabindex: "0", "aria-label": "Time in the history", "aria-valuemin": "0",
});
const legend = h("ul", { class: "chart-legend" });
const nothingYet = h("p", { class: "chart-empty", text: "The history begins when the service starts. The first points appear in a few seconds." });
let width = 640;
/** The sample under the pointer; null: the newest. @type {number | null} */
let pointed = null;
/** @type {{t: number, used: number, limit: number | null, queued: number, hits: number}[]} */
let points = [];
let from = 0;
let until = 1;

export function setUpChart() {
  plot.append(drawing);
  byId("chart").append(plot, nothingYet, legend);
  new ResizeObserver(([entry]) => {
    width = Math.max(240, Math.floor(entry.contentRect.width));
    draw();
  }).observe(plot);
  plot.addEventListener("pointermove", (event) => point(nearest(event.offsetX)));
  plot.addEventListener("pointerleave", () => point(null));
  plot.addEventListener("blur", () => point(null));
  plot.addEventListener("keydown", onKey);
  setUpControls();
  onChange(["series", "chart"], draw);
}

function setUpControls() {
  const pool = /** @type {HTMLSelectElement} */ (byId("chart-pool"));
  pool.addEventListener("change", () => update({ chart: { ...store.chart, pool: pool.value } }));
  for (const [minutes, label] of SPANS) {
    const button = h("button", { type: "button", text: label, on: { click: () => showSpan(minutes) } });
    byId("chart-range").append(button);
    onChange(["chart"], () => attr(button, "aria-pressed", String(store.chart.minutes === minutes)));
    attr(button, "aria-pressed", String(store.chart.minutes === minutes));
  }
  onChange(["pools", "chart"], () => {
    const items = [["", "All pools"], ...store.pools.map((each) => [poolKey(each), `${each.pool} (${each.kind})`])];
    reconcile(pool, items, ([value]) => value, ([value]) => h("option", { value }), (node, [, label]) => text(node, label));
    if (pool.value !== store.chart.pool) pool.value = store.chart.pool;
  });
}

function onKey(event) {
  const at = pointed ?? points.length - 1;
  const to = { ArrowLeft: at - 1, ArrowRight: at + 1, PageUp: at - 12, PageDown: at + 12, Home: 0, End: points.length - 1 }[event.key];
  if (to === undefined || !points.length) return;
  event.preventDefault();
  point(Math.max(0, Math.min(to, points.length - 1)));
}

function read() {
  const { pool, minutes } = store.chart;
  until = Math.max(now(), store.series.samples.at(-1)?.t ?? 0);
  const first = store.series.samples[0]?.t ?? until;
  from = Math.max(until - minutes * 60_000, Math.min(first, until - SHORTEST_MS)); // a young history fills the chart
  points = store.series.samples.filter((sample) => sample.t >= from).flatMap((sample) => {
    if (!pool) return [{ t: sample.t, used: sample.running, limit: null, queued: sample.waiting, hits: sample.rate_limits }];
    const each = sample.pools[pool];
    return each ? [{ t: sample.t, used: each.in_flight, limit: each.limit, queued: each.queued, hits: each.rate_limits }] : [];
  });
}

const x = (t) => LEFT + ((t - from) / (until - from)) * (width - LEFT - RIGHT);

function draw() {
  read();
  attr(drawing, "viewBox", `0 0 ${width} ${HEIGHT}`);
  attr(drawing, "height", HEIGHT);
  show(nothingYet, points.length < 2);
  const upper = scaleOf(UPPER, Math.max(...points.map((each) => Math.max(each.used, each.limit ?? 0)), 1), 3);
  const lower = scaleOf(LOWER, Math.max(...points.map((each) => each.queued), 1), 1);
  drawing.replaceChildren(
    ...grid(upper), ...grid(lower), ...axis(),
    s("path", { class: "area used", d: outline((each) => upper.y(each.used), UPPER.top + UPPER.height) }),
    s("path", { class: "line used", d: outline((each) => upper.y(each.used)) }),
    s("path", { class: "line limit", d: outline((each) => (each.limit === null ? null : upper.y(each.limit))) }),
    s("path", { class: "area queued", d: outline((each) => lower.y(each.queued), LOWER.top + LOWER.height) }),
    s("path", { class: "line queued", d: outline((each) => lower.y(each.queued)) }),
    ...points.filter((each) => each.hits).map((each) => s("rect", {
      class: "hit", x: (x(each.t) - 1.25).toFixed(1), y: MARKS.top, width: 2.5, height: MARKS.height, rx: 1,
    })),
    cross,
  );
  if (pointed !== null && pointed >= points.length) pointed = null;
  point(pointed);
}

function scaleOf(box, most, wanted) {
  const steps = ticks(most, wanted);
  const top = steps.at(-1);
  return { box, steps, y: (value) => box.top + box.height - (value / top) * box.height };
}

function grid({ steps, y }) {
  return steps.flatMap((value) => [
    s("line", { class: value ? "grid" : "grid base", x1: LEFT, x2: width - RIGHT, y1: y(value), y2: y(value) }),
    s("text", { class: "tick", x: LEFT - 8, y: y(value) + 3.5, "text-anchor": "end", text: count(value) }),
  ]);
}

function axis() {
  const marks = timeTicks(from, until, width < 480 ? 4 : 8).filter((t) => x(t) > LEFT + 14 && x(t) < width - RIGHT - 14);
  return marks.map((t) => s("text", { class: "tick", x: x(t), y: HEIGHT - 6, "text-anchor": "middle", text: clock(t, until - from < 240_000) }));
}

/** Steps from sample to sample, with a gap where there was none; closed down to `floor` for an area. */
function outline(y, floor) {
  const gap = store.series.stepS * 3_500;
  let path = "";
  let open = false;
  points.forEach((each, place) => {
    const at = y(each);
    const broken = place > 0 && each.t - points[place - 1].t > gap;
    if (open && (broken || at === null)) {
      if (floor !== undefined) path += `V${floor}Z`;
      open = false;
    }
    if (at === null) return;
    const [px, py] = [x(each.t).toFixed(1), at.toFixed(1)];
    if (open) path += `H${px}V${py}`;
    else path += floor === undefined ? `M${px} ${py}` : `M${px} ${floor}V${py}`;
    open = true;
  });
  return open && floor !== undefined ? `${path}V${floor}Z` : path;
}

function nearest(px) {
  if (!points.length) return null;
  const t = from + ((px - LEFT) / (width - LEFT - RIGHT)) * (until - from);
  let best = 0;
  points.forEach((each, place) => {
    if (Math.abs(each.t - t) < Math.abs(points[best].t - t)) best = place;
  });
  return best;
}

/** Show the values of one sample: the one that is pointed at, otherwise the newest. */
function point(place) {
  pointed = place;
  const at = points[place ?? points.length - 1];
  attr(cross, "visibility", place === null ? "hidden" : "visible");
  if (at) for (const end of ["x1", "x2"]) attr(cross, end, x(at.t).toFixed(1));
  attr(plot, "aria-valuemax", Math.max(0, points.length - 1));
  attr(plot, "aria-valuenow", Math.max(0, place ?? points.length - 1));
  const when = !at ? "" : place === null ? "now" : clock(at.t, true);
  const rows = !at ? [] : [
    ["used", "Running", count(at.used)],
    ["limit", "Limit", at.limit === null ? null : count(at.limit)],
    ["queued", "Waiting", count(at.queued)],
    ["hit", "Rate limits", count(at.hits)],
    ["when", when, ""],
  ].filter(([, , value]) => value !== null);
  attr(plot, "aria-valuetext", at ? `${when}: ${at.used} running${at.limit === null ? "" : `, limit ${at.limit}`}, ${at.queued} waiting, ${some(at.hits, "rate limit")}` : "no data yet");
  reconcile(legend, rows, ([kind]) => kind, ([kind]) => h("li", { class: `key ${kind}` }, h("span", {}), h("b", {})), (node, [, label, value]) => {
    text(node.children[0], label);
    text(node.children[1], value);
  });
}
