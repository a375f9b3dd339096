// The pages, by the fragment of the address: #/pools/NAME?kind=requests, #/accounts, #/projects/NAME, #/events?text=web, #/usage?by=model,
// #/budgets, #/keys. A job, lease or ticket (#/jobs/ID) is a dialog over the fleet's page. Anything else is the fleet.
import { setEntry } from "../base/back.js";
import { closeDialogs } from "../base/dialogs.js";
import { attr, byId, h, show } from "../base/dom.js";
import { onChange, store, update } from "../state/store.js";

/** The page that each first part of an address names. */
const PAGES = { "": "fleet", fleet: "fleet", pools: "pool", accounts: "accounts", projects: "projects", events: "events", usage: "usage", budgets: "budgets", keys: "keys" };
const SHOWN = ["fleet", "pool", "accounts", "projects", "events", "usage", "budgets", "keys"];
const ITEMS = ["jobs", "leases", "tickets"];

/** The sections of the fleet. @type {[string, string][]} */
const SECTIONS = [["pools", "Pools"], ["queue", "Waiting"], ["running", "Running"], ["jobs", "Jobs"], ["backoffs", "Backoffs"], ["events", "Events"]];

export function setUpPages() {
  const select = /** @type {HTMLSelectElement} */ (byId("jump-select"));
  byId("jumps").append(...SECTIONS.map(([id, title]) => h("a", { href: `#${id}`, text: title, on: { click: (event) => {
    event.preventDefault(); // the address names the page
    jumpTo(id);
  } } })));
  select.append(h("option", { value: "", text: "Go to…" }), ...SECTIONS.map(([id, title]) => h("option", { value: id, text: title })));
  select.addEventListener("change", () => {
    const to = select.value;
    select.value = "";
    if (to) jumpTo(to);
  });
  document.querySelector(".skip")?.addEventListener("click", (event) => {
    event.preventDefault();
    byId("main").focus();
  });
  addEventListener("hashchange", readAddress);
  onChange(["route", "phase"], draw);
  readAddress();
  draw();
}

/** The address of a page. @param {string} page @param {Record<string, string | undefined>} [query] */
export function address(page, query = {}) {
  const given = /** @type {[string, string][]} */ (Object.entries(query).filter(([, value]) => value !== undefined));
  return `#/${page === "fleet" ? "" : page}${given.length ? `?${new URLSearchParams(given)}` : ""}`;
}

export const poolAddress = ({ pool, kind }) => address(`pools/${encodeURIComponent(pool)}`, { kind });
export const projectAddress = (name) => address(`projects/${encodeURIComponent(name)}`);
export const eventsAddress = (text) => address("events", { text });
/** @param {"jobs" | "leases" | "tickets"} type @param {string} id */
export const itemAddress = (type, id) => address(`${type}/${encodeURIComponent(id)}`);

/** Go to a page. With `replace`, the browser's Back skips the address that this one replaces. */
export function goTo(page, query = {}, { replace = false } = {}) {
  const to = address(page, query);
  if (to === location.hash) return;
  setEntry({ address: to, push: !replace });
  readAddress();
}

/** Focus an element of the fleet's page. @param {string} id */
export function jumpTo(id) {
  if (store.route.page !== "fleet") goTo("fleet");
  draw();
  byId(id).focus();
  byId(id).scrollIntoView({ block: "start" });
}

/** The address that was read last: two changes in quick succession are two events, which both find the second address. */
let known = null;

function readAddress() {
  const hash = location.hash;
  if (hash === known || (hash && !hash.startsWith("#/"))) return;
  known = hash;
  closeDialogs();
  const [path, query = ""] = hash.slice(2).split("?", 2);
  const [first, ...rest] = path.split("/");
  const name = decoded(rest.join("/"));
  const item = ITEMS.includes(first) && name ? { type: first, id: name } : null;
  const page = PAGES[first] === "pool" && !name ? "fleet" : PAGES[first] ?? "fleet";
  const before = store.route;
  update({ route: { page, name: item ? "" : name, item, query: Object.fromEntries(new URLSearchParams(query)) } });
  if (page !== before.page || store.route.name !== before.name) scrollTo(0, 0);
}

/** Put what a dialog shows into the address while it is open. @param {string} to  an address @returns {() => void}  takes it out again */
export function nameInAddress(to) {
  const opened = location.hash === to; // by its address
  const before = opened || !location.hash ? "#/" : location.hash;
  replaceAddress({ address: to, guard: true, named: true, push: !opened && !history.state?.guard });
  return () => {
    if (location.hash === to) replaceAddress({ address: before, guard: !opened });
  };
}

function replaceAddress(to) {
  setEntry(to);
  known = location.hash;
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function draw() {
  const { page } = store.route;
  for (const name of SHOWN) show(byId(`${name}-page`), name === page && store.phase !== "error");
  const current = page === "pool" ? "fleet" : page;
  for (const link of /** @type {any} */ (byId("pages").children)) attr(link, "aria-current", link.dataset.page === current ? "page" : null);
  attr(document.documentElement, "data-page", page);
}
