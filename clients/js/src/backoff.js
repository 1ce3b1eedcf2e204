// How long to wait before the next attempt: twice as long each time, with jitter, so that clients do not come together.

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
