// Keyboard shortcuts. They are off while you type in a field.
import { dialog } from "./dialogs.js";
import { byId, h } from "./dom.js";
import { icon } from "./icons.js";

const JUMPS = { 1: "pools", 2: "queue", 3: "backoffs", 4: "running", 5: "events", 6: "jobs" };
const HELP = [
  ["/", "search the queue"],
  ["1 … 6", "go to pools, waiting, backoffs, running, events, jobs"],
  ["↑ ↓ Home End", "move between rows of a list"],
  ["Enter", "details of the row"],
  ["Tab", "the buttons of the row, then the next section"],
  ["← →", "move through time in the chart"],
  ["Esc", "close a dialog, clear the search"],
  ["?", "show these shortcuts"],
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
    title: "Keyboard shortcuts",
    body: () => [h("dl", { class: "keys" }, ...HELP.flatMap(([key, what]) => [
      h("dt", {}, ...key.split(" ").map((each) => h(each === "…" ? "span" : "kbd", { text: each }))), h("dd", { text: what }),
    ]))],
  });
}
