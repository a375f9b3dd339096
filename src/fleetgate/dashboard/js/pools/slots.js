// The slots of a pool as a row of cells: taken, foreign, cooling, free, and those withheld by a reduction.
import { attr, h, s } from "../base/dom.js";
import { some } from "../base/format.js";

const MOST_CELLS = 48;
const ROW_PX = 290; // the narrowest card: cells are as large as one row allows

export const KINDS = { used: "in use", foreign: "outside Fleetgate", cooling: "cooling", free: "free", withheld: "withheld" };

/** How many of each. Slots over the limit are `over`: the limit was lowered below the slots in use. */
export function slotsOf(pool) {
  const limit = pool.limit ?? pool.in_flight + pool.foreign + pool.cooling;
  const taken = pool.in_flight + pool.foreign;
  const free = Math.max(0, limit - taken - pool.cooling);
  const over = Math.max(0, taken - limit);
  const withheld = pool.auto_reduced ? Math.max(0, (pool.auto_reduced_from ?? limit) - Math.max(limit, taken)) : 0;
  return { used: pool.in_flight, foreign: pool.foreign, cooling: pool.cooling, free, withheld, over, limit, taken };
}

/** Whether tickets may be waiting for this pool, and not only for something else that they need as well. */
export function isBlocking(pool) {
  return pool.queued > 0 && (pool.paused || pool.reserved || pool.upstream !== null || slotsOf(pool).free === 0);
}

/** The row as a sentence. */
export function slotsText(pool) {
  const { taken, cooling, foreign, withheld, over } = slotsOf(pool);
  const parts = [pool.limit === null ? `${some(taken, "slot")} in use` : `${taken} of ${some(pool.limit, "slot")} in use`];
  if (foreign) parts.push(`${foreign} of them by agents started outside Fleetgate`);
  if (cooling) parts.push(`${cooling} cooling down`);
  if (withheld) parts.push(`${withheld} withheld after rate limits`);
  if (over) parts.push(`${over} over the limit`);
  return parts.join(", ");
}

/** Draw the slots into an element: cells, or a bar when there are too many. */
export function drawSlots(node, pool) {
  const slots = slotsOf(pool);
  const order = ["used", "foreign", "cooling", "free", "withheld"];
  const all = order.reduce((sum, kind) => sum + slots[kind], 0);
  const shape = order.map((kind) => slots[kind]).join() + `/${slots.over}`;
  if (node.dataset.shape === shape) return;
  node.dataset.shape = shape;
  attr(node, "aria-label", slotsText(pool));
  attr(node, "class", all > MOST_CELLS ? "slots bar" : "slots");
  if (all > MOST_CELLS) node.replaceChildren(bar(order, slots, all));
  else cells(node, order.flatMap((kind) => Array(slots[kind]).fill(kind)), slots);
}

function cells(node, kinds, slots) {
  if (node.firstElementChild?.tagName === "svg") node.replaceChildren();
  node.style.setProperty("--cell", `${Math.max(8, Math.min(26, Math.floor(ROW_PX / kinds.length) - 3))}px`);
  while (node.children.length > kinds.length) node.lastElementChild.remove();
  while (node.children.length < kinds.length) node.append(h("i", {}));
  kinds.forEach((kind, place) => {
    const over = (kind === "used" || kind === "foreign") && place >= slots.limit;
    attr(node.children[place], "class", over ? `slot ${kind} over` : `slot ${kind}`);
  });
}

function bar(order, slots, all) {
  const drawing = s("svg", { viewBox: "0 0 100 1", preserveAspectRatio: "none", class: "slot-bar", "aria-hidden": "true" });
  let x = 0;
  for (const kind of order) {
    const width = (100 * slots[kind]) / all;
    if (width) drawing.append(s("rect", { class: `slot-part ${kind}`, x, y: 0, width, height: 1 }));
    x += width;
  }
  return drawing;
}
