// Keys. Only few, and none while somebody types.
import { dialog } from "./dialogs.js";
import { byId, h } from "./dom.js";
import { icon } from "./icons.js";

const JUMPS = { 1: "pools", 2: "line", 3: "backoffs", 4: "holders", 5: "events", 6: "jobs" };
const HELP = [
  ["/", "search the line"],
  ["1 … 6", "go to pools, line, backoffs, slots held, events, jobs"],
  ["↑ ↓ Home End", "from row to row in a list"],
  ["Enter", "all about the row"],
  ["Tab", "the row's buttons, then on"],
  ["← →", "through time, in the chart"],
  ["Esc", "close a dialog, empty the search"],
  ["?", "these keys"],
];

export function setUpKeys() {
  byId("keys").append(icon("keys"));
  byId("keys").addEventListener("click", help);
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    if (event.target instanceof Element && event.target.closest("input, select, textarea")) return;
    if (event.key === "/") jump(event, byId("search"));
    else if (event.key === "?") help();
    else if (JUMPS[event.key]) jump(event, byId(JUMPS[event.key]));
  });
}

function jump(event, target) {
  event.preventDefault();
  target.focus();
  target.scrollIntoView({ block: "start" });
}

function help() {
  return dialog({
    title: "Keys",
    body: () => [h("dl", { class: "keys" }, ...HELP.flatMap(([key, what]) => [
      h("dt", {}, ...key.split(" ").map((each) => h(each === "…" ? "span" : "kbd", { text: each }))), h("dd", { text: what }),
    ]))],
  });
}
