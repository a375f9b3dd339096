// The running agents and calls of the fleet.
import { byId, show, text } from "../base/dom.js";
import { count } from "../base/format.js";
import { nothing } from "../base/table.js";
import { onChange, store } from "../state/store.js";
import { makeLeaseTable } from "./lease_table.js";

const table = makeLeaseTable("Leases");
const empty = nothing("Nothing is running", "Agents started with `fleetgate run` and calls from the library are listed here.");

export function setUpLeases() {
  byId("lease-list").append(table.node, empty);
  onChange(["leases", "session"], () => {
    text(byId("running-count"), store.leases.length ? count(store.leases.length) : "");
    show(empty, store.leases.length === 0);
    table.draw(store.leases);
  });
}
