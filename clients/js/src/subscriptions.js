// What a program subscribed to: one key, or a collection. They outlive connections: each knows the place from which the
// next connection resumes, and takes in a change and its place together.
import { jsonText } from "./json.js";
import { AsyncQueue } from "./queue.js";

const MOST_WAITING = 10_000;

/** A value as text, to compare it; whole numbers beyond 2^53 are BigInt, which JSON lacks. */
export function textOf(value) {
  return JSON.stringify(value, (_, each) => (typeof each === "bigint" ? `${each}n` : each));
}

/** What both kinds share: a queue of changes to read with `for await`, and an end. */
class Subscription {
  constructor(id, request, options, onClose, onOverflow) {
    this.id = id;
    this.request = request;
    this.options = options;
    this.failures = 0;
    this.onClose = onClose;
    this.queue = new AsyncQueue({ limit: options.maxWaiting ?? MOST_WAITING, onOverflow });
  }

  [Symbol.asyncIterator]() {
    return {
      next: () => this.queue.next(),
      return: async () => {
        this.close();
        return { value: undefined, done: true };
      },
    };
  }

  /** Ends the subscription; changes that wait can still be read. */
  close() {
    this.onClose(this);
    this.end(null);
  }

  /** Ends it because of an error, which its reader gets, or in order. */
  end(error) {
    this.queue.end(error);
  }

  /** The frame that asks for it, from the place where the last connection ended. */
  frame() {
    return jsonText({ ...this.request, id: this.id, ...this.place() });
  }
}

/** The changes of one key. The first one is its present value, unless it was opened with an offset. */
export class KeySubscription extends Subscription {
  constructor(id, request, options, onClose) {
    // A reader that is too slow gets the newest value, marked as lagged, as it would from the gateway.
    // It is whole, and has not the delta of its last step alone.
    const newest = ({ delta, ...change }) => ({ ...change, ...(delta !== undefined && !options.applyDelta && { delta }) });
    super(id, { op: "subscribe", ...request }, options, onClose, (items) => [{ ...newest(items.at(-1)), isLagged: true }]);
    this.offset = options.after ?? null;
    this.value = undefined;
  }

  place() {
    return this.offset === null ? {} : { after: this.offset };
  }

  /** Takes a push: {offset, value | delta, isPresent, isLagged, isExpiry}. */
  take(push) {
    this.failures = 0;
    this.offset = push.offset;
    this.value = push.delta === undefined ? push.value : this.options.applyDelta?.(this.value ?? null, push.delta);
    const { offset, delta, isPresent, isLagged, isExpiry } = push;
    const more = delta === undefined ? {} : { delta };
    this.queue.put({ value: this.value, offset, isPresent, isLagged, isExpiry, ...more });
  }
}

/**
 * All keys of a state, of a prefix or of a range, and their changes. `entries()` is what it holds; reading it with
 * `for await` gives each change of that, also those that a new snapshot shows after a gap.
 */
export class Collection extends Subscription {
  #entries = new Map(); // by the key as JSON: {key, value, partition}
  #staged = new Map(); // by partition: the snapshot that is being read
  #places = new Map();
  #partitions = [];
  #hasBegun = false; // on this connection
  #first = Promise.withResolvers();

  constructor(id, request, options, onClose) {
    super(id, { op: "collect", ...request }, options, onClose, () => [{ kind: "lagged" }]);
    this.isReady = false;
    this.#first.promise.catch(() => {}); // its reader may be the loop over changes only
  }

  /** Resolves with the collection when the first snapshot is complete. */
  get ready() {
    return this.#first.promise;
  }

  get size() {
    return this.#entries.size;
  }

  /** The value of a key; undefined if it has none. */
  get(key) {
    return this.#entries.get(textOf(key))?.value;
  }

  /** All pairs [key, value]. */
  *entries() {
    for (const { key, value } of this.#entries.values()) yield [key, value];
  }

  end(error) {
    super.end(error);
    this.#first.reject(error ?? new Error("the collection was closed before it was ready"));
  }

  place() {
    return { after: Object.fromEntries(this.#places) };
  }

  /** What was read of a snapshot is worth nothing to the next connection. */
  disconnected() {
    this.#staged.clear();
    this.#hasBegun = false;
  }

  /** Takes a frame of the collection. */
  take(frame) {
    this.failures = 0;
    const { op, partition } = frame;
    if (op === "begin") this.#begin(frame.partitions);
    else if (op === "reset") this.#staged.set(partition, new Map());
    else if (op === "pairs") for (const pair of frame.pairs) this.#stage(partition, pair);
    else if (op === "ready") this.#complete(partition, frame.offset);
    else if (op === "change") this.#change(frame);
  }

  #begin(partitions) {
    // Of a resized keyspace every partition is read again.
    if (this.#hasBegun || `${partitions}` !== `${this.#partitions}`) this.#places.clear();
    this.#hasBegun = true;
    this.#partitions = partitions;
    this.#staged.clear();
  }

  #stage(partition, { key, value, delta }) {
    const name = textOf(key);
    const staged = this.#staged.get(partition);
    const now = delta === undefined ? value : this.options.applyDelta?.(staged.get(name)?.value ?? null, delta);
    if (now === null) staged.delete(name);
    else staged.set(name, { key, value: now, partition });
  }

  #change(frame) {
    if (this.#staged.has(frame.partition)) {
      this.#stage(frame.partition, frame);
      return;
    }
    const { key, delta, isExpiry } = frame;
    const value = delta === undefined ? frame.value : this.options.applyDelta?.(this.get(key) ?? null, delta);
    this.#set(key, value, frame.partition);
    this.#places.set(frame.partition, frame.offset);
    this.#tell(key, value, { offset: frame.offset, ...(delta !== undefined && { delta }), ...(isExpiry && { isExpiry }) });
  }

  #complete(partition, offset) {
    const staged = this.#staged.get(partition);
    this.#staged.delete(partition);
    this.#places.set(partition, offset);
    // Keys of this partition that the snapshot lacks are gone, or lie in another partition since a resize.
    for (const [name, entry] of this.#entries) if (entry.partition === partition && !staged.has(name)) entry.partition = -1;
    for (const [name, { key, value }] of staged) {
      const known = this.#entries.get(name);
      this.#set(key, value, partition);
      if (!known || textOf(known.value) !== textOf(value)) this.#tell(key, value, { isPresent: true });
    }
    if (this.#staged.size === 0 && this.#partitions.every((each) => this.#places.has(each))) this.#settle();
  }

  /** All partitions are complete: what none of them has is gone. */
  #settle() {
    for (const [name, { key, partition }] of [...this.#entries]) {
      if (this.#partitions.includes(partition)) continue;
      this.#entries.delete(name);
      this.#tell(key, null, { isPresent: true });
    }
    if (this.isReady) return;
    this.isReady = true;
    this.queue.put({ kind: "ready" });
    this.#first.resolve(this);
  }

  #set(key, value, partition) {
    const name = textOf(key);
    if (value === null) this.#entries.delete(name);
    else this.#entries.set(name, { key, value, partition });
  }

  #tell(key, value, more) {
    this.queue.put({ kind: "change", key, value, ...more });
  }
}
