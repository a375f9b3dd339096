// The actions on jobs.
import { attempt } from "../frame/attempt.js";
import { send } from "../state/api.js";
import { confirm } from "../base/dialogs.js";
import { readJobs } from "./reading.js";
import { say } from "../base/toasts.js";

const named = (job) => job.name ?? job.command.join(" ");
const short = (job) => (named(job).length > 60 ? `${named(job).slice(0, 58)}…` : named(job));

/** @param {"cancel" | "retry" | "approve"} what */
function post(job, what) {
  return send("POST", `/v1/jobs/${encodeURIComponent(job.id)}/${what}`);
}

function act(change) {
  return attempt(async () => {
    try {
      await change();
    } finally {
      readJobs();
    }
  });
}

export async function cancelJob(job) {
  const runs = job.state === "running";
  const sure = await confirm({
    title: runs ? "Stop this job?" : "Cancel this job?",
    text: runs
      ? "Its agent is asked to stop, and killed after 10 seconds. It is not retried."
      : "It loses its place and does not run. You can run it again later.",
    detail: job.command.join(" "),
    yes: runs ? "Stop the job" : "Cancel the job",
    no: "Keep it",
  });
  if (sure) await act(() => cancelNow(job));
}

async function cancelNow(job) {
  const answer = await post(job, "cancel");
  say(answer.ending ? `Stopping: ${short(job)}` : `Cancelled: ${short(job)}`);
}

export function retryJob(job) {
  return act(async () => {
    await post(job, "retry");
    say(`Queued again: ${short(job)}`, { undo: () => act(() => cancelNow(job)) });
  });
}

export async function approveJob(job) {
  const sure = await confirm({
    title: "Approve this job?",
    text: `It needs approval before it runs${job.by ? ` (submitted by ${job.by})` : ""}. Then it runs in ${job.cwd} as soon as a slot is free.`,
    detail: job.command.join(" "),
    yes: "Approve",
    no: "Cancel",
    danger: false,
  });
  if (!sure) return;
  await act(async () => {
    await post(job, "approve");
    say(`Approved: ${short(job)}`);
  });
}
