// The binary frames of the gateway's sockets; numbers are big-endian. The layout is in docs/formats.md.
import { parseJson } from "./json.js";

export const VALUE = 0;
export const PUSH = 1;
export const PAIR = 2;
export const SCHEMA = 123;

const FLAGS = { isLagged: 1, isAbsent: 2, isPresent: 4, isExpiry: 8, isDelta: 16 };
const HEADER_BYTES = 5;
const PUSH_BYTES = 8;
const PAIR_BYTES = 14;

const text = new TextDecoder();
const bytes = new TextEncoder();

function viewOf(frame) {
  return new DataView(frame.buffer, frame.byteOffset, frame.byteLength);
}

function flagsOf(byte) {
  return Object.fromEntries(Object.entries(FLAGS).map(([name, bit]) => [name, (byte & bit) !== 0]));
}

/**
 * Parses a binary frame of the server, as {kind, …}. `kind` is `empty`, `value` (schemaId, body), `schema` (schemaId,
 * text), `push` (id, flags, offset, schemaId, body) or `pair` (the same with partition and key). Throws on others.
 */
export function parseFrame(frame) {
  if (frame.length === 0) return { kind: "empty" };
  switch (frame[0]) {
    case VALUE:
      return { kind: "value", ...framed(frame) };
    case SCHEMA:
      need(frame, HEADER_BYTES);
      return { kind: "schema", schemaId: viewOf(frame).getInt32(1), text: text.decode(frame.subarray(HEADER_BYTES)) };
    case PUSH:
      return parsePush(frame);
    case PAIR:
      return parsePair(frame);
    default:
      throw new RangeError(`a frame begins with byte ${frame[0]}, which this client does not know`);
  }
}

function parsePush(frame) {
  need(frame, PUSH_BYTES);
  const view = viewOf(frame);
  const end = PUSH_BYTES + view.getUint16(6);
  need(frame, end);
  const offset = text.decode(frame.subarray(PUSH_BYTES, end));
  return { kind: "push", id: view.getInt32(1), ...flagsOf(frame[5]), offset, ...framed(frame.subarray(end)) };
}

function parsePair(frame) {
  need(frame, PAIR_BYTES);
  const view = viewOf(frame);
  const keyAt = PAIR_BYTES + view.getUint16(8);
  const end = keyAt + view.getUint32(10);
  need(frame, end);
  return {
    kind: "pair",
    id: view.getInt32(1),
    ...flagsOf(frame[5]),
    partition: view.getUint16(6),
    offset: text.decode(frame.subarray(PAIR_BYTES, keyAt)),
    key: parseJson(text.decode(frame.subarray(keyAt, end))),
    ...framed(frame.subarray(end)),
  };
}

/** Splits framed Avro into the id of its schema and its body; nothing has neither. */
export function framed(frame) {
  if (frame.length === 0) return { schemaId: null, body: null };
  need(frame, HEADER_BYTES);
  if (frame[0] !== VALUE) throw new RangeError(`framed Avro begins with byte 0, not ${frame[0]}`);
  return { schemaId: viewOf(frame).getInt32(1), body: frame.subarray(HEADER_BYTES) };
}

/** The frame that asks for a schema by its id. */
export function askSchema(schemaId) {
  return header(SCHEMA, schemaId);
}

/** Framed Avro: byte 0, the id of the schema, the body. */
export function frameValue(schemaId, body) {
  const head = header(VALUE, schemaId);
  const frame = new Uint8Array(head.length + body.length);
  frame.set(head);
  frame.set(body, head.length);
  return frame;
}

function header(first, schemaId) {
  const head = new Uint8Array(HEADER_BYTES);
  head[0] = first;
  viewOf(head).setInt32(1, schemaId);
  return head;
}

function need(frame, length) {
  if (frame.length < length) throw new RangeError(`a frame of ${frame.length} bytes is cut off: it has ${length} or more`);
}

/** The bytes of a binary message, whichever way the platform hands it over. */
export function bytesOf(data) {
  if (data instanceof Uint8Array) return data;
  if (data instanceof ArrayBuffer) return new Uint8Array(data);
  return bytes.encode(String(data));
}
