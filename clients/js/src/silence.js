// Notices that a connection is gone without a word. Browsers don't tell of one whose other end was cut off, and can't send
// pings: so after some silence the gateway is asked for a sign of life, and a connection without an answer is lost.

export const SILENCE_MS = 20_000; // without a frame, before the gateway is asked for one; and again, until it has answered

export class Silence {
  #silenceMs;
  #onLost;
  #timer;

  /** Begins to wait for the connection to be open: `onLost` is called if it is not, after twice `silenceMs`. */
  constructor(silenceMs = SILENCE_MS, onLost) {
    this.#silenceMs = silenceMs;
    this.#onLost = onLost;
    this.#after(2 * silenceMs, onLost);
  }

  /** Begins again with each frame. After `silenceMs` without one `ask` is called, and after as long again `onLost`. */
  heard(ask) {
    this.#after(this.#silenceMs, () => {
      this.#after(this.#silenceMs, this.#onLost);
      ask();
    });
  }

  end() {
    clearTimeout(this.#timer);
  }

  #after(ms, act) {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(act, ms);
    this.#timer.unref?.(); // it keeps no program of Node running
  }
}
