// One socket over many keys, collections and keyspaces (`headrace.v1`), opened again whenever it is lost.
import { Backoff, Retries, sleep } from "./backoff.js";
import { ClientClosed, closeMeaning, Problem, SocketClosed } from "./errors.js";
import { askSchema, bytesOf, parseFrame } from "./frames.js";
import { jsonText, parseJson } from "./json.js";
import { Silence } from "./silence.js";
import { Collection, KeySubscription } from "./subscriptions.js";
import { AvroCodec } from "./values.js";

const PROTOCOL = "headrace.v1";
const LOST = 1006;
// A question about no subscription: the gateway answers each, and a connection without an answer is lost.
const ARE_YOU_THERE = JSON.stringify({ op: "unsubscribe", id: 0 });

/** What one socket has: its frames in order, and the schemas that it was asked for. */
class Session {
  constructor(socket, onFrame, silence) {
    this.socket = socket;
    this.isOpen = false;
    this.asked = new Map(); // by the id of a schema: who waits for it
    this.turn = Promise.resolve();
    this.onFrame = onFrame;
    this.silence = silence;
  }

  open() {
    this.isOpen = true;
    this.#listen();
  }

  #listen() {
    this.silence.heard(() => this.socket.readyState === 1 && this.socket.send(ARE_YOU_THERE));
  }

  /** Takes a message of the socket. Frames are handled one after the other; schemas at once, as frames wait for them. */
  receive(data) {
    this.#listen();
    const frame = typeof data === "string" ? parseJson(data) : parseFrame(bytesOf(data));
    if (frame.kind === "schema") {
      this.asked.get(frame.schemaId)?.resolve(frame.text);
      this.asked.delete(frame.schemaId);
      return;
    }
    this.turn = this.turn.then(() => this.isOpen && this.onFrame(this, frame));
  }

  schema(schemaId) {
    const waiting = Promise.withResolvers();
    this.asked.set(schemaId, waiting);
    this.socket.send(askSchema(schemaId));
    return waiting.promise;
  }

  close(code, reason) {
    this.isOpen = false;
    this.silence.end();
    this.socket.close(code, reason);
  }
}

export class Connection {
  #options;
  #subscriptions = new Map();
  #messages = new Map(); // published and not answered: they are sent again, and handled once
  #codecs = new Map();
  #lastId = 0;
  #session = null;
  #stopped = new AbortController();
  #running = null;
  #giveUp = null; // the socket that is there, or is being opened
  #backoff;

  /** `options`: url, token(), WebSocket, probe(), backoff, silenceMs, onStatus. */
  constructor(options) {
    this.#options = options;
    this.#backoff = new Backoff(options.backoff);
  }

  subscribe(request, options) {
    return this.#add(new KeySubscription(this.#newId(), request, options, (each) => this.#remove(each)));
  }

  collect(request, options) {
    return this.#add(new Collection(this.#newId(), request, options, (each) => this.#remove(each)));
  }

  /** Sends a message to its handler, over as many connections as it takes; resolves with the reply. */
  publish(keyspace, message, data, messageId) {
    const id = this.#newId();
    const frame = jsonText({ op: "publish", id, keyspace, message, data, message_id: messageId });
    const { promise, resolve, reject } = Promise.withResolvers();
    this.#messages.set(id, { frame, resolve, reject, failures: 0 });
    this.#send(frame);
    this.#start();
    return promise;
  }

  /** Ends the socket and everything on it. */
  close() {
    this.#session?.close(1000, "");
    this.#stopped.abort();
    this.#endAll(null);
  }

  /** Gives the socket up, as a lost network would; another one is opened. For tests and for programs that wake up. */
  reconnect() {
    this.#giveUp?.(); // its other end may be gone: nobody waits for an answer to the end
  }

  #newId() {
    if (this.#stopped.signal.aborted) throw new ClientClosed();
    this.#lastId += 1;
    return this.#lastId;
  }

  #add(subscription) {
    const frame = subscription.frame();
    this.#subscriptions.set(subscription.id, subscription);
    this.#send(frame);
    this.#start();
    return subscription;
  }

  #remove(subscription) {
    if (!this.#subscriptions.delete(subscription.id)) return;
    this.#send(JSON.stringify({ op: "unsubscribe", id: subscription.id }));
  }

  #send(frame) {
    if (this.#session?.isOpen) this.#session.socket.send(frame);
  }

  #start() {
    this.#running ??= this.#run();
  }

  /** Keeps a socket open until the client is closed, or the gateway refuses for good. */
  async #run() {
    const retries = new Retries(this.#options.backoff);
    while (!this.#stopped.signal.aborted) {
      const ended = await this.#connectOnce();
      if (this.#stopped.signal.aborted) return;
      const refusal = ended.error ?? (await this.#refusal(ended, retries));
      if (refusal) {
        this.#endAll(refusal);
        this.#running = null;
        return;
      }
      const delayMs = retries.nextMs(ended.openedAt);
      this.#tell({ status: "waiting", code: ended.code, reason: ended.reason, delayMs });
      await sleep(delayMs, this.#stopped.signal);
    }
  }

  /** Opens a socket and serves it to its end. Resolves with {openedAt, code, reason}, or {error}. */
  async #connectOnce() {
    let token;
    try {
      token = await this.#options.token();
    } catch (error) {
      return { hasToken: false, reason: `no token: ${error.message}` };
    }
    if (this.#stopped.signal.aborted) return {};
    const protocols = token ? [PROTOCOL, `headrace.bearer.${token}`] : [PROTOCOL];
    const { promise, resolve } = Promise.withResolvers();
    let socket;
    try {
      socket = new this.#options.WebSocket(this.#options.url, protocols);
    } catch (error) {
      return { error }; // of an address that is none
    }
    socket.binaryType = "arraybuffer";
    const silence = new Silence(this.#options.silenceMs, () => ended(LOST, "the gateway does not answer"));
    const session = new Session(socket, (from, frame) => this.#take(from, frame), silence);
    let openedAt;
    let error;
    const over = new AbortController();
    const ended = (code, reason) => {
      if (over.signal.aborted) return; // one that was given up is closed later, or never
      over.abort();
      session.close();
      if (this.#session === session) this.#session = null;
      for (const each of this.#subscriptions.values()) each.disconnected?.();
      resolve({ openedAt, code, reason, error });
    };
    socket.onopen = () => {
      if (over.signal.aborted) return;
      openedAt = performance.now();
      session.open();
      this.#session = session;
      this.#resume();
      this.#tell({ status: "open" });
    };
    socket.onmessage = ({ data }) => {
      if (over.signal.aborted) return;
      try {
        session.receive(data);
      } catch (failure) {
        error = failure; // the two sides do not understand each other; the next connection would not, either
        session.close(4000, "frame not understood");
      }
    };
    socket.onerror = () => {}; // onclose follows, and says as much as a browser tells
    socket.onclose = ({ code, reason }) => ended(code, reason);
    this.#giveUp = () => ended(LOST, "given up");
    this.#stopped.signal.addEventListener("abort", this.#giveUp, { once: true, signal: over.signal });
    return promise;
  }

  /** Everything that is subscribed to, from where it stands, and every message without an answer. */
  #resume() {
    for (const each of this.#subscriptions.values()) this.#send(each.frame());
    for (const each of this.#messages.values()) this.#send(each.frame);
  }

  /** The error that ends everything, if the gateway would refuse another connection, too. */
  async #refusal({ openedAt, hasToken, code, reason }, retries) {
    if (hasToken === false) return null;
    // Browsers do not tell why a socket could not be opened, so a plain request asks.
    if (openedAt === undefined) return finalRefusal(await this.#options.probe(), this.#options, retries);
    const { action } = closeMeaning(code);
    if (action === "token") return this.#options.hasFreshTokens ? null : new SocketClosed(code, reason);
    return action === "refused" ? new SocketClosed(code, reason) : null;
  }

  async #take(session, frame) {
    try {
      const known = await this.#decoded(session, frame);
      if (!session.isOpen) return; // it comes again on the next connection
      this.#dispatch(known);
    } catch (error) {
      const subscription = this.#subscriptions.get(frame.id);
      if (!subscription) return;
      this.#remove(subscription);
      subscription.end(error);
    }
  }

  #dispatch(frame) {
    const { op, id } = frame;
    if (op === "published") this.#answered(id, (message) => message.resolve(frame.reply));
    else if (op === "refused") this.#refused(id, new Problem(frame.problem));
    else if (op === "problem") this.#failed(id, new Problem(frame.problem));
    else if (op === "unsubscribed") return;
    else this.#subscriptions.get(id)?.take(frame);
  }

  /** The frame with its value: binary ones are decoded, and all have the same names. */
  async #decoded(session, frame) {
    if (frame.kind === undefined) return renamed(frame);
    const content = frame.schemaId === null ? null : await this.#value(session, frame);
    const value = frame.isDelta ? { delta: content } : { value: content };
    const { id, partition, key, offset, isPresent, isLagged, isExpiry } = frame;
    if (frame.kind === "push") return { op: "push", id, offset, isPresent, isLagged, isExpiry, ...value };
    if (isPresent) return { op: "pairs", id, partition, pairs: [{ key, value: content }] };
    return { op: "change", id, partition, key, offset, isExpiry, ...value };
  }

  async #value(session, { schemaId, body }) {
    let codec = this.#codecs.get(schemaId);
    if (!codec) {
      codec = new AvroCodec(await session.schema(schemaId));
      this.#codecs.set(schemaId, codec);
    }
    return codec.decode(body);
  }

  #answered(id, answer) {
    const message = this.#messages.get(id);
    this.#messages.delete(id);
    if (message) answer(message);
  }

  /** A message that can't be handled now is sent again; its id makes that safe. */
  #refused(id, problem) {
    const message = this.#messages.get(id);
    if (!message) return;
    if (!problem.isRetryable) {
      this.#answered(id, ({ reject }) => reject(problem));
      return;
    }
    message.failures += 1;
    this.#later(message.failures, () => this.#messages.has(id) && this.#send(message.frame));
  }

  /** A subscription that can't be served now is asked for again; others end. */
  #failed(id, problem) {
    const subscription = this.#subscriptions.get(id);
    if (!subscription) return;
    if (!problem.isRetryable) {
      this.#subscriptions.delete(id);
      subscription.end(problem);
      return;
    }
    subscription.disconnected?.();
    subscription.failures += 1;
    this.#later(subscription.failures, () => this.#subscriptions.has(id) && this.#send(subscription.frame()));
  }

  /** Does something after a pause, unless the socket is another one by then: that has done it. */
  async #later(failures, act) {
    const session = this.#session;
    await sleep(this.#backoff.delayMs(failures), this.#stopped.signal);
    if (this.#session === session && !this.#stopped.signal.aborted) act();
  }

  #endAll(error) {
    for (const each of this.#subscriptions.values()) each.end(error);
    for (const { reject } of this.#messages.values()) reject(error ?? new ClientClosed());
    this.#subscriptions.clear();
    this.#messages.clear();
  }

  #tell(status) {
    this.#options.onStatus?.(status);
  }
}

/** The error that ends everything, of what the gateway refuses the client with: a function may give a better token. */
export function finalRefusal(error, { hasFreshTokens }, retries) {
  return error?.status === 401 && hasFreshTokens && retries.mayRenewToken() ? null : error;
}

/** A frame of JSON with the names that programs see. */
function renamed({ is_present: present, is_expiry: expiry, is_lagged: _lagged, ...frame }) {
  if (frame.op !== "value" && frame.op !== "lagged") return expiry ? { ...frame, isExpiry: true } : frame;
  const flags = { isPresent: present === true, isLagged: frame.op === "lagged", isExpiry: expiry === true };
  return { ...frame, ...flags, op: "push" };
}
