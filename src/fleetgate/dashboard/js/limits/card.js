// The card of a limit that rate limits change, on the page of its pool: limit, belief and refusals over time. The band
// is what is not known: from the highest level that was accepted up to the lowest that was refused.
import { now } from "../base/clock.js";
import { attr, byId, h, reconcile, s, show, text } from "../base/dom.js";
import { clock, count, some } from "../base/format.js";
import { ticks, timeTicks } from "../base/scale.js";
import { shownPool } from "../pools/page.js";
import { onChange, store, update } from "../state/store.js";
import { beliefDetails, beliefSentence } from "./belief.js";
import { limitReader, wantedLimit } from "./reading.js";

/** @type {[number, string][]} */
const SPANS = [[1, "1 h"], [6, "6 h"], [24, "24 h"]];
const WHY = {
  exact: "one too many", drop: "the limit has fallen", probe: "a probe: still too many", lag: "finished calls were still counted",
  alone: "not about how many", fit: "of the same incident", neighbour: "another user of the account",
  again: "one too many again, as before", early: "a released slot was still counted",
};
const LEFT = 40;
const RIGHT = 12;
const BOX = { top: 10, height: 120 };
const HEIGHT = 156;

const drawing = s("svg", { class: "chart-drawing", "aria-hidden": "true" });
const cross = s("line", { class: "cross", y1: BOX.top, y2: BOX.top + BOX.height });
const plot = h("div", { class: "chart-plot", role: "slider", tabindex: "0", "aria-label": "Time in the history of the limit", "aria-valuemin": "0" });
const legend = h("ul", { class: "chart-legend" });
const empty = h("p", { class: "chart-empty", text: "No rate limit and no other limit in this time." });
const sentence = h("p", { class: "belief" });
const details = h("div", { class: "belief-details" });
const range = h("div", { class: "segments", role: "group", "aria-label": "Time span" });
const card = h("section", { id: "limit-card", class: "card chart-card", "aria-labelledby": "limit-title", hidden: true },
  h("header", { class: "card-head" }, h("h3", { id: "limit-title", class: "part-title", text: "Limit" }), range),
  sentence,
  h("div", { class: "chart" }, plot, empty, legend),
  h("details", { class: "belief-more" }, h("summary", { text: "Why, and what would change it" }), details));

let width = 640;
let from = 0;
let until = 1;
/** The moment that is pointed at; null: now. @type {number | null} */
let pointed = null;
/** @type {any[]} */ let points = [];
/** @type {any[]} */ let refusals = [];
/** All moments at which something happened, for the keys. @type {number[]} */
let moments = [];

export function setUpLimitCard() {
  plot.append(drawing);
  byId("pool-parts").append(card);
  for (const [hours, label] of SPANS) {
    const button = h("button", { type: "button", text: label, on: { click: () => showHours(hours) } });
    range.append(button);
    const press = () => attr(button, "aria-pressed", String(store.limits.hours === hours));
    onChange(["limits"], press);
    press();
  }
  new ResizeObserver(([entry]) => {
    width = Math.max(220, Math.floor(entry.contentRect.width));
    draw();
  }).observe(plot);
  plot.addEventListener("pointermove", (event) => point(Math.min(until, Math.max(from, timeAt(event.offsetX)))));
  for (const leave of ["pointerleave", "blur"]) plot.addEventListener(leave, () => point(null));
  plot.addEventListener("keydown", onKey);
  onChange(["limits", "route", "pools"], draw);
  onChange(["route", "phase", "pools"], () => {
    if (wantedLimit() && store.limits.of !== wantedLimit()) limitReader.poke();
  });
}

function showHours(hours) {
  update({ limits: { ...store.limits, hours } });
  limitReader.readNow();
}

const x = (t) => LEFT + ((t - from) / (until - from)) * (width - LEFT - RIGHT);
const timeAt = (px) => from + ((px - LEFT) / (width - LEFT - RIGHT)) * (until - from);

/** What holds at a moment: the last point before it. */
function at(t) {
  return points.filter((each) => each.t <= t).at(-1);
}

function draw() {
  const of = wantedLimit();
  const { explanation, history } = store.limits;
  const pool = shownPool();
  const known = of !== "" && store.limits.of.startsWith(pool ? `${pool.kind} ${pool.pool} ` : "?") && history;
  show(card, Boolean(known));
  if (!known || !pool) return;
  text(sentence, beliefSentence(explanation));
  drawDetails(explanation);
  until = Math.max(now(), Date.parse(history.until));
  points = history.points.map((each) => ({ ...each, t: Date.parse(each.at) }));
  refusals = history.refusals.map((each) => ({ ...each, t: Date.parse(each.at) }));
  const first = Math.min(points[0]?.t ?? until, refusals[0]?.t ?? until);
  from = Math.max(until - store.limits.hours * 3_600_000, Math.min(first, until - 120_000)); // a young history fills the chart
  moments = [...new Set([...points, ...refusals].map((each) => each.t))].filter((t) => t >= from).sort((a, b) => a - b);
  show(empty, points.length === 0 && refusals.length === 0);
  const most = Math.max(1, pool.cap ?? 0, ...points.map((each) => Math.max(each.limit ?? 0, each.refused ?? 0)), ...refusals.map((each) => each.level));
  const steps = ticks(most, 4);
  const y = (value) => BOX.top + BOX.height - (value / steps.at(-1)) * BOX.height;
  attr(drawing, "viewBox", `0 0 ${width} ${HEIGHT}`);
  attr(drawing, "height", HEIGHT);
  drawing.replaceChildren(
    ...grid(steps, y), ...axis(),
    s("path", { class: "band", d: band(y, steps.at(-1)) }),
    s("path", { class: "line proven", d: stepsOf("proven", y) }),
    s("path", { class: "line limit learned", d: stepsOf("limit", y) }),
    ...refusals.filter((each) => each.t >= from).map((each) => s("circle", { class: "refusal", cx: x(each.t).toFixed(1), cy: y(each.level).toFixed(1), r: 3.5 })),
    cross,
  );
  point(pointed !== null && pointed >= from && pointed <= until ? pointed : null);
}

function drawDetails(explanation) {
  const shown = JSON.stringify([explanation.sentences, explanation.changes]);
  if (details.dataset.shown === shown) return;
  details.dataset.shown = shown;
  details.replaceChildren(...beliefDetails(explanation));
}

function grid(steps, y) {
  return steps.flatMap((value) => [
    s("line", { class: value ? "grid" : "grid base", x1: LEFT, x2: width - RIGHT, y1: y(value), y2: y(value) }),
    s("text", { class: "tick", x: LEFT - 8, y: y(value) + 3.5, "text-anchor": "end", text: count(value) }),
  ]);
}

function axis() {
  const marks = timeTicks(from, until, width < 480 ? 4 : 8).filter((t) => x(t) > LEFT + 14 && x(t) < width - RIGHT - 14);
  return marks.map((t) => s("text", { class: "tick", x: x(t), y: HEIGHT - 6, "text-anchor": "middle", text: clock(t, until - from < 240_000) }));
}

/** The parts of the time in which nothing changes: each point until the next one, the last until now. */
function parts() {
  return points
    .map((each, place) => ({ ...each, start: Math.max(each.t, from), end: points[place + 1]?.t ?? until }))
    .filter((each) => each.end >= from);
}

function stepsOf(field, y) {
  let path = "";
  let open = false;
  for (const each of parts()) {
    const value = each[field];
    if (value === null) {
      open = false;
      continue;
    }
    const height = y(value).toFixed(1);
    path += open ? `V${height}` : `M${x(each.start).toFixed(1)} ${height}`;
    path += `H${x(each.end).toFixed(1)}`;
    open = true;
  }
  return path;
}

/** From what is proven up to what is refused, or to the top where nothing was refused. */
function band(y, top) {
  return parts().filter((each) => each.proven !== null).map((each) => {
    const [left, right] = [x(each.start).toFixed(1), x(each.end).toFixed(1)];
    return `M${left} ${y(each.proven).toFixed(1)}H${right}V${y(each.refused ?? top).toFixed(1)}H${left}Z`;
  }).join("");
}

function onKey(event) {
  const place = pointed === null ? moments.length - 1 : moments.findLastIndex((t) => t <= /** @type {number} */ (pointed));
  const to = { ArrowLeft: place - 1, ArrowRight: place + 1, PageUp: place - 10, PageDown: place + 10, Home: 0, End: moments.length - 1 }[event.key];
  if (to === undefined || !moments.length) return;
  event.preventDefault();
  point(moments[Math.max(0, Math.min(to, moments.length - 1))]);
}

/** Show the values of one moment: the one that is pointed at, otherwise now. */
function point(t) {
  pointed = t;
  attr(cross, "visibility", t === null ? "hidden" : "visible");
  for (const end of ["x1", "x2"]) attr(cross, end, x(t ?? until).toFixed(1));
  const found = at(t ?? until);
  const near = t === null ? [] : refusals.filter((each) => Math.abs(x(each.t) - x(t)) <= 4);
  const last = near.at(-1);
  const total = refusals.filter((each) => each.t >= from).reduce((sum, each) => sum + each.times, 0);
  const said = last ? `${count(last.level)} refused${last.times > 1 ? `, one of ${count(last.times)}` : ""}: ${WHY[last.why] ?? (last.why ? `verdict ${last.why}` : "the limit was lowered")}` : "";
  const when = t === null ? "now" : clock(t, true);
  const rows = [
    ["limit", "Limit", found?.limit ?? null],
    ["proven", "Accepted", found?.proven ?? null],
    ["refused", "Refused from", found?.refused ?? null],
    ["refusal", t === null ? "Refusals" : "Refusal", t === null ? total : said || null],
    ["when", when, ""],
  ].filter(([, , value]) => value !== null);
  attr(plot, "aria-valuemax", Math.max(0, moments.length - 1));
  attr(plot, "aria-valuenow", Math.max(0, t === null ? moments.length - 1 : moments.findLastIndex((each) => each <= t)));
  const limit = found?.limit === null || found?.limit === undefined ? "" : `: limit ${found.limit}`;
  attr(plot, "aria-valuetext", `${when}${limit}${said ? `, ${said}` : ""}${t === null ? `, ${some(total, "refusal")}` : ""}`);
  reconcile(legend, rows, ([kind]) => String(kind), ([kind]) => h("li", { class: `key ${kind}` }, h("span", {}), h("b", {})), (node, [, label, value]) => {
    text(node.children[0], label);
    text(node.children[1], typeof value === "number" ? count(value) : value);
  });
}
