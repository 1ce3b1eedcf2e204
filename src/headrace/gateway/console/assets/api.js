// Requests to the gateway that served this page, and to no other.

const ROOT = new URL("../../", import.meta.url);
const PATIENCE_MS = 8000;
const KEY = "headrace-token";

/** The gateway answered that it can't or won't: `status` and a sentence. */
export class Problem extends Error {
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

/** The gateway did not answer. */
export class Away extends Error {}

let token = sessionStorage.getItem(KEY) ?? "";

export const hasToken = () => token !== "";

/** Keep a token until this tab is closed; nothing else is kept. */
export function setToken(given) {
  token = given.trim();
  if (token) sessionStorage.setItem(KEY, token);
  else sessionStorage.removeItem(KEY);
}

/** Return a path of segments, each encoded by itself. */
export const path = (...segments) => segments.map(encodeURIComponent).join("/");

export const get = (where, { query = {}, signal } = {}) => answered(where, query, { signal });

/** Do something. The header is one that pages of other origins can't send. */
export function act(where, body) {
  const headers = { "content-type": "application/json", "headrace-action": "console" };
  return answered(where, {}, { method: "POST", headers, body: JSON.stringify(body) });
}

/** What a text of JSON holds. Whole numbers beyond 2^53 stay as they were written, to be shown: they would be rounded. */
export const parsed = (text) => (/\d{16}/.test(text) ? JSON.parse(text, exact) : JSON.parse(text));

function exact(_, value, context) {
  if (typeof value !== "number" || Number.isSafeInteger(value) || !JSON.rawJSON) return value;
  return /^-?\d+$/.test(context.source) ? JSON.rawJSON(context.source) : value;
}

async function answered(where, query, options) {
  const response = await requested(where, query, options);
  try {
    return response.status === 204 ? null : parsed(await response.text());
  } catch (error) {
    throw new Away(error.message);
  }
}

async function requested(where, query, { signal, headers = {}, patience_ms = PATIENCE_MS, ...options }) {
  const url = new URL(where, ROOT);
  for (const [name, value] of Object.entries(query)) url.searchParams.set(name, value);
  const limits = [signal, patience_ms && AbortSignal.timeout(patience_ms)].filter(Boolean);
  const sent = token ? { ...headers, authorization: `Bearer ${token}` } : headers;
  let response;
  try {
    response = await fetch(url, { ...options, headers: sent, cache: "no-store", credentials: "omit", signal: AbortSignal.any(limits) });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Away(error.message);
  }
  if (response.ok) return response;
  const problem = await response.json().catch(() => ({}));
  throw new Problem(response.status, problem.detail ?? `The gateway answered ${response.status}.`);
}

/** Yield the objects of a stream of lines until it ends or the signal says so. */
export async function* lines(where, query, signal) {
  const response = await requested(where, query, { headers: { accept: "application/x-ndjson" }, signal, patience_ms: 0 });
  const decoder = new TextDecoder();
  let rest = "";
  for await (const chunk of chunks(response.body)) {
    const parts = (rest + decoder.decode(chunk, { stream: true })).split("\n");
    rest = parts.pop();
    for (const line of parts) {
      if (!line.trim()) continue;
      const found = parsed(line);
      if (found.problem) throw new Problem(found.problem.status, found.problem.detail);
      yield found;
    }
  }
}

async function* chunks(body) {
  const reader = body.getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield value;
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** Open a WebSocket; browsers can't send headers with it, so a token is one of the sub-protocols. */
export function socket(where, protocol) {
  const url = new URL(where, ROOT);
  url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
  return new WebSocket(url, token ? [protocol, `headrace.bearer.${token}`] : [protocol]);
}
