// One tab stop for a whole list: the arrows go from row to row, Tab goes into the row's buttons and out again.

/** @param {HTMLElement} body  whose children are the rows */
export function rove(body) {
  body.addEventListener("keydown", (event) => {
    const row = rowOf(body, event.target);
    if (!row || event.ctrlKey || event.metaKey || event.altKey) return;
    const rows = /** @type {HTMLElement[]} */ ([...body.children]);
    const place = rows.indexOf(row);
    const to = { ArrowDown: place + 1, ArrowUp: place - 1, Home: 0, End: rows.length - 1 }[event.key];
    if (to === undefined) {
      if (event.key === "Enter" && event.target === row) {
        event.preventDefault(); // else it would also press what the dialog focuses
        row.querySelector("button")?.click();
      }
      return;
    }
    event.preventDefault();
    rows[Math.max(0, Math.min(to, rows.length - 1))].focus();
  });
  body.addEventListener("focusin", (event) => choose(body, rowOf(body, event.target)));
}

/** After rows were added or removed: exactly one can be reached by Tab. */
export function keepOneStop(body) {
  const chosen = body.querySelector(":scope > [tabindex='0']");
  choose(body, chosen ?? body.firstElementChild);
}

function choose(body, row) {
  if (!row) return;
  for (const each of body.children) {
    const stop = each === row ? "0" : "-1";
    if (each.getAttribute("tabindex") === stop) continue;
    each.setAttribute("tabindex", stop);
    for (const inner of each.querySelectorAll("button, a")) inner.setAttribute("tabindex", stop);
  }
}

function rowOf(body, node) {
  while (node && node.parentElement !== body) node = node.parentElement;
  return node;
}
