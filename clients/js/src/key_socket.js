// A socket on one key: the present value, then each change, as framed Avro or as JSON; and messages to the key. Its frames
// have no offsets, so a new connection begins with the present value; `GatewayClient.subscribe` resumes without a gap.
import { Retries, sleep } from "./backoff.js";
import { finalRefusal } from "./connection.js";
import { ClientClosed, closeMeaning, SocketClosed } from "./errors.js";
import { askSchema, bytesOf, frameValue, parseFrame } from "./frames.js";
import { jsonText, parseJson } from "./json.js";
import { AsyncQueue } from "./queue.js";
import { Silence } from "./silence.js";
import { textOf } from "./subscriptions.js";
import { AvroCodec } from "./values.js";

const JSON_PROTOCOL = "headrace.json";
const LOST = 1006;
const NO_SCHEMA = 0; // the id that no schema has: the gateway answers with it, and tells nothing else

export class KeySocket {
  #options;
  #queue = new AsyncQueue();
  #socket = null;
  #turn = Promise.resolve();
  #codecs = new Map(); // by id
  #byName = new Map(); // {schemaId, codec}
  #asked = []; // requests for schemas, answered in their order
  #waiting = []; // messages that wait for a connection
  #stopped = new AbortController();
  #giveUp = null; // the connection that is there, or is being opened
  #last; // what the program got last: the present value of a new connection is given only if it differs

  /** `options`: url, token(), hasFreshTokens, probe(), WebSocket, json, backoff, silenceMs, onStatus, onEnd. */
  constructor(options) {
    this.#options = options;
    this.#run();
  }

  /** Values, as they change; null while the key has none. */
  [Symbol.asyncIterator]() {
    return {
      next: () => this.#queue.next(),
      return: async () => {
        this.close();
        return { value: undefined, done: true };
      },
    };
  }

  /**
   * Sends a message to the handler of the key: as framed Avro, or as JSON on a socket of JSON. It is sent at most once,
   * and its effect comes back as a change; `GatewayClient.publish` tells the reply and is safe over lost connections.
   */
  async send(message, data) {
    const socket = await this.#opened();
    if (this.#options.json) {
      socket.send(jsonText({ type: message, data }));
      return;
    }
    const { schemaId, codec } = await this.#named(socket, message);
    socket.send(frameValue(schemaId, codec.encode(data)));
  }

  /** The schema of a type of the keyspace, by its name, as {schemaId, schema}. */
  async schema(name) {
    const { schemaId, codec } = await this.#named(await this.#opened(), name);
    return { schemaId, schema: codec.schema };
  }

  /** Gives the connection up, as a lost network would; another one is opened. */
  reconnect() {
    this.#giveUp?.();
  }

  close() {
    this.#socket?.close(1000, "");
    this.#end(null);
  }

  async #run() {
    const retries = new Retries(this.#options.backoff);
    while (!this.#stopped.signal.aborted) {
      const ended = await this.#connectOnce();
      if (this.#stopped.signal.aborted) return;
      const { code, reason } = ended;
      const refusal = ended.error ?? (await this.#refusal(ended, retries));
      if (refusal) {
        this.#end(refusal);
        return;
      }
      const delayMs = retries.nextMs(ended.openedAt);
      this.#options.onStatus?.({ status: "waiting", code, reason, delayMs });
      await sleep(delayMs, this.#stopped.signal);
    }
  }

  async #refusal({ openedAt, hasToken, code, reason }, retries) {
    if (hasToken === false) return null;
    if (openedAt === undefined) return finalRefusal(await this.#options.probe(), this.#options, retries);
    const { action } = closeMeaning(code);
    if (action === "token" && this.#options.hasFreshTokens) return null;
    return action === "refused" || action === "token" ? new SocketClosed(code, reason) : null;
  }

  async #connectOnce() {
    let token;
    try {
      token = await this.#options.token();
    } catch (error) {
      return { hasToken: false, code: 1006, reason: `no token: ${error.message}` };
    }
    if (this.#stopped.signal.aborted) return {};
    const protocols = [...(this.#options.json ? [JSON_PROTOCOL] : []), ...(token ? [`headrace.bearer.${token}`] : [])];
    let socket;
    try {
      socket = new this.#options.WebSocket(this.#options.url, protocols);
    } catch (error) {
      return { error }; // of an address that is none
    }
    socket.binaryType = "arraybuffer";
    const { promise, resolve } = Promise.withResolvers();
    let openedAt;
    let error;
    const over = new AbortController();
    const ended = (code, reason) => {
      if (over.signal.aborted) return; // one that was given up is closed later, or never
      over.abort();
      silence.end();
      socket.close();
      if (this.#socket === socket) this.#socket = null;
      for (const { reject } of this.#asked.splice(0)) reject(new SocketClosed(code, reason));
      resolve({ openedAt, code, reason, error });
    };
    const silence = new Silence(this.#options.silenceMs, () => ended(LOST, "the gateway does not answer"));
    const listen = () => silence.heard(() => socket.readyState === 1 && this.#askForLife(socket));
    socket.onopen = () => {
      if (over.signal.aborted) return;
      openedAt = performance.now();
      this.#socket = socket;
      listen();
      this.#waiting.splice(0).forEach((each) => each.resolve(socket));
      this.#options.onStatus?.({ status: "open" });
    };
    socket.onmessage = ({ data }) => {
      if (over.signal.aborted) return;
      listen();
      try {
        this.#receive(socket, data);
      } catch (failure) {
        error = failure;
        socket.close(4000, "frame not understood");
      }
    };
    socket.onerror = () => {};
    socket.onclose = ({ code, reason }) => ended(code, reason);
    this.#giveUp = () => ended(LOST, "given up");
    this.#stopped.signal.addEventListener("abort", this.#giveUp, { once: true, signal: over.signal });
    return promise;
  }

  /** The answer comes in the order of all questions; that it comes is all there is to it. */
  #askForLife(socket) {
    this.#ask(socket, askSchema(NO_SCHEMA)).catch(() => {});
  }

  #receive(socket, data) {
    if (typeof data === "string") {
      const value = parseJson(data);
      this.#later(socket, () => this.#tell(Object.keys(value).length === 0 ? null : value));
      return;
    }
    const frame = parseFrame(bytesOf(data));
    if (frame.kind === "schema") this.#asked.shift()?.resolve(frame);
    else if (frame.kind === "empty") this.#later(socket, () => this.#tell(null));
    else this.#later(socket, async () => this.#tell(await this.#decoded(socket, frame)));
  }

  /** Handles frames one after the other, although some wait for their schema. */
  #later(socket, act) {
    this.#turn = this.#turn
      .then(() => this.#socket === socket && act())
      .catch((error) => {
        if (this.#socket === socket) this.#end(error);
      });
  }

  #tell(value) {
    const text = textOf(value);
    if (text === this.#last) return;
    this.#last = text;
    this.#queue.put(value);
  }

  async #decoded(socket, { schemaId, body }) {
    if (!this.#codecs.has(schemaId)) {
      const { text } = await this.#ask(socket, askSchema(schemaId));
      this.#codecs.set(schemaId, new AvroCodec(text));
    }
    return this.#codecs.get(schemaId).decode(body);
  }

  async #named(socket, name) {
    if (!this.#byName.has(name)) {
      const { schemaId, text } = await this.#ask(socket, name);
      this.#byName.set(name, { schemaId, codec: new AvroCodec(text) });
    }
    return this.#byName.get(name);
  }

  #ask(socket, frame) {
    const waiting = Promise.withResolvers();
    this.#asked.push(waiting);
    socket.send(frame);
    return waiting.promise;
  }

  #opened() {
    if (this.#stopped.signal.aborted) return Promise.reject(new ClientClosed());
    if (this.#socket) return Promise.resolve(this.#socket);
    const waiting = Promise.withResolvers();
    this.#waiting.push(waiting);
    return waiting.promise;
  }

  #end(error) {
    this.#stopped.abort();
    this.#queue.end(error);
    for (const { reject } of this.#waiting.splice(0)) reject(error ?? new ClientClosed());
    this.#options.onEnd(this);
  }
}
