// Reads the projects: what runs and waits, and what each used in the last day.
import { get } from "../state/api.js";
import { makeReader } from "../state/reader.js";
import { store, update } from "../state/store.js";

async function read() {
  try {
    const [{ projects }, { rows }] = await Promise.all([get("/v1/projects"), get("/v1/usage?by=project&since=24h")]);
    update({ projects: { phase: "ready", problem: "", list: projects, usage: rows } });
  } catch (error) {
    if (error.status !== 0 || store.projects.phase !== "ready") update({ projects: { ...store.projects, phase: "error", problem: error.message } });
  }
}

export const projectsReader = makeReader(read, {
  wanted: () => store.phase === "ready" && store.route.page === "projects" && !document.hidden, soonestMs: 1_000, calmMs: 10_000,
});
