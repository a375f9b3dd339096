// The pools: cards, or a table where there are many. Trouble comes first; idle pools stand below the queue.
import { attr, byId, h, reconcile, show, text } from "../base/dom.js";
import { count } from "../base/format.js";
import { changePoolCard, makePoolCard, stateOf } from "./card.js";
import { groupOf, makePoolTable } from "./table.js";
import { KINDS, slotsOf } from "./slots.js";
import { onChange, poolKey, store } from "../state/store.js";
import { nothing } from "../base/table.js";

const CARD = 316; // the narrowest, in px
const GAP = 16;
const ONE_ROW = 4; // no more pools than this: they are never divided
const MANY = 12; // more pools than this are a table, unless a person chooses otherwise
const STAYS_MS = 60_000; // a pool that has just become idle keeps its place

let query = "";
/** @type {"" | "cards" | "table"} */
let form = "";
/** When each pool was last in use. @type {Map<string, number>} */
const lastUse = new Map();

const inUse = makeList("pool-cards", "Pools");
const idle = makeList("idle-cards", "Idle pools");
const unmatched = h("div", { class: "card", hidden: true }, nothing("No matching pools", "The filter covers names, providers, accounts, kinds and states."));
const search = /** @type {HTMLInputElement} */ (h("input", { type: "search", id: "pool-search", placeholder: "Filter pools", autocomplete: "off", spellcheck: "false" }));
const forms = h("div", { class: "segments", role: "group", "aria-label": "Show pools as" });

export function setUpPools() {
  byId("slot-legend").append(
    ...Object.entries(KINDS).map(([kind, name]) => h("span", {}, h("i", { class: `slot ${kind}` }), name)),
  );
  byId("pool-tools").append(h("label", { class: "search" }, h("span", { class: "sr", text: "Filter pools" }), search), forms);
  for (const [name, title] of /** @type {["cards" | "table", string][]} */ ([["cards", "Cards"], ["table", "Table"]])) {
    forms.append(h("button", { type: "button", text: title, "data-form": name, on: { click: () => {
      form = name;
      draw();
    } } }));
  }
  search.addEventListener("input", () => {
    query = search.value.trim().toLowerCase();
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
  onChange(["pools", "session", "series"], draw);
}

/** Paused, over or below its cap: a person may have to act. */
const isTrouble = (pool) => pool.paused || pool.auto_reduced || slotsOf(pool).over > 0;

function matches(pool) {
  const fields = [pool.pool, pool.kind, pool.selector, pool.account, stateOf(pool, slotsOf(pool))[1]].join("\n").toLowerCase();
  return query.split(/\s+/).every((word) => fields.includes(word));
}

function isIdle(pool) {
  const key = poolKey(pool);
  if (isTrouble(pool) || pool.in_flight + pool.foreign + pool.cooling + pool.queued > 0) lastUse.set(key, Date.now());
  return Date.now() - (lastUse.get(key) ?? 0) > STAYS_MS;
}

/** Trouble first; otherwise in the order of the service, so that cards keep their place. */
function ordered(pools) {
  const rank = (pool) => (isTrouble(pool) ? 0 : 1);
  return [...pools].sort((one, other) => rank(one) - rank(other));
}

function draw() {
  const all = store.pools;
  const found = ordered(query ? all.filter(matches) : all);
  const resting = new Set(all.length > ONE_ROW ? found.filter(isIdle) : []);
  const divided = resting.size > 0 && resting.size < found.length;
  const table = form ? form === "table" : all.length > MANY;
  text(byId("pools-count"), !all.length ? "" : query ? `${count(found.length)} of ${count(all.length)}` : count(all.length));
  text(byId("idle-count"), divided ? count(resting.size) : "");
  show(byId("pool-tools"), all.length > ONE_ROW);
  show(byId("idle"), divided);
  show(unmatched, all.length > 0 && found.length === 0);
  for (const button of /** @type {any} */ (forms.children)) attr(button, "aria-pressed", String((button.dataset.form === "table") === table));
  inUse.draw(divided ? found.filter((pool) => !resting.has(pool)) : found, table);
  idle.draw(divided ? found.filter((pool) => resting.has(pool)) : [], table);
}

/** One list of pools, in either form. */
function makeList(id, label) {
  const cards = h("ul", { class: "pools", id });
  const table = makePoolTable(label);
  const node = h("div", {}, cards, table.node);
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
    draw(pools, asTable) {
      shown = Math.max(1, pools.length);
      show(cards, !asTable);
      show(table.node, asTable && pools.length > 0);
      arrange();
      if (asTable) table.draw(byGroup(pools));
      else reconcile(cards, pools, poolKey, makePoolCard, changePoolCard);
    },
  };
}

/** Pools of one group together: the group with trouble first, the others by name. */
function byGroup(pools) {
  const worst = new Map();
  for (const pool of pools) worst.set(groupOf(pool), Math.min(worst.get(groupOf(pool)) ?? 1, isTrouble(pool) ? 0 : 1));
  const key = (pool) => [worst.get(groupOf(pool)), groupOf(pool), pool.account ?? "", isTrouble(pool) ? 0 : 1];
  return [...pools].sort((one, other) => compare(key(one), key(other)));
}

function compare(one, other) {
  for (const [place, value] of one.entries()) if (value !== other[place]) return value < other[place] ? -1 : 1;
  return 0;
}
