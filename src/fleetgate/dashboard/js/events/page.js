// The Events page: the history, newest first, searched by time, type and name. The search is an address: #/events?text=web&type=reduced&since=24h.
import { dialog, facts } from "../base/dialogs.js";
import { timeNode } from "../base/clock.js";
import { attr, byId, h, reconcile, show, text } from "../base/dom.js";
import { clock, count, exact, words } from "../base/format.js";
import { nothing } from "../base/table.js";
import { eventsAddress, goTo, itemAddress, projectAddress } from "../frame/pages.js";
import { onChange, store } from "../state/store.js";
import { isBad } from "./list.js";
import { readOlder, searchKey, searchReader } from "./search.js";

/** @type {[string, string][]} */
const SPANS = [["", "Any time"], ["15m", "Last 15 min"], ["1h", "Last hour"], ["24h", "Last 24 h"], ["7d", "Last 7 days"], ["range", "From … to …"]];
const TYPING_MS = 250;

const field = (props) => /** @type {HTMLInputElement} */ (h("input", props));
const search = field({ type: "search", id: "event-search", placeholder: "Search events", autocomplete: "off", spellcheck: "false" });
const type = /** @type {HTMLSelectElement} */ (h("select", { id: "event-type" }));
const span = /** @type {HTMLSelectElement} */ (h("select", { id: "event-span" }, ...SPANS.map(([value, title]) => h("option", { value, text: title }))));
const from = field({ type: "datetime-local", id: "event-from" });
const to = field({ type: "datetime-local", id: "event-to" });
const range = h("div", { class: "range" }, h("label", {}, "From ", from), h("label", {}, "to ", to));

const list = h("ol", { class: "events found", reversed: true });
const empty = nothing("No matching events", "The search covers the sentence, the ID, commands, models and projects; every word must occur.");
const loading = h("p", { class: "nothing", text: "Searching…" });
const failed = h("p", { class: "nothing", role: "alert" });
const older = h("button", { type: "button", class: "button", on: { click: () => readOlder() } });
const foot = h("p", { class: "list-foot" }, older);

export function setUpEventSearch() {
  const label = (title, node, kind = "select") => h("label", { class: kind }, h("span", { class: "sr", text: title }), node);
  byId("event-tools").append(label("Search events", search, "search"), label("Type of event", type), label("Time", span), range);
  byId("event-found").append(list, empty, loading, failed, foot);
  let typing = 0;
  search.addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(() => choose({ text: search.value.trim() }), TYPING_MS);
  });
  type.addEventListener("change", () => choose({ type: type.value }));
  span.addEventListener("change", () => choose(span.value === "range" ? { since: local(Date.now() - 3_600_000), until: local(Date.now()) } : { since: span.value, until: "" }));
  for (const input of [from, to]) input.addEventListener("change", () => choose({ since: from.value, until: to.value }));
  onChange(["route", "found"], draw);
  onChange(["route"], () => searchReader.readNow());
  onChange(["phase"], () => searchReader.poke());
}

/** A time as the browser's own field has it. */
function local(ms) {
  const there = new Date(ms - new Date(ms).getTimezoneOffset() * 60_000);
  return there.toISOString().slice(0, 16);
}

function choose(change) {
  const query = { ...store.route.query, ...change };
  const given = Object.fromEntries(Object.entries(query).filter(([, value]) => value));
  goTo("events", given, { replace: true });
}

function draw() {
  if (store.route.page !== "events") return;
  const { phase, problem, of, events, next, searched, types } = store.found;
  const { query } = store.route;
  if (search !== document.activeElement) search.value = query.text ?? "";
  drawTypes(types, query.type ?? "");
  const isRange = Boolean(query.until) || (query.since ?? "").includes("T");
  span.value = isRange ? "range" : query.since ?? "";
  show(range, isRange);
  if (from !== document.activeElement) from.value = isRange ? query.since ?? "" : "";
  if (to !== document.activeElement) to.value = query.until ?? "";
  const current = of === searchKey();
  const ready = current && phase === "ready";
  show(list, ready && events.length > 0);
  show(empty, ready && events.length === 0 && next === null);
  show(loading, !current || phase === "loading");
  show(failed, current && phase === "error");
  text(failed, `The events cannot be searched: ${problem}.`);
  show(foot, ready && next !== null);
  text(older, events.length ? "Show older events" : `Nothing in the last ${count(searched)} events. Search older ones`);
  reconcile(list, ready ? events : [], (event) => String(event.seq), make, () => {});
}

function drawTypes(types, chosen) {
  const items = [["", "All types"], ...[...new Set([...types, ...(chosen ? [chosen] : [])])].map((each) => [each, words(each)])];
  reconcile(type, items, ([value]) => value, ([value, title]) => h("option", { value, text: title }), () => {});
  if (type.value !== chosen) type.value = chosen;
}

function make(event) {
  const when = h("time", { class: "event-clock", datetime: event.at, text: clock(Date.parse(event.at), true), title: exact(event.at) });
  const open = h("button", { type: "button", class: "event-open", text: event.text ?? event.type, on: { click: () => showEvent(event) } });
  const node = h("li", { class: isBad(event) ? "event bad" : "event" }, when, h("span", { class: "chip", text: words(event.type) }), open, timeNode(event.at, "ago"));
  attr(open, "title", event.text);
  return node;
}

/** All that an event says, with links to what it is about. */
function showEvent(event) {
  const { seq, at, type: kind, text: sentence, ...rest } = event;
  const id = typeof event.id === "string" ? event.id : null;
  const project = event.project ?? event.ticket?.spec?.project ?? null;
  const rows = Object.entries(rest).filter(([name, value]) => value !== null && value !== "" && name !== "id").map(([name, value]) => (
    [words(name), typeof value === "object" ? h("code", { text: JSON.stringify(value) }) : String(value)]));
  const links = id ? h("span", { class: "links" }, h("a", { href: itemAddress("tickets", id), text: id }), h("a", { href: eventsAddress(id), text: "all its events" })) : null;
  return dialog({
    title: sentence ?? kind,
    kicker: `Event ${count(seq)}, ${words(kind)}`,
    wide: true,
    body: () => [facts([["Time", exact(at)], ["ID", links], ["Project", project ? h("a", { href: projectAddress(project), text: project }) : null], ...rows])],
  });
}
