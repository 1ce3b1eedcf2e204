// How long to wait before the next attempt: twice as long each time, with jitter, so that clients do not come together.

const MOST_REFUSED_TOKENS = 3;

export class Backoff {
  constructor({ firstMs = 100, limitMs = 10_000, random = Math.random } = {}) {
    this.firstMs = firstMs;
    this.limitMs = limitMs;
    this.random = random;
  }

  /** The delay before an attempt, given how many failed before it: half of it is fixed, half is chance. */
  delayMs(failures) {
    const most = Math.min(this.limitMs, this.firstMs * 2 ** Math.min(failures - 1, 30));
    return most / 2 + (most / 2) * this.random();
  }
}

/**
 * How often in a row a connection failed. One that is lost again sooner than it was waited for has failed, too. Tokens that
 * were refused are counted: a function may give some, before that is an error.
 */
export class Retries {
  #delays;
  #failures = 0;
  #refusedTokens = 0;
  #delayMs = 0;

  constructor(backoff) {
    this.#delays = new Backoff(backoff);
  }

  /** Counts a token that was refused; false if the program's function has given too many of them. */
  mayRenewToken() {
    this.#refusedTokens += 1;
    return this.#refusedTokens <= MOST_REFUSED_TOKENS;
  }

  /** The delay before the next attempt; `openedAt` is when the last one was open, undefined if it never was. */
  nextMs(openedAt) {
    if (openedAt !== undefined && performance.now() - openedAt > this.#delayMs) this.#failures = this.#refusedTokens = 0;
    this.#failures += 1;
    this.#delayMs = this.#delays.delayMs(this.#failures);
    return this.#delayMs;
  }
}

/** Waits, until the time is over or the signal says to go on. */
export function sleep(ms, signal) {
  return new Promise((resolve) => {
    if (signal?.aborted) return resolve();
    const done = () => {
      clearTimeout(timer);
      signal?.removeEventListener("abort", done);
      resolve();
    };
    const timer = setTimeout(done, ms);
    signal?.addEventListener("abort", done);
  });
}
