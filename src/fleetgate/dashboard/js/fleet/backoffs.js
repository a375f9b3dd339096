// The list of backoffs: models and accounts that are not used for a while, with the time left.
import * as actions from "./actions.js";
import { now, setTime, timeNode } from "../base/clock.js";
import { attr, byId, h, reconcile, show, text } from "../base/dom.js";
import { count, words } from "../base/format.js";
import { mayChange, onChange, store } from "../state/store.js";
import { nothing } from "../base/table.js";

const list = h("ul", { class: "backoffs" });
const empty = nothing("No backoffs", "A model or account that a provider refuses is listed here until it can be used again.");

export function setUpBackoffs() {
  byId("backoff-list").append(list, empty);
  onChange(["backoffs", "session"], draw);
}

function draw() {
  text(byId("backoffs-count"), store.backoffs.length ? count(store.backoffs.length) : "");
  show(list, store.backoffs.length > 0);
  show(empty, store.backoffs.length === 0);
  reconcile(list, store.backoffs, (backoff) => backoff.key, make, change);
}

/** Draw how much of the time has passed; called every second. */
export function tickBackoffs() {
  for (const node of /** @type {any} */ (list.children)) drawMeter(node);
}

function make() {
  const node = /** @type {any} */ (h("li", { class: "backoff" }));
  const p = (node.parts = {
    key: h("h3", { class: "backoff-key" }),
    chip: h("span", { class: "chip paused" }),
    left: timeNode(null, "left"),
    suffix: h("span", {}),
    scope: h("span", {}),
    evidence: h("p", { class: "evidence" }),
    meter: h("span", { class: "meter", "aria-hidden": "true" }, h("i", {})),
    clear: h("button", { type: "button", class: "button small", text: "Clear", on: { click: () => actions.clearBackoff(node.backoff) } }),
  });
  node.append(
    h("div", { class: "backoff-head" }, p.key, p.clear),
    h("p", { class: "backoff-facts" }, p.chip, h("span", { class: "backoff-left" }, p.left, p.suffix), p.scope),
    p.meter, p.evidence,
  );
  return node;
}

function change(node, backoff) {
  node.backoff = backoff;
  const p = node.parts;
  text(p.key, backoff.key);
  text(p.chip, words(backoff.reason));
  attr(p.chip, "class", `chip ${["auth", "quota"].includes(backoff.reason) ? "over" : "paused"}`);
  setTime(p.left, backoff.until);
  const parts = [backoff.scope];
  if (backoff.manual) parts.push("set by hand");
  if (backoff.probing) parts.push(`${backoff.probing} is testing it`);
  text(p.scope, parts.join(" · "));
  const evidence = backoff.manual ? "" : (backoff.evidence ?? "");
  text(p.evidence, evidence);
  attr(p.evidence, "title", evidence);
  show(p.evidence, Boolean(evidence));
  show(p.clear, mayChange());
  attr(p.clear, "aria-label", `Clear the backoff of ${backoff.key}`);
  drawMeter(node);
}

function drawMeter(node) {
  const { since, until } = node.backoff;
  const from = Date.parse(since ?? until);
  const part = Math.min(1, Math.max(0, (now() - from) / Math.max(1, Date.parse(until) - from)));
  const over = part === 1;
  show(node.parts.left, !over);
  text(node.parts.suffix, over ? "next call tests it" : " left");
  node.parts.meter.firstElementChild.style.setProperty("--part", part.toFixed(3));
}
