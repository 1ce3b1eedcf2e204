// A queue that is read with `for await`, and ends in order or with an error.

export class AsyncQueue {
  constructor({ limit = Infinity, onOverflow = () => [] } = {}) {
    this.items = [];
    this.limit = limit;
    this.onOverflow = onOverflow;
    this.waiting = null;
    this.ended = false;
    this.error = null;
  }

  /** Adds an item. If too many wait, `onOverflow(items)` returns what is kept of them. */
  put(item) {
    if (this.ended) return;
    this.items.push(item);
    if (this.items.length > this.limit) this.items = this.onOverflow(this.items);
    this.#wake();
  }

  /** Ends the queue; what waits is read first. */
  end(error = null) {
    if (this.ended) return;
    this.ended = true;
    this.error = error;
    this.#wake();
  }

  async next() {
    while (this.items.length === 0 && !this.ended) {
      this.waiting ??= Promise.withResolvers();
      await this.waiting.promise;
    }
    if (this.items.length > 0) return { value: this.items.shift(), done: false };
    if (this.error) throw this.error;
    return { value: undefined, done: true };
  }

  #wake() {
    this.waiting?.resolve();
    this.waiting = null;
  }
}
