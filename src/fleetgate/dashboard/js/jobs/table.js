// The table of jobs: running, waiting (with the reason) and finished.
import { setTime, timeNode } from "../base/clock.js";
import { attr, h, reconcile, show, text } from "../base/dom.js";
import { count, estimate, place, reasonName } from "../base/format.js";
import { icon } from "../base/icons.js";
import { spentText } from "../base/money.js";
import { keepOneStop } from "../base/roving.js";
import { makeRow, makeTable } from "../base/table.js";
import { drawProject } from "../fleet/ticket_table.js";
import { mayChange, mayManage } from "../state/store.js";
import * as actions from "./actions.js";
import { showJob } from "./details.js";
import { ENDED } from "./reading.js";

/** @type {[string, string][]} */
const COLUMNS = [["state", "State"], ["what", "Job"], ["why", "Reason"], ["age", "Since"], ["do", "(Actions)"]];

/** @param {string} label  for screen readers */
export function makeJobTable(label) {
  const { table, body } = makeTable(label, COLUMNS);
  table.classList.add("jobs");
  return {
    node: table,
    /** @param {any[]} jobs */
    draw(jobs) {
      show(table, jobs.length > 0);
      reconcile(body, jobs, (job) => job.id, make, change);
      keepOneStop(body);
    },
  };
}

function make() {
  const { node, cells } = makeRow(COLUMNS.map(([name]) => name));
  const button = (title, name, act) => h("button", { type: "button", class: "icon-button", title, on: { click: () => act(node.job) } }, icon(name));
  const p = (node.parts = {
    chip: h("span", { class: "chip" }),
    pos: h("span", { class: "job-pos" }),
    command: h("button", { type: "button", class: "command", on: { click: () => showJob(node.job) } }),
    model: h("span", { class: "model" }),
    project: h("a", { class: "project" }),
    extra: h("span", { class: "extra" }),
    why: h("p", { class: "job-why" }),
    reason: h("p", { class: "reason" }),
    age: timeNode(null, "ago"),
    estimate: h("span", { class: "estimate" }),
    approve: button("Approve", "approve", actions.approveJob),
    retry: button("Run again", "restore", actions.retryJob),
    stop: button("Stop", "stop", actions.cancelJob),
    cancel: button("Cancel", "cancel", actions.cancelJob),
  });
  cells.state.append(p.chip, p.pos);
  cells.what.append(p.command, h("p", { class: "under" }, p.model, p.project, p.extra));
  cells.why.append(p.why, p.reason);
  cells.age.append(p.age, p.estimate);
  cells.do.append(p.approve, p.retry, p.stop, p.cancel);
  return node;
}

function change(node, job) {
  node.job = job;
  const p = node.parts;
  const name = job.name ?? job.command.join(" ");
  text(p.chip, job.ending ? "stopping" : job.state);
  attr(p.chip, "class", `chip ${stateClass(job.state)}`);
  text(p.pos, job.position === null ? "" : `${count(job.position)} of ${count(job.of ?? job.position)}`);
  attr(p.pos, "title", job.position === null ? null : place(job));
  text(p.command, name);
  attr(p.command, "title", job.command.join(" "));
  text(p.model, job.model ?? job.models.join(", "));
  drawProject(p.project, job.project);
  text(p.extra, extras(job));
  text(p.why, job.reason ? reasonName(job.reason.code) : job.why ?? "");
  attr(p.why, "title", job.why);
  text(p.reason, job.reason?.text ?? "");
  attr(p.reason, "title", job.reason?.text ?? null);
  setTime(p.age, job.state === "running" ? job.started_at : ENDED.includes(job.state) ? job.finished_at : job.submitted_at);
  text(p.estimate, estimate(job.estimate_s) ?? "");
  const over = ENDED.includes(job.state);
  show(p.approve, mayChange() && job.state === "held");
  show(p.retry, mayManage() && over);
  const running = job.state === "running";
  show(p.stop, mayManage() && running && !job.ending);
  show(p.cancel, mayManage() && !running && !over && !job.ending);
  attr(p.stop, "aria-label", `Stop the job: ${name}`);
  attr(p.approve, "aria-label", `Approve: ${name}`);
  attr(p.retry, "aria-label", `Run again: ${name}`);
  attr(p.cancel, "aria-label", `Cancel the job: ${name}`);
}

function extras({ attempt, failures, retries, limits, priority, usage }) {
  const parts = [];
  if (attempt > 1) parts.push(`attempt ${attempt}`);
  if (failures) parts.push(`${failures} of ${retries} retries`);
  if (limits) parts.push(`${limits} after rate limits`);
  if (priority) parts.push(`priority ${priority > 0 ? "+" : "−"}${Math.abs(priority)}`);
  const spent = spentText(usage);
  if (spent) parts.push(spent.cost, spent.tokens);
  return parts.filter(Boolean).join(" · ");
}

export function stateClass(state) {
  return { running: "full", held: "paused", queued: "", succeeded: "done" }[state] ?? (state === "cancelled" ? "" : "over");
}
