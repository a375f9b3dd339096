// The samples of the charts: read once, then the newest every few seconds. Samples from before a restart of the service
// are kept: the service no longer has them.
import { get } from "./api.js";
import { isOfProject, store, update } from "./store.js";

let timer = 0;
let reading = 0;

/** Show another span. @param {number} minutes */
export async function showSpan(minutes) {
  update({ chart: { ...store.chart, minutes }, series: { samples: [], stepS: 5 } });
  await readSeries(true);
}

/** @param {boolean} all  the whole span, or only what is new */
export async function readSeries(all = false) {
  clearTimeout(timer);
  const mine = ++reading;
  const { minutes } = store.chart;
  let stepS = store.series.stepS;
  if (!document.hidden && !isOfProject()) {
    try {
      const found = await get(`/v1/series?minutes=${all || minutes > 60 ? minutes : 1}`);
      if (mine !== reading) return;
      stepS = found.step_s;
      update({ series: { stepS, samples: merged(store.series.samples, found.samples, minutes) } });
    } catch {
      // A banner says that the connection is lost.
    }
  }
  if (mine === reading) timer = setTimeout(readSeries, stepS * 1000);
}

function merged(old, fresh, minutes) {
  const added = fresh.map((sample) => ({ ...sample, t: Date.parse(sample.at) }));
  if (!added.length) return old;
  const first = added[0].t;
  const earliest = added.at(-1).t - minutes * 60_000;
  return [...old.filter((sample) => sample.t < first && sample.t >= earliest), ...added];
}
