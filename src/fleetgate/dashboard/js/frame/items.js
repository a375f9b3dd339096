// Opens the job, lease or ticket that the address names: #/jobs/ID, #/leases/ID, #/tickets/ID. What is no longer there is shown by its events.
import { say } from "../base/toasts.js";
import { showLease } from "../fleet/lease_details.js";
import { showTicket } from "../fleet/ticket_details.js";
import { showJob } from "../jobs/details.js";
import { get } from "../state/api.js";
import { onChange, store } from "../state/store.js";
import { goTo } from "./pages.js";

const SHOW = { jobs: showJob, leases: showLease, tickets: showTicket };
const NEXT = { tickets: "leases" }; // a ticket becomes a lease with the same id

export function setUpItems() {
  let opened = null;
  onChange(["route", "phase"], () => {
    const { item } = store.route; // another object each time that an address is opened
    if (store.phase !== "ready" || item === opened) return;
    opened = item;
    if (item) open(item.type, item.id);
  });
}

async function open(type, id) {
  let found;
  try {
    found = await get(`/v1/${type}/${encodeURIComponent(id)}`);
  } catch (error) {
    if (NEXT[type]) return void (await open(NEXT[type], id));
    if (error.status === 404 && type !== "jobs") {
      goTo("events", { text: id }, { replace: true });
      say(`${id} is neither waiting nor running. These are its events.`);
    } else say(`It cannot be shown: ${error.message}.`, { bad: true });
    return;
  }
  await SHOW[type](found);
}
