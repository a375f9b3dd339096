// The chart of usage: one bar for each hour or day, stacked by the largest rows of the table. Arrow keys move from bar to
// bar, and the legend shows the values of the chosen one; a bar with a cost that is not known has a mark below it.
import { attr, h, reconcile, s, show, text } from "../base/dom.js";
import { clock } from "../base/format.js";
import { compact, costText, dollars } from "../base/money.js";
import { ticks } from "../base/scale.js";
import { binsOf, sumsBy, total } from "./sums.js";

const LEFT = 52;
const RIGHT = 8;
const TOP = 10;
const PLOT = 190;
const MARKS = 6;
const HEIGHT = 234;
const dayOnly = new Intl.DateTimeFormat("en", { day: "numeric", month: "short" });
const dayOfCalendar = new Intl.DateTimeFormat("en", { day: "numeric", month: "short", timeZone: "UTC" });

export function makeUsageChart() {
  let width = 640;
  /** The bar that is pointed at; null: all of them together. @type {number | null} */
  let pointed = null;
  let bars = [];
  let series = [];
  let view = null;
  const drawing = s("svg", { class: "chart-drawing", "aria-hidden": "true" });
  const highlight = s("rect", { class: "bar-highlight", y: TOP, height: PLOT });
  const plot = h("div", { class: "chart-plot", role: "slider", tabindex: "0", "aria-label": "Usage over time", "aria-valuemin": "0" });
  const legend = h("ul", { class: "usage-legend" });
  const when = h("p", { class: "usage-when" });
  const unknown = h("p", { class: "usage-unknown", hidden: true }, h("i", { class: "unknown-mark" }), "part of the cost of this time is not known");
  const node = h("div", { class: "usage-chart" }, plot, when, legend, unknown);
  plot.append(drawing);
  new ResizeObserver(([entry]) => {
    const wide = Math.max(200, Math.floor(entry.contentRect.width));
    if (wide === width) return;
    width = wide;
    if (view) draw();
  }).observe(plot);
  plot.addEventListener("pointermove", (event) => point(barAt(event.offsetX)));
  plot.addEventListener("pointerleave", () => point(null));
  plot.addEventListener("blur", () => point(null));
  plot.addEventListener("keydown", (event) => {
    const at = pointed ?? bars.length;
    const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: bars.length - 1 }[event.key];
    if (to === undefined || !bars.length) return;
    event.preventDefault();
    point(Math.max(0, Math.min(to, bars.length - 1)));
  });

  const valueOf = (sum) => (view.measure === "cost" ? (sum?.cost ?? 0) / 1e6 : sum?.tokens ?? 0);
  const wordsOf = (sum) => (view.measure === "cost" ? costText(sum) : `${compact(sum.tokens)} tokens`);
  const step = () => (width - LEFT - RIGHT) / Math.max(1, bars.length);
  const barAt = (px) => (bars.length ? Math.max(0, Math.min(bars.length - 1, Math.floor((px - LEFT) / step()))) : null);

  /** @param {any} answer @param {any} shown  the view @param {{name: any, title: string, color: number}[]} parts  the last one is the rest */
  function change(answer, shown, parts) {
    view = shown;
    series = parts;
    const seriesOf = new Map(parts.map((part) => [part.name, part]));
    const rest = parts.find((part) => part.rest);
    const wanted = shown.of === undefined ? answer : { ...answer, rows: answer.rows.filter((row) => row[shown.by] === shown.of) };
    bars = binsOf(wanted, shown.period).map(({ t, rows }) => ({
      t, sum: total(rows), parts: sumsBy(rows, (row) => seriesOf.get(row[shown.by]) ?? rest),
    }));
    draw();
  }

  function draw() {
    attr(drawing, "viewBox", `0 0 ${width} ${HEIGHT}`);
    attr(drawing, "height", HEIGHT);
    const most = Math.max(...bars.map((bar) => valueOf(bar.sum)), 0);
    const unit = view.measure === "cost" ? scaleUnit(most) : 1;
    const steps = ticks(Math.max(most * unit, 1), 4).map((value) => value / unit);
    const y = (value) => TOP + PLOT - (value / steps.at(-1)) * PLOT;
    const wide = Math.max(1, step() - (step() > 8 ? 3 : 1));
    const shapes = [];
    bars.forEach((bar, place) => {
      const x = LEFT + place * step() + (step() - wide) / 2;
      let base = 0;
      for (const part of series) {
        const value = valueOf(bar.parts.get(part));
        if (!value) continue;
        const high = y(base) - y(base + value);
        const gap = high > 3 ? 1 : 0; // between two parts, so that they can be told apart without colours
        shapes.push(s("rect", {
          class: `bar c${part.color}`, x: x.toFixed(1), y: (y(base + value) + gap).toFixed(2), width: wide.toFixed(1), height: Math.max(0.5, high - gap).toFixed(2),
        }));
        base += value;
      }
      if (view.measure === "cost" && !bar.sum.complete) {
        shapes.push(s("rect", { class: "bar-unknown", x: x.toFixed(1), y: TOP + PLOT + 3, width: wide.toFixed(1), height: MARKS }));
      }
    });
    drawing.replaceChildren(...steps.flatMap((value) => [
      s("line", { class: value ? "grid" : "grid base", x1: LEFT, x2: width - RIGHT, y1: y(value), y2: y(value) }),
      s("text", { class: "tick", x: LEFT - 8, y: y(value) + 3.5, "text-anchor": "end", text: view.measure === "cost" ? dollars(value) : compact(value) }),
    ]), highlight, ...axis(), ...shapes);
    show(unknown, view.measure === "cost" && bars.some((bar) => !bar.sum.complete));
    if (pointed !== null && pointed >= bars.length) pointed = null;
    point(pointed);
  }

  /** Labels below the bars, as many as have room: midnights where there are several days, otherwise hours. */
  function axis() {
    const room = Math.max(2, Math.floor((width - LEFT - RIGHT) / 64));
    const { unit, stepMs } = view.period;
    const days = stepMs > 3_600_000;
    const places = bars.map((_, place) => place).filter((place) => unit === "day" || !days || new Date(bars[place].t).getHours() < stepMs / 3_600_000);
    const every = Math.max(1, Math.ceil(places.length / room));
    return places.filter((_, at) => at % every === 0).flatMap((place) => {
      const x = LEFT + (place + 0.5) * step();
      const label = unit === "day" ? dayOfCalendar.format(bars[place].t) : days ? dayOnly.format(bars[place].t) : clock(bars[place].t);
      return x > width - 22 ? [] : [s("text", { class: "tick", x: x.toFixed(1), y: HEIGHT - 8, "text-anchor": "middle", text: label })];
    });
  }

  function timeOf(bar) {
    const { unit, stepMs } = view.period;
    if (unit === "day") return dayOfCalendar.format(bar.t);
    return `${dayOnly.format(bar.t)}, ${clock(bar.t)}–${clock(bar.t + stepMs)}`;
  }

  /** Show the values of one bar, or of all of them together. */
  function point(place) {
    pointed = place;
    const bar = place === null ? null : bars[place];
    attr(highlight, "visibility", bar ? "visible" : "hidden");
    attr(highlight, "x", (LEFT + (place ?? 0) * step()).toFixed(1));
    attr(highlight, "width", step().toFixed(1));
    attr(plot, "aria-valuemax", Math.max(0, bars.length - 1));
    attr(plot, "aria-valuenow", Math.max(0, place ?? bars.length - 1));
    const sums = new Map(series.map((part) => [part, bar ? bar.parts.get(part) : part.sum]));
    const whole = bar ? `${timeOf(bar)}: ${bar.sum.calls || bar.sum.tokens || bar.sum.cost ? wordsOf(bar.sum) : "nothing used"}` : "";
    attr(when, "data-hint", bar ? null : "true");
    text(when, bar ? whole : "Point at a bar, or use the arrow keys, for the values of that time.");
    const largest = bar ? series.filter((part) => sums.get(part)).slice(0, 4).map((part) => `${part.title} ${wordsOf(sums.get(part))}`) : [];
    attr(plot, "aria-valuetext", bar ? [whole, ...largest].join(", ") : `${bars.length} bars`);
    reconcile(legend, series, (part) => String(part.color), () => h("li", {}, h("i", {}), h("span", {}), h("b", {})), (item, part) => {
      attr(item.children[0], "class", `swatch c${part.color}`);
      text(item.children[1], part.title);
      attr(item.children[1], "title", part.title);
      const sum = sums.get(part);
      text(item.children[2], sum ? wordsOf(sum).replace(/ tokens$/, "") : "–");
    });
    show(legend, series.length > 0);
  }

  return { node, change, bars: () => bars.map((bar) => ({ time: timeOf(bar), sum: bar.sum })) };
}

/** By what to multiply dollars so that round steps of whole numbers are round steps of money. */
function scaleUnit(most) {
  let unit = 1;
  while (most > 0 && most * unit < 4 && unit < 1e6) unit *= 10;
  return unit;
}
