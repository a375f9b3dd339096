// The card of one pool: its slots, its queue and its state.
import * as actions from "./actions.js";
import { now, setTime, timeNode } from "../base/clock.js";
import { attr, h, show, text } from "../base/dom.js";
import { count, setting, some } from "../base/format.js";
import { icon } from "../base/icons.js";
import { editPool, pausePool } from "./dialogs.js";
import { poolAddress } from "../frame/pages.js";
import { look } from "../state/refresh.js";
import { drawSlots, isBlocking, slotsOf } from "./slots.js";
import { drawSpark } from "./spark.js";
import { mayChange, poolKey, store, update } from "../state/store.js";

export function makePoolCard() {
  const node = /** @type {any} */ (h("li", { class: "card pool" }));
  const parts = {
    name: h("a", { class: "pool-name" }),
    kind: h("span", { class: "kind" }),
    state: h("span", { class: "chip" }),
    label: h("span", {}),
    taken: h("span", { class: "pool-taken" }),
    limit: h("span", { class: "pool-limit" }),
    slots: h("div", { class: "slots", role: "img" }),
    queue: h("button", { type: "button", class: "pool-queue", on: { click: () => look({ pool: poolKey(node.pool), query: "" }) } }),
    idle: h("span", { class: "pool-queue none" }),
    until: timeNode(null, "left"),
    rules: h("p", { class: "pool-rules" }),
    upstream: h("p", { class: "pool-upstream" }),
    spark: h("button", {
      type: "button", class: "spark",
      on: { click: () => update({ chart: { ...store.chart, pool: poolKey(node.pool) } }) },
    }),
    pause: h("button", { type: "button", class: "icon-button", on: { click: () => togglePause(node.pool) } }),
    edit: h("button", { type: "button", class: "icon-button", on: { click: () => editPool(node.pool) } }, icon("edit")),
  };
  node.parts = parts;
  parts.state.append(parts.label, " ", parts.until);
  node.append(
    h("header", { class: "pool-head" }, h("div", { class: "pool-title" }, h("h3", {}, parts.name), parts.kind),
      h("div", { class: "pool-actions" }, parts.pause, parts.edit)),
    h("div", { class: "pool-main" },
      h("p", { class: "pool-number" }, parts.taken, parts.limit), parts.spark),
    parts.slots,
    h("div", { class: "pool-facts" }, parts.state, parts.queue, parts.idle),
    parts.rules,
    parts.upstream,
  );
  return node;
}

export function togglePause(pool) {
  return pool.paused ? actions.resume(pool) : pausePool(pool);
}

export function changePoolCard(node, pool) {
  node.pool = pool;
  const p = node.parts;
  const slots = drawState(node, p, pool);
  drawName(p, pool);
  text(p.taken, count(slots.taken));
  text(p.limit, pool.limit === null ? "no limit" : `/ ${count(pool.limit)}`);
  drawSlots(p.slots, pool);
  text(p.queue, `${count(pool.queued)} waiting`);
  attr(p.queue, "aria-label", `${count(pool.queued)} waiting for ${pool.pool}: show them`);
  show(p.queue, isBlocking(pool));
  show(p.idle, !isBlocking(pool));
  text(p.idle, pool.queued ? `${count(pool.queued)} waiting for something else` : "none waiting");
  text(p.rules, rulesOf(pool));
  text(p.upstream, upstreamOf(pool));
  show(p.upstream, Boolean(pool.upstream));
  attr(p.spark, "aria-label", `Show ${pool.pool} (${pool.kind}) in the history chart`);
  attr(p.spark, "title", "Show in the history chart");
  drawSpark(p.spark, store.series.samples, poolKey(pool));
  drawButtons(p, pool);
}

/** A pool's name, as a link to its page. */
export function drawName(p, pool) {
  text(p.name, pool.pool);
  attr(p.name, "title", pool.pool);
  attr(p.name, "href", poolAddress(pool));
  text(p.kind, pool.kind);
}

/** The chip with a pool's state. @returns  its slots */
export function drawState(node, p, pool) {
  const slots = slotsOf(pool);
  const [state, label] = stateOf(pool, slots);
  attr(node, "data-state", state);
  attr(p.state, "class", `chip ${state}`);
  text(p.label, label);
  setTime(p.until, pool.paused ? pool.paused_until : null);
  return slots;
}

/** The buttons that pause a pool and change its cap, in its card or in its row of the table. */
export function drawButtons(p, pool) {
  show(p.pause, mayChange());
  show(p.edit, mayChange());
  if (p.pause.dataset.paused !== String(pool.paused)) {
    p.pause.dataset.paused = String(pool.paused);
    p.pause.replaceChildren(icon(pool.paused ? "play" : "pause"));
  }
  const verb = pool.paused ? "Resume" : "Pause";
  attr(p.pause, "aria-label", `${verb} ${pool.pool} (${pool.kind})`);
  attr(p.pause, "title", verb);
  attr(p.edit, "aria-label", `Change cap and cooldown of ${pool.pool} (${pool.kind})`);
  attr(p.edit, "title", "Cap and cooldown");
}

/** The state of a pool: the most urgent one. */
export function stateOf(pool, slots) {
  if (pool.paused) {
    const why = pool.pause_cause === "rate_limited" ? "rate limited" : "paused";
    return ["paused", pool.paused_until ? `${why}, resumes in` : `${why} until resumed`];
  }
  if (slots.over) return ["over", `${slots.over} over the limit`];
  if (pool.reserved) return ["full", "reserved for the longest waiting"];
  if (pool.limit !== null && slots.taken >= pool.limit) return ["full", "full"];
  if (slots.cooling && !slots.free) return ["cooling", "cooling"];
  if (pool.auto_reduced) return ["reduced", "reduced"];
  return ["open", slots.taken ? `${some(slots.free, "slot")} free` : "idle"];
}

export function rulesOf(pool) {
  const cap = pool.auto ? `cap follows memory, ${pool.cap ?? "?"} now` : `cap ${pool.cap ?? "none"}`;
  const parts = [pool.source === "file" ? cap : `${cap}, ${pool.source === "built-in" ? "built in" : "set at run time"}`];
  if (pool.kept) parts.push(`${pool.kept} for interactive work`);
  if (pool.cooldown_ms) parts.push(`cooldown ${setting(pool.cooldown_ms)}`);
  if (pool.auto_reduced) parts.push(`reduced from ${pool.auto_reduced_from}`);
  if (pool.account?.includes("@") && pool.account !== pool.pool) parts.push(`account ${pool.account}`);
  return parts.join(" · ");
}

export function upstreamOf(pool) {
  const said = pool.upstream;
  if (!said) return "";
  if (said.error) return `The provider's own count is unknown: ${said.error}`;
  if (said.in_flight === null) return said.asking ? "Asking the provider for its own count" : "The provider has not been asked yet";
  const age = said.at ? Math.max(0, Math.round((now() - Date.parse(said.at)) / 1000)) : null;
  return `The provider counts ${said.in_flight} in flight${age === null ? "" : `, ${age} s ago`}`;
}
