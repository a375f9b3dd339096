// The page of one pool: #/pools/NAME?kind=requests. Its state, its history, what runs in it and what waits for it.
// Other modules put cards of their own into #pool-parts, and draw them for the pool of `shownPool`.
import { timeNode } from "../base/clock.js";
import { attr, byId, h, show, text } from "../base/dom.js";
import { facts } from "../base/dialogs.js";
import { count, setting } from "../base/format.js";
import { icon } from "../base/icons.js";
import { nothing } from "../base/table.js";
import { makeLeaseTable } from "../fleet/lease_table.js";
import { makeTicketTable } from "../fleet/ticket_table.js";
import { address, eventsAddress, goTo } from "../frame/pages.js";
import { look } from "../state/refresh.js";
import { scopeKey, scopeReader } from "../state/scope.js";
import { onChange, poolKey, store, update } from "../state/store.js";
import { drawButtons, drawState, togglePause, upstreamOf } from "./card.js";
import { editPool } from "./dialogs.js";
import { drawSlots } from "./slots.js";

/** The pool that the address names, or undefined. */
export function shownPool() {
  const { page, name, query } = store.route;
  if (page !== "pool") return undefined;
  return store.pools.find((pool) => pool.pool === name && (!query.kind || pool.kind === query.kind));
}

const p = {
  name: h("h2", { class: "page-name", id: "pool-title" }),
  kind: h("span", { class: "kind" }),
  state: h("span", { class: "chip" }),
  label: h("span", {}),
  until: timeNode(null, "left"),
  taken: h("span", { class: "pool-taken" }),
  limit: h("span", { class: "pool-limit" }),
  slots: h("div", { class: "slots", role: "img" }),
  facts: h("div", {}),
  pause: h("button", { type: "button", class: "icon-button", on: { click: () => togglePause(shownPool()) } }),
  edit: h("button", { type: "button", class: "icon-button", on: { click: () => editPool(shownPool()) } }, icon("edit")),
};
p.state.append(p.label, " ", p.until);
const card = h("div", { class: "card pool-summary" }, h("div", { class: "pool-main" }, h("p", { class: "pool-number" }, p.taken, p.limit), p.state), p.slots, p.facts);
const running = makeLeaseTable("Running in this pool");
const waiting = makeTicketTable("Waiting for this pool");
const nothingRuns = nothing("Nothing is running in this pool", "");
const nothingWaits = nothing("Nothing is waiting for this pool", "");
const loading = h("p", { class: "nothing", text: "Loading the queue…" });
const more = h("button", { type: "button", class: "link list-more", on: { click: () => {
  const pool = shownPool();
  goTo("fleet");
  look({ pool: poolKey(pool), query: "" });
} } });
const missing = h("div", { class: "card", hidden: true }, nothing("There is no such pool", "Pools appear when a cap is set or an agent uses a model. `fleetgate status` lists them."));
const events = h("a", { class: "link", text: "Events of this pool" });

export function setUpPoolPage() {
  byId("pool-head").append(h("a", { class: "back", href: address("fleet"), text: "Fleet" }), p.name, p.kind, h("div", { class: "pool-actions" }, p.pause, p.edit), events);
  byId("pool-summary").append(card, missing);
  byId("pool-running").append(running.node, nothingRuns);
  byId("pool-waiting").append(waiting.node, nothingWaits, loading, more);
  onChange(["route", "pools", "leases", "scope", "session"], draw);
  onChange(["route", "phase"], () => {
    moveChart();
    if (scopeKey() && store.scope.of !== scopeKey()) scopeReader.readNow();
  });
}

/** There is one chart: it is on the page that is shown. */
function moveChart() {
  const chart = byId("history-card");
  const pool = shownPool();
  const place = byId(store.route.page === "pool" ? "pool-chart" : "overview");
  if (chart.parentElement !== place) {
    place.append(chart);
    update({ chart: { ...store.chart, pool: pool ? poolKey(pool) : "" } });
  } else if (pool && store.chart.pool !== poolKey(pool)) update({ chart: { ...store.chart, pool: poolKey(pool) } });
}

function draw() {
  if (store.route.page !== "pool") return;
  const pool = shownPool();
  const { name } = store.route;
  text(p.name, name);
  show(missing, !pool && store.phase === "ready");
  for (const node of [card, byId("pool-chart"), byId("pool-lists"), p.pause, p.edit]) show(node, Boolean(pool));
  attr(events, "href", eventsAddress(name));
  text(p.kind, pool?.kind ?? "");
  if (!pool) return;
  const slots = drawState(card, p, pool);
  text(p.taken, count(slots.taken));
  text(p.limit, pool.limit === null ? "no limit" : `/ ${count(pool.limit)} in use`);
  drawSlots(p.slots, pool);
  drawButtons(p, pool);
  drawFacts(pool);
  const leases = store.leases.filter((lease) => lease.kind === pool.kind && lease.pools.includes(pool.pool));
  text(byId("pool-running-count"), leases.length ? count(leases.length) : "");
  running.draw(leases);
  show(nothingRuns, leases.length === 0);
  const { of, tickets, waiting: number } = store.scope;
  const known = of === scopeKey();
  const current = known ? tickets : [];
  text(byId("pool-waiting-count"), current.length ? count(number) : "");
  waiting.draw(current);
  show(nothingWaits, known && current.length === 0);
  show(loading, !known);
  show(more, known && number > current.length);
  text(more, `Show all ${count(number)} in the queue`);
}

const ON_429 = { adapt: "lowered, and raised again as calls succeed", step: "lowered by one until a person restores it", pause: "paused for a while", fixed: "nothing happens" };

function drawFacts(pool) {
  const rows = /** @type {[string, string | null][]} */ ([
    ["Cap", pool.auto ? `follows free memory, ${pool.cap ?? "?"} now` : pool.cap === null ? "none" : count(pool.cap)],
    ["Set by", { file: "the config file", "built-in": "Fleetgate itself", "run time": "a person, at run time" }[pool.source] ?? pool.source],
    ["Reduced from", pool.auto_reduced ? count(pool.auto_reduced_from) : null],
    ["Cooldown", pool.cooldown_ms ? setting(pool.cooldown_ms) : null],
    ["After a rate limit", ON_429[pool.on_429] ?? pool.on_429],
    ["Counts", pool.selector === pool.pool ? null : pool.selector],
    ["Account", pool.account],
    ["Machine", pool.host],
    ["Provider", upstreamOf(pool) || null],
  ]);
  const shown = JSON.stringify(rows);
  if (p.facts.dataset.shown === shown) return;
  p.facts.dataset.shown = shown;
  p.facts.replaceChildren(facts(rows));
}
