// Uses every part of the client as a program would; the compiler checks it against the types. It is never run.
import { AvroCodec, Backoff, type Change, closeMeaning, type CollectionChange, GatewayClient, type Json, parseFrame, Problem, SocketClosed } from "headrace-client";

interface Account {
  type: "Account";
  data: { owner: string; balance: number };
}

export async function use(): Promise<void> {
  const hr = new GatewayClient("http://gateway.example", { token: async () => "t", backoff: { firstMs: 1 }, onStatus: ({ status }) => status });
  const balances = hr.state<Account>("accounts", "balances");
  const found = await balances.get("a", { maxStalenessS: 1 });
  const version: number | undefined = found?.version;
  await balances.put("a", { owner: "ann" }, { version: null, ttlS: 5 });
  await balances.delete("a", { version });
  for await (const change of balances.subscribe("a", { after: "x:1", format: "avro" })) {
    const typed: Change<Account> = change;
    if (typed.value) typed.value.data.balance.toFixed();
  }
  const collection = await balances.collect({ prefix: ["a"], start: ["a", 1] }).ready;
  for (const [, account] of collection.entries()) account.data.owner.trim();
  for await (const each of collection) {
    const typed: CollectionChange<Account> = each;
    if (typed.kind === "change") typed.value?.data.owner.trim();
  }
  const reply = await hr.publish<Account>("accounts", "Deposit", { id: "a", amount: 1 }, { messageId: "m" });
  reply.data.balance.toFixed();
  const result = await hr.engine<{ coins: number }>("purses").command("p", "Pay", { coins: 1 }, { version: 1 });
  result.state.coins.toFixed();
  await hr.journal("orders").append("o", [{ payload: { n: 1 }, tags: ["vip"] }], { expected: 0, idempotencyKey: "k" });
  for await (const event of hr.events(["vip"], { after: "1:2" })) event.tag_offset.trim();
  const socket = hr.keySocket<Account>("accounts", "balances", "a", { json: true });
  await socket.send("Deposit", { id: "a", amount: 1 });
  for await (const value of socket) value?.data.owner.trim();
  const json: Json = new AvroCodec('"int"').decode(new Uint8Array([2]));
  const frame = parseFrame(new Uint8Array());
  if (frame.kind === "pair") frame.partition.toFixed();
  try {
    hr.close();
  } catch (error) {
    if (error instanceof Problem && error.isRetryable) new Backoff().delayMs(error.status);
    if (error instanceof SocketClosed) closeMeaning(error.code).action.trim();
  }
  // @ts-expect-error a value of this state has no such member
  found?.value.data.colour;
  // @ts-expect-error the format is json or avro
  balances.subscribe("a", { format: "xml" });
  return void json;
}
