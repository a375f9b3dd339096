// What a person can do about a job.
import { attempt } from "./actions.js";
import { send } from "./api.js";
import { confirm } from "./dialogs.js";
import { readJobs } from "./job_reading.js";
import { say } from "./toasts.js";

const named = (job) => job.name ?? job.command.join(" ");
const short = (job) => (named(job).length > 60 ? `${named(job).slice(0, 58)}…` : named(job));

/** @param {"cancel" | "retry" | "approve"} what */
function ask(job, what) {
  return send("POST", `/v1/jobs/${encodeURIComponent(job.id)}/${what}`);
}

function doing(act) {
  return attempt(async () => {
    try {
      await act();
    } finally {
      readJobs();
    }
  });
}

export async function cancelJob(job) {
  const runs = job.state === "running";
  const sure = await confirm({
    title: runs ? "End this job?" : "Take this job out of the queue?",
    text: runs
      ? "Its agent is told to end, and killed after 10 seconds. It is not tried again."
      : "It loses its place and does not run. It can be run anew later.",
    detail: job.command.join(" "),
    yes: runs ? "End the job" : "Cancel the job",
  });
  if (sure) await doing(() => cancelNow(job));
}

async function cancelNow(job) {
  const answer = await ask(job, "cancel");
  say(answer.ending ? `Is being ended: ${short(job)}` : `Cancelled: ${short(job)}`);
}

export function retryJob(job) {
  return doing(async () => {
    await ask(job, "retry");
    say(`In the queue anew: ${short(job)}`, { undo: () => doing(() => cancelNow(job)) });
  });
}

export async function approveJob(job) {
  const sure = await confirm({
    title: "Let this job run?",
    text: `It was submitted to be confirmed first${job.by ? `, by ${job.by}` : ""}. It runs in ${job.cwd} as soon as there is a slot.`,
    detail: job.command.join(" "),
    yes: "Approve",
    no: "Not yet",
    danger: false,
  });
  if (!sure) return;
  await doing(async () => {
    await ask(job, "approve");
    say(`Approved: ${short(job)}`);
  });
}
