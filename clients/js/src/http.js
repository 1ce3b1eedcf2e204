// The gateway over HTTP: values with versions, messages, commands, journals, and events by tag as they are written.
import { Retries, sleep } from "./backoff.js";
import { Problem } from "./errors.js";
import { jsonText, parseJson } from "./json.js";

const JSON_TYPE = "application/json";
const SILENCE_MS = 60_000; // of a stream, before it counts as lost

/** Sends requests with the token, and turns failures into problems. */
export class Http {
  constructor(base, { token, hasFreshTokens = false, fetch }) {
    this.base = base;
    this.token = token;
    this.hasFreshTokens = hasFreshTokens;
    this.fetch = fetch;
  }

  /** Sends a request. Resolves with the response if it succeeded, or with null if there is nothing (404, `orNull`). */
  async send(method, path, { query, headers = {}, body, orNull = false, accept = JSON_TYPE, signal } = {}) {
    const response = await this.fetch(this.base + path + queryText(query), {
      method,
      signal,
      headers: { accept, ...(await this.#credentials()), ...typed(body), ...dropped(headers) },
      body: body === undefined ? undefined : body instanceof Uint8Array ? body : jsonText(body),
    });
    if (response.ok || response.status === 304) return response;
    const problem = await problemOf(response);
    if (orNull && problem.status === 404) return null;
    throw problem;
  }

  async json(method, path, options) {
    const response = await this.send(method, path, options);
    return response === null || response.status === 204 ? null : parseJson(await response.text());
  }

  async #credentials() {
    const token = await this.token();
    return token ? { authorization: `Bearer ${token}` } : {};
  }
}

function typed(body) {
  if (body === undefined) return {};
  return { "content-type": body instanceof Uint8Array ? "avro/binary" : JSON_TYPE };
}

function dropped(headers) {
  return Object.fromEntries(Object.entries(headers).filter(([, value]) => value !== undefined && value !== null));
}

function queryText(query = {}) {
  const given = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    for (const each of Array.isArray(value) ? value : [value]) {
      if (each !== undefined && each !== null) given.append(name, String(each));
    }
  }
  const text = given.toString();
  return text && `?${text}`;
}

async function problemOf(response) {
  const text = await response.text();
  try {
    return new Problem({ status: response.status, ...parseJson(text) });
  } catch (error) {
    if (!(error instanceof SyntaxError)) throw error;
    return new Problem({ status: response.status, detail: text || response.statusText });
  }
}

/** A key as it stands in a path: the text itself, or a JSON list for keys with parts. Throws for what would be another key. */
export function keyText(key) {
  if (Array.isArray(key)) return jsonText(key);
  if (typeof key === "string" || typeof key === "bigint" || Number.isFinite(key)) return String(key);
  throw new TypeError(`a key is text, a number, or a list of its parts, not ${String(key)}`);
}

/** A text as a segment of a path. Browsers take dots alone for a way to another place, also where they are encoded. */
export function segment(text) {
  if (["", ".", ".."].includes(text)) throw new TypeError(`"${text}" can't stand in the path of a request as a name, a key or an id`);
  return encodeURIComponent(text);
}

/** One state of a keyspace. */
export class State {
  constructor(http, connection, keyspace, name) {
    this.http = http;
    this.connection = connection;
    this.keyspace = keyspace;
    this.name = name;
  }

  /** The value of a key as {value, version}; null if it has none. */
  async get(key, { maxStalenessS } = {}) {
    const response = await this.http.send("GET", this.#keyPath(key), {
      query: { max_staleness_s: maxStalenessS },
      orNull: true,
    });
    return response && { value: parseJson(await response.text()), version: versionOf(response) };
  }

  /** Sets a value; with `version`, only if it still is that one (null: only if there is none). */
  async put(key, value, { version, ttlS } = {}) {
    await this.http.send("PUT", this.#keyPath(key), { query: { ttl_s: ttlS }, headers: condition(version), body: value });
  }

  async delete(key, { version } = {}) {
    await this.http.send("DELETE", this.#keyPath(key), { headers: condition(version) });
  }

  /** A page of compound keys with these first parts, as {pairs, next}; `next` is the `after` of the next page. */
  page(prefix, { after, limit } = {}) {
    const query = { prefix: jsonText(prefix), after: after && keyText(after), limit };
    return this.http.json("GET", this.#path(), { query });
  }

  async count() {
    const path = `/keyspaces/${segment(this.keyspace)}/counts/${segment(this.name)}`;
    return (await this.http.json("GET", path)).count;
  }

  /** The pairs that an index has under a value. */
  async find(index, value, { limit } = {}) {
    const path = `/keyspaces/${segment(this.keyspace)}/indexes/${segment(this.name)}/${segment(index)}`;
    return (await this.http.json("GET", path, { query: { value: jsonText(value), limit } })).pairs;
  }

  /** Follows a key: {after, token, format, deltas, applyDelta, maxWaiting}. The first value shows what `token` names. */
  subscribe(key, options = {}) {
    const { token } = options;
    const request = { ...this.#request(options), key: keyText(key), ...(token && { token }) };
    return this.connection.subscribe(request, options);
  }

  /** Follows all keys, or those of a prefix or range: {prefix, start, end, format, deltas, applyDelta, maxWaiting}. */
  collect(options = {}) {
    const { prefix, start, end } = options;
    return this.connection.collect({ ...this.#request(options), prefix, start, end }, options);
  }

  #request({ format = "json", deltas = false }) {
    if (format !== "json" && format !== "avro") throw new TypeError(`the format is json or avro, not ${format}`);
    return { keyspace: this.keyspace, state: this.name, format, ...(deltas && { deltas }) };
  }

  #path() {
    return `/keyspaces/${segment(this.keyspace)}/states/${segment(this.name)}`;
  }

  #keyPath(key) {
    return `${this.#path()}/${segment(keyText(key))}`;
  }
}

function versionOf(response) {
  return Number(response.headers.get("etag").replace(/^W\//, "").replaceAll('"', "")); // weak, if a proxy compressed it
}

function condition(version) {
  if (version === undefined) return {};
  return version === null ? { "if-none-match": "*" } : { "if-match": `"${version}"` };
}

/** The aggregates of an engine. */
export class Engine {
  constructor(http, name) {
    this.http = http;
    this.name = name;
  }

  /** The committed state of an aggregate as {state, version, since}; null if there is none. */
  get(id) {
    return this.http.json("GET", `/engines/${segment(this.name)}/${segment(id)}`, { orNull: true });
  }

  /**
   * Sends a command, and resolves with {version, state, events, value, since, is_repeated}. It is done once, however
   * often it is sent with one key; without `idempotencyKey` it gets one of its own.
   */
  command(id, command, data, { idempotencyKey = crypto.randomUUID(), version, since } = {}) {
    const path = `/engines/${segment(this.name)}/${segment(id)}/commands/${segment(command)}`;
    const headers = { "idempotency-key": idempotencyKey, ...condition(version) };
    return this.http.json("POST", path, { headers, body: data, query: { since } });
  }
}

/** The journals of a topic. */
export class Journal {
  constructor(http, topic) {
    this.http = http;
    this.topic = topic;
  }

  /** A page of events as {events, next}. */
  read(id, { from, to, limit } = {}) {
    return this.http.json("GET", this.#path(id), { query: { from, to, limit } });
  }

  /** Appends events, all or none. With an `idempotencyKey` it may be repeated; it then names its numbers (`expected`). */
  append(id, events, { expected, idempotencyKey } = {}) {
    const body = { events, ...(expected !== undefined && { expected }) };
    return this.http.json("POST", this.#path(id), { body, headers: { "idempotency-key": idempotencyKey } });
  }

  /** What is known of the last event; null if there is no journal. */
  pointer(id) {
    return this.http.json("GET", `${this.#path(id)}/pointer`, { orNull: true });
  }

  /** Deletes the events up to a number. */
  delete(id, to) {
    return this.http.json("DELETE", this.#path(id), { query: { to } });
  }

  /** Removes the journal. */
  purge(id) {
    return this.http.json("POST", `${this.#path(id)}/purge`);
  }

  #path(id) {
    return `/journals/${segment(this.topic)}/${segment(id)}`;
  }
}

/**
 * The events of tags as they are written, from `after` on: server-sent events, resumed after the last one that came. It
 * ends with a problem that coming back would not help with, such as 410: the events were removed because of their age.
 */
export async function* taggedEvents(http, tags, { after, backoff, signal, silenceMs = SILENCE_MS } = {}) {
  const retries = new Retries(backoff);
  let last = after;
  while (!signal?.aborted) {
    const opening = new AbortController();
    const timer = setTimeout(() => opening.abort(), silenceMs);
    let openedAt;
    try {
      const query = { tag: tags };
      const headers = { "last-event-id": last };
      const response = await http.send("GET", "/events", { query, headers, accept: "text/event-stream", signal: anyOf(signal, opening.signal) });
      clearTimeout(timer);
      openedAt = performance.now();
      for await (const { id, event, data } of serverEvents(response.body, silenceMs)) {
        if (event === "problem") throw new Problem(parseJson(data));
        yield { ...parseJson(data), tag_offset: id };
        last = id;
      }
    } catch (error) {
      if (signal?.aborted) return;
      if (error instanceof Problem) {
        const mayReturn = error.status === 401 ? http.hasFreshTokens && retries.mayRenewToken() : error.isRetryable;
        if (!mayReturn) throw error;
      } else if (!(error instanceof TypeError) && !opening.signal.aborted) throw error;
    } finally {
      clearTimeout(timer);
    }
    await sleep(retries.nextMs(openedAt), signal);
  }
}

const anyOf = (...signals) => AbortSignal.any(signals.filter(Boolean));

const EVENT_END = /\r\n\r\n|\n\n|\r\r/;
const LONGEST_END = 4; // characters

/** Parses a stream of server-sent events into {id, event, data}; comments are left out. It ends if nothing comes for a time. */
export async function* serverEvents(body, silenceMs) {
  const decoder = new TextDecoder();
  let buffer = "";
  let pieces = []; // of an event whose end has not come: to look through all of it at each piece takes too long
  for await (const chunk of chunks(body, silenceMs)) {
    const piece = decoder.decode(chunk, { stream: true });
    const before = pieces.at(-1) ?? buffer;
    pieces.push(piece);
    if (piece.length > LONGEST_END && !EVENT_END.test(before.slice(-LONGEST_END) + piece)) continue;
    buffer += pieces.join("");
    pieces = [];
    // A carriage return at the end may be half of a line's end.
    const usable = buffer.endsWith("\r") ? buffer.slice(0, -1) : buffer;
    const parts = usable.split(EVENT_END);
    const rest = parts.pop();
    buffer = rest + buffer.slice(usable.length);
    for (const part of parts) {
      const found = parseEvent(part);
      if (found) yield found;
    }
  }
}

async function* chunks(body, silenceMs) {
  const reader = body.getReader();
  try {
    while (true) {
      // The gateway shows that it is alive; a connection may end without a word.
      const timer = silenceMs && setTimeout(() => reader.cancel().catch(() => {}), silenceMs);
      const { value, done } = await reader.read().finally(() => clearTimeout(timer));
      if (done) return;
      yield value;
    }
  } finally {
    await reader.cancel().catch(() => {}); // the connection may be gone already
  }
}

function parseEvent(part) {
  const found = { id: undefined, event: "message", data: [] };
  for (const line of part.split(/\r\n|\n|\r/)) {
    const [, name, value = ""] = /^([^:]*)(?:: ?(.*))?$/s.exec(line); // a dot is any character: U+2028 ends no line here
    if (name === "data") found.data.push(value);
    else if (name === "id" || name === "event") found[name] = value;
  }
  return found.data.length > 0 ? { ...found, data: found.data.join("\n") } : null;
}
