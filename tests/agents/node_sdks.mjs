// One call with an SDK of Node.js: node node_sdks.mjs FOLDER_OF_THE_SDK BASE_URL SHAPE whole|stream|abort
// Prints as JSON what the SDK saw. After an abort it lives on until its input ends, so only the abort closes the connection.
import { createRequire } from "node:module";

const [folder, baseURL, shape, way] = process.argv.slice(2);
const sdk = createRequire(import.meta.url)(folder);
const stream = way !== "whole";
const messages = [{ role: "user", content: "hi" }];
const options = { baseURL, apiKey: "some-key", maxRetries: 0 };

const SHAPES = {
  chat: () => {
    const more = stream ? { stream_options: { include_usage: true } } : {};
    return new sdk.OpenAI(options).chat.completions.create({ model: "gpt-x", messages, stream, ...more });
  },
  responses: () => new sdk.OpenAI(options).responses.create({ model: "gpt-x", input: "hi", stream }),
  messages: () =>
    new sdk.Anthropic(options).messages.create({ model: "claude-x", max_tokens: 5000, messages, stream }),
};

// Where each shape has its usage: in the answer, in the last chunk, in the response of an event, in a message that starts.
const usageIn = (part) => part.usage ?? part.response?.usage ?? part.message?.usage;

const { data, response } = await SHAPES[shape]().withResponse();
const seen = { encoding: response.headers.get("content-encoding"), usage: {}, parts: 0 };
for await (const part of stream ? data : [data]) {
  seen.parts += 1;
  for (const [name, value] of Object.entries(usageIn(part) ?? {})) {
    if (value !== null) seen.usage[name] = value;
  }
  if (way === "abort" && JSON.stringify(part).includes("word1")) {
    data.controller.abort();
    break;
  }
}
console.log(JSON.stringify(seen));
if (way === "abort") {
  process.stdin.resume();
}
