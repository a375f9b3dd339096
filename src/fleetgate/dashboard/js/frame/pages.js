// The pages, by the fragment of the address: #/usage?by=model, #/budgets, #/jobs/ID. Anything else is the fleet.
import { attr, byId, h, show } from "../base/dom.js";
import { onChange, store, update } from "../state/store.js";

const PAGES = ["fleet", "usage", "budgets"];
const PLACES = [...PAGES, "jobs"]; // a job is shown on the fleet's page

/** The sections of the fleet. @type {[string, string][]} */
const SECTIONS = [["pools", "Pools"], ["queue", "Waiting"], ["jobs", "Jobs"], ["running", "Running"], ["backoffs", "Backoffs"], ["events", "Events"]];

export function setUpPages() {
  const select = /** @type {HTMLSelectElement} */ (byId("jump-select"));
  byId("jumps").append(...SECTIONS.map(([id, title]) => h("a", { href: `#${id}`, text: title })));
  select.append(h("option", { value: "", text: "Go to…" }), ...SECTIONS.map(([id, title]) => h("option", { value: id, text: title })));
  select.addEventListener("change", () => {
    const to = select.value;
    select.value = "";
    if (to) jumpTo(to);
  });
  document.querySelector(".skip")?.addEventListener("click", (event) => {
    event.preventDefault(); // the address names the page
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

/** Go to a page. With `replace`, the browser's Back skips the address that this one replaces. */
export function goTo(page, query = {}, { replace = false } = {}) {
  const to = address(page, query);
  if (to === location.hash) return;
  history[replace ? "replaceState" : "pushState"](null, "", to);
  readAddress();
}

/** Focus an element of the fleet's page. @param {string} id */
export function jumpTo(id) {
  if (store.route.page !== "fleet") goTo("fleet");
  draw();
  byId(id).focus();
  byId(id).scrollIntoView({ block: "start" });
}

function readAddress() {
  const hash = location.hash;
  if (!hash.startsWith("#/")) {
    if (store.route.page !== "fleet") update({ route: { page: "fleet", job: "", query: {} } });
    return;
  }
  const [path, query = ""] = hash.slice(2).split("?", 2);
  const [page, id = ""] = path.split("/", 2);
  const before = store.route.page;
  const known = PLACES.includes(page) ? page : "fleet";
  const shown = known === "jobs" ? "fleet" : known;
  update({ route: { page: shown, job: known === "jobs" ? decoded(id) : "", query: Object.fromEntries(new URLSearchParams(query)) } });
  if (shown !== before) scrollTo(0, 0);
}

/** Put what a dialog shows into the address while it is open. @param {string} to  an address @returns {() => void}  takes it out again */
export function nameInAddress(to) {
  const before = location.hash === to || !location.hash ? "#/" : location.hash;
  history.replaceState(null, "", to);
  return () => {
    if (location.hash === to) history.replaceState(null, "", before);
  };
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
  for (const name of PAGES) show(byId(`${name}-page`), name === page && store.phase !== "error");
  for (const link of /** @type {any} */ (byId("pages").children)) attr(link, "aria-current", link.dataset.page === page ? "page" : null);
  attr(document.documentElement, "data-page", page);
}
