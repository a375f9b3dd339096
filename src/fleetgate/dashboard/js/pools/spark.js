// A pool's last minutes as a small line under its limit.
import { s } from "../base/dom.js";

const WIDTH = 96;
const HEIGHT = 28;
const MOST = 120; // samples: the last ten minutes at 5 s

export function drawSpark(node, samples, key) {
  const last = samples.slice(-MOST).map((sample) => sample.pools[key]).filter(Boolean);
  const newest = samples.length ? `${samples.at(-1).t}/${samples.length}` : "";
  if (node.dataset.drawn === newest) return;
  node.dataset.drawn = newest;
  if (last.length < 2) return void node.replaceChildren();
  const most = Math.max(1, ...last.map((each) => Math.max(each.in_flight, each.limit ?? 0)));
  const x = (place) => ((place / (last.length - 1)) * WIDTH).toFixed(1);
  const y = (value) => (HEIGHT - 1.5 - (value / most) * (HEIGHT - 4)).toFixed(1);
  const steps = (value) => last.map((each, place) => `${place ? `H${x(place)}V` : `M${x(place)} `}${y(value(each))}`).join("");
  const used = steps((each) => each.in_flight);
  const drawing = s("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" },
    s("path", { class: "spark-area", d: `${used}V${HEIGHT}H0Z` }), s("path", { class: "spark-line", d: used }));
  if (last.some((each) => each.limit !== null)) {
    drawing.append(s("path", { class: "spark-limit", d: steps((each) => each.limit ?? most) }));
  }
  node.replaceChildren(drawing);
}
