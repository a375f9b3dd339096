// Round steps for the axes of charts.

/** From 0 to at least `most`, in about `wanted` whole steps of 1, 2 or 5 times a power of ten. */
export function ticks(most, wanted) {
  const rough = Math.max(1, most / wanted);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [0.5, 1, 2, 5, 10].map((times) => times * power).find((each) => each >= rough - 1e-9) ?? 10 * power;
  const steps = [0];
  while (steps[steps.length - 1] < most) steps.push(steps[steps.length - 1] + step);
  return steps;
}

const SPANS_MS = [0.5, 1, 2, 5, 10, 15, 30, 60, 120, 180, 240, 360].map((minutes) => minutes * 60_000);

/** Round times between two, at most about `wanted` of them. */
export function timeTicks(from, until, wanted) {
  const step = SPANS_MS.find((each) => (until - from) / each <= wanted) ?? SPANS_MS[SPANS_MS.length - 1];
  const zone = new Date(until).getTimezoneOffset() * 60_000;
  const found = [];
  for (let t = Math.ceil((from - zone) / step) * step + zone; t <= until; t += step) found.push(t);
  return found;
}
