// JSON whose whole numbers are exact: those beyond 2^53 are BigInt, as they are in Avro.

const LONG = /\d{16}/;

/** The value of a text. Platforms that do not show the source of a number round it. */
export function parseJson(text) {
  return LONG.test(text) ? JSON.parse(text, exact) : JSON.parse(text);
}

function exact(_, value, context) {
  if (typeof value !== "number" || Number.isSafeInteger(value)) return value;
  return /^-?\d+$/.test(context?.source ?? "") ? BigInt(context.source) : value;
}

/**
 * The text of a value. Throws for what JSON lacks. With half a character the gateway would end the socket of all; a number
 * that is none, or infinite, would be written as null.
 */
export function jsonText(value) {
  return JSON.stringify(value, (_, each) => {
    if (typeof each === "number" && !Number.isFinite(each)) throw new TypeError(`JSON can't carry ${each}`);
    if (typeof each === "string" && !each.isWellFormed()) throw new TypeError("text has half a character, which JSON lacks");
    return typeof each === "bigint" ? numberOf(each) : each;
  });
}

function numberOf(whole) {
  if (Number.isSafeInteger(Number(whole))) return Number(whole);
  if (!JSON.rawJSON) throw new TypeError(`this platform can't write ${whole} as JSON`);
  return JSON.rawJSON(String(whole));
}
