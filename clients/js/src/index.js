// The client of Headrace's gateway. One `Headrace` has one socket, which is opened with the first subscription.
import { Connection } from "./connection.js";
import { Problem } from "./errors.js";
import { Engine, Http, Journal, keyText, segment, State, taggedEvents } from "./http.js";
import { KeySocket } from "./key_socket.js";
import { SILENCE_MS } from "./silence.js";

export { Backoff } from "./backoff.js";
export { ClientClosed, closeMeaning, Problem, SocketClosed } from "./errors.js";
export { askSchema, framed, frameValue, parseFrame } from "./frames.js";
export { serverEvents } from "./http.js";
export { AvroCodec } from "./values.js";

export class GatewayClient {
  #options;
  #connection = null;
  #http;
  #sockets = new Set();

  /**
   * `url` is the gateway's. Options: `token`, a text or a function that returns one, or a promise of one; `backoff`
   * {firstMs, limitMs}; `silenceMs`, after which a silent connection is asked for a sign of life; `onStatus`, which is
   * called when the socket is open or waits; `fetch` and `WebSocket` to replace
   * those of the platform.
   */
  constructor(url, options = {}) {
    const { token, fetch = globalThis.fetch.bind(globalThis), WebSocket = globalThis.WebSocket, ...more } = options;
    const given = typeof token === "function" ? token : () => token;
    if (typeof token !== "function") checked(token);
    this.url = url.replace(/\/+$/, "");
    this.#options = {
      ...more,
      WebSocket,
      token: async () => checked(await given()),
      hasFreshTokens: typeof token === "function",
      probe: () => this.#probe(),
    };
    const { hasFreshTokens } = this.#options;
    this.#http = new Http(this.url, { token: this.#options.token, hasFreshTokens, fetch });
  }

  /** One state of a keyspace: values by key, and subscriptions. */
  state(keyspace, name) {
    return new State(this.#http, this.#socket, keyspace, name);
  }

  engine(name) {
    return new Engine(this.#http, name);
  }

  journal(topic) {
    return new Journal(this.#http, topic);
  }

  /** The keyspaces that the caller may read. */
  async keyspaces() {
    return (await this.#http.json("GET", "/keyspaces")).keyspaces;
  }

  /** A page of the events of tags, as {events, next, is_end}. */
  eventPage(tags, { after, limit } = {}) {
    return this.#http.json("GET", "/events", { query: { tag: tags, after, limit } });
  }

  /** The events of tags as they are written, from `after` on. */
  events(tags, options = {}) {
    return taggedEvents(this.#http, tags, { backoff: this.#options.backoff, silenceMs: this.#options.silenceMs, ...options });
  }

  /** Sends a message to its handler over the socket; it is handled once, whatever happens to connections. */
  publish(keyspace, message, data, { messageId = crypto.randomUUID() } = {}) {
    return this.#socket.publish(keyspace, message, data, messageId);
  }

  /** Sends a message to its handler over HTTP. With an `idempotencyKey` it may be repeated. */
  send(keyspace, message, data, { idempotencyKey } = {}) {
    const path = `/keyspaces/${segment(keyspace)}/messages/${segment(message)}`;
    return this.#http.json("POST", path, { body: data, headers: { "idempotency-key": idempotencyKey } });
  }

  /** A socket on one key: values as framed Avro (or as JSON, with `json`), and messages to the key. */
  keySocket(keyspace, state, key, { json = false } = {}) {
    const path = [keyspace, "states", state, keyText(key)].map(segment).join("/");
    const onEnd = (ended) => this.#sockets.delete(ended);
    const socket = new KeySocket({ ...this.#options, json, url: `${this.#socketUrl}/keyspaces/${path}`, onEnd });
    this.#sockets.add(socket);
    return socket;
  }

  /** Gives all sockets up, as a lost network would, and opens them again: for programs that were asleep. */
  reconnect() {
    this.#connection?.reconnect();
    for (const each of this.#sockets) each.reconnect();
  }

  /** Ends all sockets and subscriptions. */
  close() {
    this.#socket.close();
    for (const each of this.#sockets) each.close();
  }

  get #socket() {
    this.#connection ??= new Connection({ ...this.#options, url: `${this.#socketUrl}/socket` });
    return this.#connection;
  }

  get #socketUrl() {
    return this.url.replace(/^http/, "ws");
  }

  /** Asks by a plain request why a socket could not be opened; resolves with the error if the client is refused. */
  async #probe() {
    try {
      const signal = AbortSignal.timeout(this.#options.silenceMs ?? SILENCE_MS); // it may be gone without a word, too
      await this.#http.json("GET", "/keyspaces", { signal });
      return null;
    } catch (error) {
      if (!(error instanceof Problem)) return null; // the gateway is away
      return error.status === 401 || error.status === 403 ? error : null;
    }
  }
}

/** A token without the space around it, as a file may have. It stands in a header and, with sockets, in a sub-protocol. */
function checked(token) {
  const found = token?.trim() || undefined;
  if (found && !/^[\w.~+-]+$/.test(found)) throw new TypeError("a token consists of letters, digits, '-', '_' and '.'");
  return found;
}
