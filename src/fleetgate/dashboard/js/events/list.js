// The list of the latest events, newest first.
import { timeNode } from "../base/clock.js";
import { byId, h, reconcile, show } from "../base/dom.js";
import { onChange, store } from "../state/store.js";
import { nothing } from "../base/table.js";
import { QUIET } from "./search.js";

const SHOWN = 14;
const BAD = new Set(["reduced", "reclaimed", "backed_off", "expired", "bypassed", "returned"]);

const list = h("ol", { class: "events", reversed: true });
const empty = nothing("No events yet", "Grants, releases, pauses and rate limits appear here as they happen.");

export function setUpEvents() {
  byId("event-list").append(list, empty);
  onChange(["events"], draw);
}

/** Add to what is known, which is newest first; the oldest are forgotten. */
export function remember(known, event) {
  if (QUIET.has(event.type) || known.some((each) => each.seq === event.seq)) return known;
  return [event, ...known].sort((one, other) => other.seq - one.seq).slice(0, SHOWN);
}

function draw() {
  show(list, store.events.length > 0);
  show(empty, store.events.length === 0);
  reconcile(list, store.events, (event) => String(event.seq), make, () => {});
}

/** Whether an event tells of something that went wrong. */
export const isBad = (event) => BAD.has(event.type) || event.outcome === "rate_limited";

function make(event) {
  const tone = isBad(event) ? "event bad" : "event";
  const text = event.text ?? event.type;
  return h("li", { class: tone }, h("span", { class: "event-text", text, title: text }), timeNode(event.at, "ago"));
}
