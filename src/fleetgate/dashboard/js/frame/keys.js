// Keyboard shortcuts. They are off while you type in a field.
import { dialog } from "../base/dialogs.js";
import { byId, h } from "../base/dom.js";
import { icon } from "../base/icons.js";
import { goTo, jumpTo } from "./pages.js";

const JUMPS = { 1: "pools", 2: "queue", 3: "backoffs", 4: "running", 5: "events", 6: "jobs" };
const PAGES = { 7: "usage", 8: "budgets", 9: "fleet", a: "accounts", p: "projects", e: "events", k: "keys" };
const HELP = [
  ["/", "search the queue"],
  ["1 … 6", "go to pools, waiting, backoffs, running, events, jobs"],
  ["7 8 9 a p e k", "go to the pages usage, budgets, fleet, accounts, projects, events, keys"],
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
    if (event.key === "?") help();
    else if (event.key === "/") jumpTo("search");
    else if (JUMPS[event.key]) jumpTo(JUMPS[event.key]);
    else if (PAGES[event.key]) goTo(PAGES[event.key]);
    else return;
    event.preventDefault();
  });
}

function help() {
  return dialog({
    title: "Keyboard shortcuts",
    body: () => [h("dl", { class: "keys" }, ...HELP.flatMap(([key, what]) => [
      h("dt", {}, ...key.split(" ").map((each) => h(each === "…" ? "span" : "kbd", { text: each }))), h("dd", { text: what }),
    ]))],
  });
}
