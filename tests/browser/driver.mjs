// Runs Chromium for the tests in Python. Each line of stdin is a request {page, code, arg, timeout_ms}; each line of
// stdout is its answer {result} or {error}. `code` is the body of an async function with `page` and `arg`.
import { createInterface } from "node:readline";
import { chromium } from "playwright-core";

// Without a sandbox, as tests run as root and in containers; only pages of this machine are opened.
const args = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"];
const executablePath = process.env.HEADRACE_CHROMIUM;
const browser = await chromium.launch({ executablePath, args, headless: true });
const opened = new Map();

async function open(number, options) {
  const context = await browser.newContext(options ?? {});
  const page = await context.newPage();
  const seen = { errors: [], requests: [] };
  page.on("console", (message) => message.type() === "error" && seen.errors.push(message.text()));
  page.on("pageerror", (error) => seen.errors.push(String(error)));
  page.on("request", (request) => seen.requests.push(request.url()));
  page.on("websocket", (socket) => seen.requests.push(socket.url()));
  opened.set(number, { context, page, seen });
}

async function close(number) {
  await opened.get(number).context.close();
  opened.delete(number);
}

const AsyncFunction = (async () => {}).constructor;
const operations = {
  open: (request) => open(request.page, request.arg),
  close: (request) => close(request.page),
  seen: (request) => opened.get(request.page).seen,
  run: ({ page: number, code, arg, timeout_ms: timeoutMs }) => {
    const { page, context } = opened.get(number);
    page.setDefaultTimeout(timeoutMs);
    return new AsyncFunction("page", "context", "arg", code)(page, context, arg);
  },
};

function within(timeoutMs, promise) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`no end within ${timeoutMs} ms`)), timeoutMs);
  });
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}

console.log(JSON.stringify({ result: browser.version() }));
for await (const line of createInterface({ input: process.stdin })) {
  const request = JSON.parse(line);
  try {
    const result = await within(request.timeout_ms, Promise.resolve(operations[request.op](request)));
    console.log(JSON.stringify({ result: result ?? null }));
  } catch (error) {
    console.log(JSON.stringify({ error: error.stack ?? String(error) }));
  }
}
await browser.close();
