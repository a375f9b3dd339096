// The queue with its search. It shows one page at a time, so its length does not matter.
import { byId, h, reconcile, show, text } from "../base/dom.js";
import { count } from "../base/format.js";
import { makePager } from "../base/pager.js";
import { look, pageSize } from "../state/refresh.js";
import { isBlocking } from "../pools/slots.js";
import { onChange, poolKey, store } from "../state/store.js";
import { nothing } from "../base/table.js";
import { makeTicketTable } from "./ticket_table.js";

const TYPING_MS = 180;

const table = makeTicketTable("Waiting tickets");
const pager = makePager("the queue", async (page) => {
  await look({ page });
  byId("queue").scrollIntoView({ block: "nearest" });
});
const empty = nothing("Nothing is waiting", "An agent that cannot start at once is listed here, with the reason.");
const unmatched = nothing("No matches in the queue", "The search covers commands, models, projects, hosts, IDs and reasons.");

export function setUpQueue() {
  byId("queue-list").append(table.node, empty, unmatched, pager.node);
  const search = /** @type {HTMLInputElement} */ (byId("search"));
  let typing = 0;
  search.addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(() => look({ query: search.value.trim() }), TYPING_MS);
  });
  search.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && search.value) {
      event.preventDefault();
      search.value = "";
      look({ query: "" });
    }
  });
  const pool = /** @type {HTMLSelectElement} */ (byId("queue-pool"));
  pool.addEventListener("change", () => look({ pool: pool.value }));
  onChange(["queue", "session", "view", "waiting"], draw);
  onChange(["view"], () => {
    if (search !== document.activeElement && search.value.trim() !== store.view.query) search.value = store.view.query;
  });
  onChange(["pools", "view"], () => drawChoices(pool));
}

function drawChoices(select) {
  const pools = store.pools.filter((pool) => isBlocking(pool) || poolKey(pool) === store.view.pool);
  const items = [["", "Any pool"], ...pools.map((pool) => [poolKey(pool), `${pool.pool} (${pool.kind})`])];
  reconcile(select, items, ([value]) => value, ([value]) => h("option", { value }), (node, [, label]) => text(node, label));
  if (select.value !== store.view.pool) select.value = store.view.pool;
}

function draw() {
  const { tickets, matching } = store.queue;
  const filtered = Boolean(store.view.query || store.view.pool);
  text(byId("queue-count"), filtered ? `${count(matching)} of ${count(store.waiting)}` : store.waiting ? count(store.waiting) : "");
  show(empty, !filtered && tickets.length === 0);
  show(unmatched, filtered && tickets.length === 0);
  table.draw(tickets);
  pager.draw(store.view.page, pageSize(), matching);
}
