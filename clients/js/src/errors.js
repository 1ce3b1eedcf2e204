// Errors of the client, and what the codes mean that the gateway closes a socket with.

const PROXYS = [502, 504]; // of a proxy that has lost its gateway on the way, or waited too long for it

/** The gateway's answer to a request that failed: a JSON problem (RFC 9457). */
export class Problem extends Error {
  constructor(problem) {
    super(problem.detail ?? problem.title ?? `status ${problem.status}`);
    this.name = "Problem";
    this.status = problem.status;
    this.type = problem.type;
    this.problem = problem;
  }

  /** True if the same request may succeed later. */
  get isRetryable() {
    return this.status === 429 || this.status === 503 || PROXYS.includes(this.status);
  }

  /** False if the request may have been done although it failed; send it again with the same key. */
  get outcomeKnown() {
    return this.problem.outcome_known ?? !PROXYS.includes(this.status);
  }
}

/** A socket that the gateway has closed, and that is not opened again. */
export class SocketClosed extends Error {
  constructor(code, reason) {
    super(reason || closeMeaning(code).text);
    this.name = "SocketClosed";
    this.code = code;
    this.reason = reason;
  }
}

/** The client was closed while something was waiting. */
export class ClientClosed extends Error {
  constructor() {
    super("the client is closed");
    this.name = "ClientClosed";
  }
}

const FIXED = {
  1000: ["closed", "the socket was closed in order"],
  1001: ["retry", "the other side goes away"],
  1006: ["retry", "the connection was lost"],
  1009: ["refused", "a frame was too large"],
  1011: ["retry", "the gateway failed"],
  1012: ["retry", "the gateway stops; another one, or the same, will be there soon"],
  1013: ["retry", "the gateway can't serve this now, or the client was too slow"],
};

/**
 * What a close code means, as {action, status, text}. `action` is `retry` (connect again and resume), `token` (connect
 * again with a new token), `refused` (the same would be refused again) or `closed`.
 */
export function closeMeaning(code) {
  if (FIXED[code]) return { action: FIXED[code][0], status: null, text: FIXED[code][1] };
  if (code >= 4100 && code < 4600) {
    const status = code - 4000;
    if (status === 401) return { action: "token", status, text: "the token has ended" };
    const action = status === 429 || status >= 500 ? "retry" : "refused";
    return { action, status, text: `the gateway refused a frame with status ${status}` };
  }
  return { action: "retry", status: null, text: `the socket was closed with code ${code}` };
}
