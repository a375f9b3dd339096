// Numbers, durations and times as people read them.

const whole = new Intl.NumberFormat("en");
const full = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
const clockOnly = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
const withSeconds = new Intl.DateTimeFormat(undefined, {
  hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23",
});

export const count = (n) => whole.format(n);

/** "1 slot", "3 slots" */
export const some = (n, word, plural = `${word}s`) => `${count(n)} ${n === 1 ? word : plural}`;

/** Date and time in the time zone of the reader. */
export const exact = (iso) => (iso ? full.format(new Date(iso)) : "");

export const clock = (ms, seconds = false) => (seconds ? withSeconds : clockOnly).format(ms);

/** How long, in at most two units: 0 s, 42 s, 4 min, 2 h 10 min, 3 d 4 h. With `fine`, minutes below ten have seconds too. */
export function duration(ms, fine = false) {
  const seconds = Math.max(0, Math.floor(ms / 1000));
  if (seconds < 60) return `${seconds} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return fine && minutes < 10 ? two(minutes, "min", seconds % 60, "s") : `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  if (hours < 24) return two(hours, "h", minutes % 60, "min");
  return two(Math.floor(hours / 24), "d", hours % 24, "h");
}

function two(big, unit, small, smaller) {
  return small ? `${big} ${unit} ${small} ${smaller}` : `${big} ${unit}`;
}

/** A cooldown or another setting in milliseconds: 350 ms, 2 s, 1.5 s, 5 min. */
export function setting(ms) {
  if (ms < 1000) return `${ms} ms`;
  if (ms < 60_000) return `${Math.round(ms / 100) / 10} s`;
  return duration(ms, true);
}

/** An estimate [low, high] in seconds; null where there is none. */
export function estimate(range) {
  if (!range) return null;
  const [low, high] = range.map((seconds) => Math.max(0, seconds));
  if (high < 1.5) return "any moment";
  const from = duration(low * 1000);
  const to = duration(high * 1000);
  if (from === to) return `in ${to}`;
  const [a, unit, ...more] = from.split(" ");
  const same = more.length === 0 && to.split(" ").length === 2 && to.endsWith(` ${unit}`);
  return low < 1 ? `within ${to}` : same ? `in ${a}–${to}` : `in ${from} – ${to}`;
}

/** What a person calls a request: its name and its command, or its ID. */
export const titleOf = ({ name, command, id }) => [name, command].filter(Boolean).join(": ") || id;

/** `host:pid`, the client's name, or that it is a job. */
export function who(holder, client, pid = null) {
  if (client) return client;
  if (!holder) return "a job"; // that no worker has offered to run yet
  const number = pid ?? holder.pid;
  return number === null ? holder.host : `${holder.host}:${number}`;
}

/** A reason's code as words: "opus concurrency cap". */
export const words = (code) => code.replaceAll("_", " ");

/** The short name of a reason, for its chip. */
export function reasonName(code) {
  if (code.endsWith("concurrency_cap")) return code === "concurrency_cap" ? "full" : `${words(code.slice(0, -16))} full`;
  return { usage_gate: "usage gate", passed_over: "not answering", key_taken: "key taken" }[code] ?? words(code);
}

// Where in the queue: "2 of 5 for host:vm".
export function place({ position, of, pool }) {
  if (!of) return count(position);
  return pool ? `${count(position)} of ${count(of)} for ${pool}` : `${count(position)} of ${count(of)}`;
}

/** A fair share in a few words: the part of the slots in use, and what the weights entitle to. @param {{percent: number | null, fair_percent: number}[]} shares */
export const shareText = ([first]) => (first ? `${Math.round(first.percent ?? 0)} %, fair ${Math.round(first.fair_percent)} %` : "");

/** The same for each shared pool, a line each. @param {{pool: string, kind: string, slots: number, of: number, fair_percent: number}[]} shares */
export const shareLines = (shares) => shares.map(({ pool, kind, slots, of, fair_percent: fair }) => `${pool} (${kind}): ${count(slots)} of the ${some(of, "slot")} in use, fair share ${Math.round(fair)} %`);

/** Whether it has clearly less than its fair share of something. */
export const isShort = ([first]) => Boolean(first) && (first.percent ?? 0) + 1 < first.fair_percent;
