// The Fleetgate plugin for opencode: it reports limits, and the model can ask for capacity before it delegates.
//
// Put this file into ~/.config/opencode/plugins/ or .opencode/plugins/, or name it under "plugin" in opencode.json. It needs the command
// `fleetgate`, and does nothing under `fleetgate run`, which sees limits itself.

import { execFile, spawn } from "node:child_process";

const WITHIN_MS = 10_000;
const OWN_WAIT_S = 10; // opencode waits up to this long without having been told to

/** Calls `fleetgate` with these arguments; its exit code and output. It never throws. */
function fleetgate(args, input = "") {
  return new Promise((resolve) => {
    const child = execFile("fleetgate", args, { timeout: WITHIN_MS }, (error, stdout, stderr) => {
      const missing = error?.code === "ENOENT";
      resolve({ code: missing ? 127 : error ? (error.code ?? 1) : 0, out: stdout, err: missing ? "fleetgate is not installed" : stderr });
    });
    child.stdin?.on("error", () => {});
    child.stdin?.end(input);
  });
}

/** Reports a refused call, in a process that outlives a session of one prompt. */
function report(failure) {
  const child = spawn("fleetgate", ["hook", "opencode"], { detached: true, stdio: ["pipe", "ignore", "ignore"] });
  child.on("error", () => {});
  child.stdin.on("error", () => {});
  child.stdin.end(JSON.stringify(failure));
  child.unref();
}

/** The status that the message of a retry stands for; 0: it is about no limit. */
function statusOf(message) {
  if (/overload|capacity|high demand/i.test(message)) return 529;
  return /rate.?limit|too many|quota|429/i.test(message) ? 429 : 0;
}

export const Fleetgate = async () => {
  const models = new Map(); // by session: the model that it called last
  return {
    "chat.params": async (input) => {
      const model = input.model?.modelID ?? input.model?.id;
      const provider = input.model?.providerID ?? input.provider?.info?.id ?? input.provider?.id;
      if (provider && model) models.set(input.sessionID, `${provider}/${model}`);
    },
    event: async ({ event }) => {
      if (process.env.FLEETGATE_LEASE) return;
      const model = models.get(event.properties?.sessionID);
      if (!model) return;
      if (event.type === "session.status" && event.properties.status?.type === "retry") {
        const { message = "", next = 0 } = event.properties.status;
        const waitS = Math.round((next - Date.now()) / 1000);
        const headers = waitS > OWN_WAIT_S ? { "retry-after": String(waitS) } : {};
        if (statusOf(message)) report({ model, status: statusOf(message), headers, body: message });
        return;
      }
      const error = event.properties.error;
      if (event.type !== "session.error" || error?.name !== "APIError" || !error.data?.statusCode) return;
      const { statusCode: status, responseHeaders: headers = {}, responseBody: body = "" } = error.data;
      report({ model, status, headers, body: String(body).slice(0, 65_536) });
    },
    "command.execute.before": async (input, output) => {
      if (input.command !== "fleet") return;
      const [status, queue] = [await fleetgate(["status"]), await fleetgate(["queue", "--limit", "20"])];
      const text = `The state of the fleet:\n${status.out || status.err}\nThe queue:\n${queue.out || queue.err}\nSummarize this in a few lines.`;
      output.parts.splice(0, output.parts.length, { type: "text", text });
    },
    config: async (config) => {
      config.command = { ...config.command, fleet: config.command?.fleet ?? { template: "The state of the fleet", description: "Show what is running and waiting" } };
      config.mcp = { ...config.mcp, fleetgate: config.mcp?.fleetgate ?? { type: "local", command: ["fleetgate", "mcp"] } };
    },
  };
};

export default Fleetgate;
