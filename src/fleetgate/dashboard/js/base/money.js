// Tokens and money as people read them.
import { count, some } from "./format.js";

const cents = new Intl.NumberFormat("en", { style: "currency", currency: "USD" });
const wholeDollars = new Intl.NumberFormat("en", { style: "currency", currency: "USD", maximumFractionDigits: 0 });
const exactDollars = new Intl.NumberFormat("en", { style: "currency", currency: "USD", maximumFractionDigits: 6 });
const tiny = new Intl.NumberFormat("en", { style: "currency", currency: "USD", maximumSignificantDigits: 2 });

/** Money from dollars: $0, $0.0042, $0.31, $41.20, $12,345. */
export function dollars(amount) {
  const size = Math.abs(amount);
  if (size === 0) return "$0";
  if (size < 0.01) return tiny.format(amount);
  return (size >= 1000 ? wholeDollars : cents).format(amount);
}

/** Every digit, for a title. */
export const exactly = (amount) => exactDollars.format(amount);

/** A large number in three digits: 950, 41.2k, 3.2M. */
export function compact(n) {
  const size = Math.abs(n);
  if (size < 1000) return count(Math.round(n));
  const [unit, power] = size < 999_500 ? ["k", 1e3] : size < 999_500_000 ? ["M", 1e6] : ["G", 1e9];
  const value = n / power;
  const digits = Math.abs(value) < 10 ? 2 : Math.abs(value) < 100 ? 1 : 0;
  return `${Number(value.toFixed(digits))}${unit}`;
}

const NOUNS = { calls: ["call", "calls"], input: ["input token", "input tokens"], output: ["output token", "output tokens"], tokens: ["token", "tokens"] };

/** An amount of a unit: $5, 400k input tokens, 1 call. */
export function amountOf(value, unit) {
  if (unit === "usd") return budgeted(value);
  const [one, more] = NOUNS[unit] ?? [unit, unit];
  return `${compact(value)} ${value === 1 ? one : more}`;
}

/** The same without the name of the unit. */
export const figureOf = (value, unit) => (unit === "usd" ? budgeted(value) : compact(value));

/** Whole dollars have no cents: budgets are round. */
const budgeted = (amount) => (Number.isInteger(amount) ? wholeDollars.format(amount) : dollars(amount));

/** A sum's cost: unknown is never shown as nothing. @param {{cost: number | null, complete: boolean, calls?: number}} sum  cost in millionths of a dollar */
export function costText({ cost, complete }) {
  if (cost === null) return complete ? "$0" : "unknown";
  return complete ? dollars(cost / 1e6) : `≥ ${dollars(cost / 1e6)}`;
}

/** What a run or a job used, from the service: cost and tokens; null where nothing is known. */
export function spentText(usage) {
  if (!usage) return null;
  const { calls, input, cache_read: read, cache_write: written, output, tokens, cost_usd: cost, source } = usage;
  const parts = [cost === null ? "cost unknown" : dollars(cost), some(calls, "call"), `${compact(input + read + written)} in`, `${compact(output)} out`];
  if (source === "estimate") parts.push("estimated");
  return { cost: cost === null ? "" : dollars(cost), tokens: `${compact(tokens)} tokens`, all: parts.join(", ") };
}
