// Checks the JavaScript client against the vectors that the server's own code made.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { Collection, KeySubscription } from "../../clients/js/src/subscriptions.js";
import { AvroCodec, Backoff, closeMeaning, framed, frameValue, askSchema, parseFrame, Problem, serverEvents } from "../../clients/js/src/index.js";

const read = (name) => JSON.parse(readFileSync(new URL(`../../clients/vectors/${name}.json`, import.meta.url), "utf8"));
const bytes = (hex) => Uint8Array.from(Buffer.from(hex, "hex"));
const hex = (array) => Buffer.from(array).toString("hex");

// The very first value that is encoded is whole, too.
const first = new AvroCodec('{"type":"record","name":"R","fields":[{"name":"a","type":"string"},{"name":"b","type":"long"}]}');
assert.equal(hex(first.encode({ a: "x", b: 2 })), "027804");

for (const { schema, avro, json } of read("values")) {
  const codec = new AvroCodec(schema);
  assert.deepEqual(codec.decode(bytes(avro)), json);
  assert.equal(hex(codec.encode(json)), avro);
  assert.equal(codec.name, json.type);
}

const { schemas, pushes, pairs, schema_frames: asked, messages } = read("frames");
const codecs = Object.fromEntries(Object.entries(schemas).map(([id, schema]) => [id, new AvroCodec(schema)]));
for (const [kind, list] of [["push", pushes], ["pair", pairs]]) {
  for (const each of list) {
    const frame = parseFrame(bytes(each.frame));
    const value = frame.schemaId === null ? null : codecs[frame.schemaId].decode(frame.body);
    assert.equal(frame.kind, kind);
    assert.deepEqual([frame.id, frame.offset], [each.id, each.offset]);
    assert.deepEqual(value, frame.isDelta ? each.delta : each.value);
    assert.equal(frame.isDelta, "delta" in each);
    const flags = { is_lagged: frame.isLagged, is_present: frame.isPresent, is_expiry: frame.isExpiry };
    assert.deepEqual(Object.keys(flags).filter((name) => flags[name]), each.flags);
    if (kind === "pair") assert.deepEqual([frame.partition, frame.key], [each.partition, each.key]);
    for (let end = 1; end < Math.min(each.frame.length / 2, 12); end += 1) {
      assert.throws(() => parseFrame(bytes(each.frame).subarray(0, end)), RangeError);
    }
  }
}
for (const each of asked) {
  assert.equal(hex(askSchema(each.id)), each.asked);
  assert.deepEqual(parseFrame(bytes(each.frame)), { kind: "schema", schemaId: each.id, text: each.schema });
}
for (const { schema_id: schemaId, json, frame } of messages) {
  assert.equal(hex(frameValue(schemaId, codecs[1].encode(json.data))), frame);
  assert.deepEqual(codecs[1].decode(framed(bytes(frame)).body), json);
}
assert.deepEqual(parseFrame(new Uint8Array(0)), { kind: "empty" });
assert.throws(() => parseFrame(bytes("09")), RangeError);
assert.throws(() => framed(bytes("0500000001")), RangeError);

const { closes, problems } = read("closes");
for (const { code, action, status } of closes) {
  const meaning = closeMeaning(code);
  assert.deepEqual([meaning.action, meaning.status], [action, status], String(code));
}
for (const { problem, is_retryable: isRetryable, outcome_known: outcomeKnown } of problems) {
  const made = new Problem(problem);
  assert.deepEqual([made.isRetryable, made.outcomeKnown, made.message], [isRetryable, outcomeKnown, problem.detail]);
}

// Collections, as frames make them.
async function drained(subscription) {
  subscription.close();
  return Array.fromAsync(subscription);
}
for (const { about, steps, changes, entries, after } of read("collections")) {
  const collection = new Collection(1, {}, {}, () => {});
  for (const step of steps) step === "lost" ? collection.disconnected() : collection.take(step);
  const told = (await drained(collection)).map((each) => (each.kind === "change" ? [each.key, each.value] : each.kind));
  assert.deepEqual(told, changes, about);
  assert.deepEqual(Object.fromEntries(collection.entries()), entries, about);
  assert.deepEqual(JSON.parse(collection.frame()).after, after, about);
}

// The frames that are sent are those that the server reads.
const { requests } = read("texts");
const key = { keyspace: "accounts", state: "balances", key: "k", format: "avro", deltas: true, token: "hr1.AAAA" };
const sent = JSON.parse(new KeySubscription(1, key, { after: "AAAA:7" }, () => {}).frame());
assert.deepEqual(sent, requests[0]);
const all = new Collection(3, { keyspace: "accounts", state: "balances", prefix: "a" }, {}, () => {});
for (const op of ["begin", "reset", "ready"]) all.take({ op, partitions: [0], partition: 0, offset: "AAAA:7" });
const { format: _format, deltas: _deltas, start: _start, end: _end, ...collect } = requests[2];
assert.deepEqual(JSON.parse(all.frame()), collect);

// A reader that is too slow gets the newest value, and is told; large whole numbers are compared, too.
const slow = new KeySubscription(1, {}, { maxWaiting: 2 }, () => {});
for (const value of [1, 2, 3, 2n ** 60n]) slow.take({ offset: `t:${value}`, value });
const waiting = (await drained(slow)).map(({ value, isLagged }) => [value, isLagged === true]);
assert.deepEqual(waiting, [[3, true], [2n ** 60n, false]]);
const large = new Collection(1, {}, { maxWaiting: 1 }, () => {});
for (const value of [2n ** 60n, 2n ** 60n + 1n]) {
  for (const op of ["begin", "reset"]) large.take({ op, partition: 0, partitions: [0] });
  large.take({ op: "pairs", partition: 0, pairs: [{ key: "a", value }] });
  large.take({ op: "ready", partition: 0, offset: "t:1" });
}
assert.equal(large.get("a"), 2n ** 60n + 1n);
assert.deepEqual((await drained(large)).at(0).kind, "lagged");

// Whole numbers beyond 2^53 are exact.
const long = new AvroCodec('"long"');
for (const number of [0, -1, 2 ** 53 - 1]) assert.equal(long.decode(long.encode(number)), number);
for (const number of [2n ** 62n, -(2n ** 63n)]) assert.equal(long.decode(long.encode(number)), number);

// Delays grow, have jitter, and are bounded.
const delays = (random) => [1, 2, 3, 99].map((n) => new Backoff({ firstMs: 100, limitMs: 1000, random }).delayMs(n));
assert.deepEqual(delays(() => 0), [50, 100, 200, 500]);
assert.deepEqual(delays(() => 1), [100, 200, 400, 1000]);

// Server-sent events in any chunks, with any line ends.
async function events(text, size) {
  const encoded = new TextEncoder().encode(text);
  const body = new ReadableStream({
    start(controller) {
      for (let at = 0; at < encoded.length; at += size) controller.enqueue(encoded.subarray(at, at + size));
      controller.close();
    },
  });
  return Array.fromAsync(serverEvents(body));
}
const lines = [": alive", "", "id: 7", "event: x", "data: {", "data: ü}", "", "data:a", "", "id: 8", "data: cut"];
const expected = [{ id: "7", event: "x", data: "{\nü}" }, { id: undefined, event: "message", data: "a" }];
for (const end of ["\n", "\r\n", "\r"]) {
  for (const size of [1, 2, 3, 5, 6, 7, 11, 1000]) assert.deepEqual(await events(lines.join(end), size), expected);
}
// A large event takes a time that grows with its size, not with its square: this one took more than 5 s.
const largeEvent = `data: ${"x".repeat(4_000_000)}\n\n`;
const began = performance.now();
assert.equal((await events(largeEvent, 4096))[0].data.length, 4_000_000);
assert.ok(performance.now() - began < 5000, `a large event took ${performance.now() - began} ms`);
// Characters that end lines of text elsewhere end none here.
assert.deepEqual(await events("id: 1\ndata: a\u2028b\u2029c\u0085d\n\n", 1000), [{ id: "1", event: "message", data: "a\u2028b\u2029c\u0085d" }]);
// A stream on which nothing comes ends, to be opened again.
assert.deepEqual(await Array.fromAsync(serverEvents(new ReadableStream({}), 10)), []);
console.log("ok");
