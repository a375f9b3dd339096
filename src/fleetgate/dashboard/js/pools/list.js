// The pools of the fleet: cards, or a table where there are many. Trouble comes first; idle pools stand below the queue.
import { attr, byId, h, reconcile, show, text } from "../base/dom.js";
import { count, some } from "../base/format.js";
import { nothing } from "../base/table.js";
import { onChange, poolKey, store } from "../state/store.js";
import { choose, chosen, grouped, GROUPS, isTrouble, matcher, ordered, SORTS } from "./arrangement.js";
import { changePoolCard, makePoolCard } from "./card.js";
import { KINDS } from "./slots.js";
import { makePoolTable } from "./table.js";

const CARD = 316; // the narrowest, in px
const GAP = 16;
const ONE_ROW = 4; // no more pools than this: they are never divided
const MANY = 12; // more pools than this are a table, unless a person chooses otherwise
const mostRows = () => (narrow.matches ? 6 : 15); // of a table, and as many cards, until a person asks for all
const STAYS_MS = 60_000; // a pool that has just become idle keeps its place

const narrow = matchMedia("(max-width: 620px)");
const noCells = matchMedia("(max-width: 860px)"); // the table shows no slots there
let query = "";
/** When each pool was last in use. @type {Map<string, number>} */
const lastUse = new Map();

const inUse = makeList("pool-cards", "Pools");
const idle = makeList("idle-cards", "Idle pools");
const unmatched = h("div", { class: "card", hidden: true }, nothing("No matching pools", "The filter covers names, providers, accounts, kinds and states."));
const search = /** @type {HTMLInputElement} */ (h("input", { type: "search", id: "pool-search", placeholder: "Filter pools", autocomplete: "off", spellcheck: "false" }));
const forms = h("div", { class: "segments", role: "group", "aria-label": "Show pools as" });
const group = select(GROUPS, (value) => choose({ group: value }));
const sort = select(SORTS, (value) => choose({ sort: value }));

export function setUpPools() {
  byId("slot-legend").append(
    ...Object.entries(KINDS).map(([kind, name]) => h("span", {}, h("i", { class: `slot ${kind}` }), name)),
  );
  byId("pool-tools").append(h("label", { class: "search" }, h("span", { class: "sr", text: "Filter pools" }), search),
    h("label", { class: "select" }, h("span", { class: "sr", text: "Group pools" }), group),
    h("label", { class: "select" }, h("span", { class: "sr", text: "Sort pools" }), sort), forms);
  for (const [name, title] of [["cards", "Cards"], ["table", "Table"]]) {
    forms.append(h("button", { type: "button", text: title, "data-form": name, on: { click: () => {
      choose({ form: name });
      draw();
    } } }));
  }
  search.addEventListener("input", () => {
    query = search.value.trim();
    draw();
  });
  search.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !search.value) return;
    event.preventDefault();
    search.value = query = "";
    draw();
  });
  byId("pool-list").append(inUse.node, unmatched);
  byId("idle-list").append(idle.node);
  onChange(["pools", "session", "series", "waiting"], draw);
  narrow.addEventListener("change", draw);
}

function select(items, act) {
  const node = /** @type {HTMLSelectElement} */ (h("select", {}, ...items.map(([value, title]) => h("option", { value, text: title }))));
  node.addEventListener("change", () => {
    act(node.value);
    draw();
  });
  return node;
}

function isIdle(pool) {
  const key = poolKey(pool);
  if (isTrouble(pool) || pool.in_flight + pool.foreign + pool.cooling + pool.queued > 0) lastUse.set(key, Date.now());
  return Date.now() - (lastUse.get(key) ?? 0) > STAYS_MS;
}

function draw() {
  const all = store.pools;
  const found = ordered(query ? all.filter(matcher(query)) : all, all.length > MANY);
  const idlers = found.filter(isIdle);
  const below = store.waiting > 0 && idlers.length === found.length; // then nothing but idle pools would stand above the queue
  const resting = new Set(all.length > ONE_ROW || below ? idlers : []);
  const divided = resting.size > 0 && (resting.size < found.length || (below && !query));
  const table = chosen.form ? chosen.form === "table" : all.length > (narrow.matches ? ONE_ROW : MANY);
  const by = chosen.group ?? (table && all.length > MANY ? "provider" : "");
  text(byId("pools-count"), !all.length ? "" : query ? `${count(found.length)} of ${count(all.length)}` : count(all.length));
  text(byId("idle-count"), divided ? count(resting.size) : "");
  show(byId("slot-legend"), all.length > 0 && !(table && noCells.matches));
  show(byId("pool-tools"), all.length > ONE_ROW);
  show(byId("idle"), divided);
  show(byId("pools"), !divided || resting.size < found.length);
  show(unmatched, all.length > 0 && found.length === 0);
  for (const button of /** @type {any} */ (forms.children)) attr(button, "aria-pressed", String((button.dataset.form === "table") === table));
  if (group.value !== by) group.value = by;
  if (sort.value !== chosen.sort) sort.value = chosen.sort;
  inUse.draw(divided ? found.filter((pool) => !resting.has(pool)) : found, table, by);
  idle.draw(divided ? found.filter((pool) => resting.has(pool)) : [], table, by);
}

/** One list of pools, in either form. */
function makeList(id, label) {
  const cards = h("div", { class: "pool-groups", id });
  const table = makePoolTable(label, (name) => {
    choose({ sort: name });
    draw();
  });
  let whole = false;
  const more = h("button", { type: "button", class: "button show-all", on: { click: () => {
    whole = !whole;
    draw();
  } } });
  const node = h("div", {}, cards, table.node, more);
  let width = 1200;
  let shown = 1;
  /** As many columns as fit, or one less where that fills the last row better. */
  const arrange = () => {
    const fit = Math.max(1, Math.floor((width + GAP) / (CARD + GAP)));
    const left = (columns) => (columns - (shown % columns)) % columns;
    const columns = fit > 2 && shown > fit && left(fit - 1) < left(fit) ? fit - 1 : fit;
    cards.style.setProperty("--columns", String(columns));
  };
  new ResizeObserver(([entry]) => {
    width = entry.contentRect.width;
    arrange();
  }).observe(node);
  return {
    node,
    draw(pools, asTable, by) {
      const few = mostRows();
      const long = pools.length > few + 2 && !query;
      const limited = long && !whole ? pools.slice(0, few) : pools;
      const groups = grouped(limited, by);
      shown = Math.max(1, limited.length);
      show(cards, !asTable);
      show(table.node, asTable && pools.length > 0);
      show(more, long);
      text(more, whole ? `Show only ${some(few, "pool")}` : `Show all ${some(pools.length, "pool")}`);
      arrange();
      if (asTable) table.draw(groups, chosen.sort);
      else reconcile(cards, groups, ([name]) => `group ${name}`, makeGroup, changeGroup);
    },
  };
}

function makeGroup() {
  const node = /** @type {any} */ (h("div", { class: "pool-group" }));
  node.heading = h("h3", { class: "group-name" });
  node.cards = h("ul", { class: "pools" });
  node.append(node.heading, node.cards);
  return node;
}

function changeGroup(node, [name, pools]) {
  show(node.heading, Boolean(name));
  text(node.heading, name);
  reconcile(node.cards, pools, poolKey, makePoolCard, changePoolCard);
}
