// Types of Headrace's client.

/** JSON as the gateway writes it: values of classes are {type, data}. */
export type Json = null | boolean | number | bigint | string | Json[] | { [name: string]: Json };

/** A key: a text or a number, or its parts. */
export type Key = string | number | Array<string | number | boolean>;

/** What the client tells about its socket. */
export type Status =
  | { status: "open" }
  | { status: "waiting"; code?: number; reason?: string; delayMs: number };

export interface BackoffOptions {
  /** The first delay in milliseconds; 100 if absent. */
  firstMs?: number;
  /** The longest delay in milliseconds; 10 000 if absent. */
  limitMs?: number;
  random?: () => number;
}

export interface HeadraceOptions {
  /** A token, or a function that returns a fresh one whenever one is needed. */
  token?: string | (() => string | undefined | Promise<string | undefined>);
  backoff?: BackoffOptions;
  /** How long nothing may come before a connection counts as lost: 20 s for the socket, which is asked first, 60 s for streams. */
  silenceMs?: number;
  onStatus?: (status: Status) => void;
  fetch?: typeof globalThis.fetch;
  WebSocket?: typeof globalThis.WebSocket;
}

/** A change of one key, or its present value. */
export interface Change<V = Json> {
  /** The whole value; null if the key has none. With `deltas` and no `applyDelta` it is undefined after a delta. */
  value: V | null | undefined;
  /** The increment, if the subscription asked for deltas and the change has one. */
  delta?: Json;
  /** The place to resume after. */
  offset: string;
  /** True for the value as it stood when the subscription began, or after a gap. */
  isPresent: boolean;
  /** True if changes before this one may be missing. */
  isLagged: boolean;
  /** True if the value was removed because its time was over. */
  isExpiry: boolean;
}

/** What a collection tells: a change of one key, that the first snapshot is complete, or that changes were skipped. */
export type CollectionChange<V = Json> =
  | {
      kind: "change";
      key: Json;
      value: V | null | undefined;
      delta?: Json;
      offset?: string;
      isPresent?: boolean;
      isExpiry?: boolean;
    }
  | { kind: "ready" }
  | { kind: "lagged" };

export interface SubscribeOptions<V = Json> {
  /** How values travel: `json` if absent. Both give the same values. */
  format?: "json" | "avro";
  /** Get increments in place of whole values, where a change has one. */
  deltas?: boolean;
  /** Returns the whole value after a delta. */
  applyDelta?: (value: V | null, delta: Json) => V;
  /** How many changes may wait to be read; 10 000 if absent. */
  maxWaiting?: number;
}

export interface KeySubscription<V = Json> extends AsyncIterable<Change<V>> {
  readonly offset: string | null;
  close(): void;
}

export interface Collection<V = Json> extends AsyncIterable<CollectionChange<V>> {
  /** Resolves when the first snapshot is complete. */
  readonly ready: Promise<Collection<V>>;
  readonly isReady: boolean;
  readonly size: number;
  get(key: Key): V | undefined;
  entries(): IterableIterator<[Json, V]>;
  close(): void;
}

export interface Pairs<V = Json> {
  pairs: Array<{ key: Json; value: V }>;
  next: Json;
}

export interface State<V = Json> {
  get(key: Key, options?: { maxStalenessS?: number }): Promise<{ value: V; version: number } | null>;
  /** With `version`, only if the value still has it; with null, only if there is no value. */
  put(key: Key, value: unknown, options?: { version?: number | null; ttlS?: number }): Promise<void>;
  delete(key: Key, options?: { version?: number }): Promise<void>;
  page(prefix: Key, options?: { after?: Json; limit?: number }): Promise<Pairs<V>>;
  count(): Promise<number>;
  find(index: string, value: Json, options?: { limit?: number }): Promise<Array<{ key: Json; value: V }>>;
  subscribe(key: Key, options?: SubscribeOptions<V> & { after?: string; token?: string }): KeySubscription<V>;
  collect(options?: SubscribeOptions<V> & { prefix?: Key; start?: Key; end?: Key }): Collection<V>;
}

export interface CommandResult<S = Json> {
  version: number;
  state: S;
  events: Array<{ type: string; data: Json }>;
  value: Json;
  since: string | null;
  is_repeated: boolean;
}

export interface Engine<S = Json> {
  get(id: string): Promise<{ state: S; version: number; since: string | null } | null>;
  command(
    id: string,
    command: string,
    data: unknown,
    options?: { idempotencyKey?: string; version?: number; since?: string },
  ): Promise<CommandResult<S>>;
}

export interface JournalEvent {
  seq_nr: number;
  payload: Json;
  tags: string[];
  [member: string]: Json;
}

export interface NewEvent {
  payload: unknown;
  payload_type?: string;
  tags?: string[];
  seq_nr?: number;
}

export interface Journal {
  read(id: string, options?: { from?: number; to?: number; limit?: number }): Promise<{ events: JournalEvent[]; next: number | null }>;
  append(id: string, events: NewEvent[], options?: { expected?: number; idempotencyKey?: string }): Promise<Json>;
  pointer(id: string): Promise<Json>;
  delete(id: string, to: number): Promise<Json>;
  purge(id: string): Promise<Json>;
}

/** A socket on one key: its values as they change, and messages to the key. */
export interface KeySocket<V = Json> extends AsyncIterable<V | null> {
  send(message: string, data: unknown): Promise<void>;
  schema(name: string): Promise<{ schemaId: number; schema: Json }>;
  reconnect(): void;
  close(): void;
}

export class GatewayClient {
  constructor(url: string, options?: HeadraceOptions);
  readonly url: string;
  state<V = Json>(keyspace: string, name: string): State<V>;
  engine<S = Json>(name: string): Engine<S>;
  journal(topic: string): Journal;
  keyspaces(): Promise<Array<{ name: string; states: Json[]; messages: string[] }>>;
  eventPage(tags: string[], options?: { after?: string; limit?: number }): Promise<{ events: JournalEvent[]; next: string | null; is_end: boolean }>;
  events(tags: string[], options?: { after?: string; signal?: AbortSignal; backoff?: BackoffOptions }): AsyncGenerator<JournalEvent & { tag_offset: string }, void>;
  publish<R = Json>(keyspace: string, message: string, data: unknown, options?: { messageId?: string }): Promise<R>;
  send<R = Json>(keyspace: string, message: string, data: unknown, options?: { idempotencyKey?: string }): Promise<R>;
  keySocket<V = Json>(keyspace: string, state: string, key: Key, options?: { json?: boolean }): KeySocket<V>;
  /** Gives all sockets up, as a lost network would, and opens them again: for programs that were asleep. */
  reconnect(): void;
  close(): void;
}

/** The gateway's answer to a request that failed (RFC 9457). */
export class Problem extends Error {
  constructor(problem: { status: number; detail?: string; title?: string; type?: string });
  readonly status: number;
  readonly type: string;
  readonly problem: { [member: string]: Json };
  readonly isRetryable: boolean;
  readonly outcomeKnown: boolean;
}

/** A socket that the gateway has closed, and that is not opened again. */
export class SocketClosed extends Error {
  readonly code: number;
  readonly reason: string;
}

export class ClientClosed extends Error {}

export interface CloseMeaning {
  action: "retry" | "token" | "refused" | "closed";
  status: number | null;
  text: string;
}

export function closeMeaning(code: number): CloseMeaning;

export class Backoff {
  constructor(options?: BackoffOptions);
  delayMs(failures: number): number;
}

/** Encodes and decodes Avro in the gateway's JSON form. */
export class AvroCodec {
  constructor(schemaText: string);
  readonly schema: Json;
  readonly name: string;
  decode(bytes: Uint8Array): Json;
  encode(value: unknown): Uint8Array;
}

interface FramedValue {
  schemaId: number | null;
  body: Uint8Array | null;
}

interface PushFlags {
  id: number;
  offset: string;
  isLagged: boolean;
  isAbsent: boolean;
  isPresent: boolean;
  isExpiry: boolean;
  isDelta: boolean;
}

export type Frame =
  | { kind: "empty" }
  | ({ kind: "value" } & FramedValue)
  | { kind: "schema"; schemaId: number; text: string }
  | ({ kind: "push" } & PushFlags & FramedValue)
  | ({ kind: "pair"; partition: number; key: Json } & PushFlags & FramedValue);

export function parseFrame(frame: Uint8Array): Frame;
export function framed(frame: Uint8Array): FramedValue;
export function askSchema(schemaId: number): Uint8Array;
export function frameValue(schemaId: number, body: Uint8Array): Uint8Array;
export function serverEvents(
  body: ReadableStream<Uint8Array>,
  silenceMs?: number,
): AsyncGenerator<{ id: string | undefined; event: string; data: string }, void>;
