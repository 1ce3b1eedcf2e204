// A program in Node that tests drive: each line of stdin is {code, arg}, the body of an async function; each line of stdout
// is {result} or {error}. `headrace` is the client.
import { createInterface } from "node:readline";
import * as headrace from "../../clients/js/src/index.js";

globalThis.headrace = headrace;
const AsyncFunction = (async () => {}).constructor;

for await (const line of createInterface({ input: process.stdin })) {
  const { code, arg } = JSON.parse(line);
  try {
    const result = await new AsyncFunction("arg", code)(arg);
    console.log(JSON.stringify({ result: result ?? null }));
  } catch (error) {
    console.log(JSON.stringify({ error: error.stack ?? String(error) }));
  }
}
process.exit(0);
