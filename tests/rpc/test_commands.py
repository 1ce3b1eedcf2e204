"""Commands over gRPC, sent by a generated client."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from types import SimpleNamespace
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf import descriptor_pb2
from grpc_tools import protoc
from tests.engine.models import counter_engine
from tests.rpc.conftest import PROTOS, Door, Serving, slow_bank

from headrace.engine import Engine
from headrace.model import ConsistencyToken, TokenPlace


def sending(door: Door, command: str = "Deposit", data: Any = None, **fields: Any) -> Any:
    given = {"engine": "bank", "aggregate": "a", "command": command, **fields}
    encoded = json.dumps({"amount": 10} if data is None else data).encode()
    return door.client.engines.SendRequest(data=encoded, **given)


async def refused(call: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value


def kind_of(error: grpc.aio.AioRpcError) -> Any:
    return dict(error.trailing_metadata() or ()).get("headrace-error")


async def test_a_command_is_done_once_and_its_result_is_told(serving: Serving) -> None:
    """State, events, version; the same id again gets the first result; a rejection has its code and details."""
    async with serving() as door, door.stub() as stub:
        first = (await stub.Send(sending(door, command_id="x"))).success
        assert (first.version, json.loads(first.state), first.is_repeated) == (1, {"balance": 10}, False)
        assert [(each.type, json.loads(each.data)) for each in first.events] == [("Deposited", {"amount": 10})]
        again = (await stub.Send(sending(door, command_id="x"))).success
        assert (again.version, again.state, again.is_repeated, again.is_kept) == (1, first.state, True, True)
        rejected = (await stub.Send(sending(door, "Withdraw", {"amount": 50}))).rejected
        assert (rejected.code, json.loads(rejected.details), rejected.version) == ("overdrawn", {"balance": 10}, 1)
        asked = (await stub.Send(sending(door, "Query", {}))).success
        assert json.loads(asked.value) == 10
        nothing = door.client.engines.SendRequest(engine="bank", aggregate="a", command="Query")
        assert json.loads((await stub.Send(nothing)).success.value) == 10


async def test_the_committed_state_is_read(serving: Serving) -> None:
    """State, version and `since`; an aggregate that is not there has no state and version 0."""
    async with serving() as door, door.stub() as stub:
        read = door.client.engines.ReadRequest
        empty = await stub.Read(read(engine="bank", aggregate="a"))
        assert (empty.HasField("state"), empty.version) == (False, 0)
        await stub.Send(sending(door, command_id="x", since=empty.since))
        found = await stub.Read(read(engine="bank", aggregate="a"))
        assert (json.loads(found.state), found.version) == ({"balance": 10}, 1)
        assert found.since > empty.since


async def test_a_read_shows_what_the_token_of_a_reply_names(serving: Serving) -> None:
    """Successes, rejections and reads carry one; what can't be shown is a status, without the topic's details."""
    async with serving() as door, door.stub() as stub:
        read = partial(door.client.engines.ReadRequest, engine="bank", aggregate="a")
        done = await stub.Send(sending(door))
        rejected = await stub.Send(sending(door, "Withdraw", {"amount": 50}))
        assert rejected.WhichOneof("result") == "rejected"
        found = await stub.Read(read(token=f"{done.token}, {rejected.token}"))
        assert (found.version, found.token) == (1, rejected.token)
        assert (await stub.Read(read(token=""))).version == 1
        assert (await stub.Send(sending(door, expected_version=7))).token == ""
        state = next(each for each in ConsistencyToken.parse(done.token).places if each.topic == "bank-state")
        cases = (
            (done.token[:-1], grpc.StatusCode.INVALID_ARGUMENT, "BadToken"),
            ("," * 1000, grpc.StatusCode.INVALID_ARGUMENT, "BadToken"),
            (text_of(state._replace(offset=10**9)), grpc.StatusCode.FAILED_PRECONDITION, "TokenAhead"),
            (text_of(state._replace(topic_id="other")), grpc.StatusCode.FAILED_PRECONDITION, "TokenOfOtherTopic"),
        )
        for text, code, kind in cases:
            error = await refused(stub.Read(read(token=text)))
            assert (error.code(), kind_of(error)) == (code, kind)
            assert state.topic_id not in str(error.details())


def text_of(place: TokenPlace) -> str:
    return str(ConsistencyToken.of([place]))


async def test_what_the_engine_decided_is_a_reply_that_says_so(serving: Serving) -> None:
    """A wrong version with the right one, a reused id; what a handler raised is in the log, not in the reply."""
    async with serving() as door, door.stub() as stub:
        await stub.Send(sending(door, command_id="x"))
        wrong = (await stub.Send(sending(door, expected_version=7))).failed
        assert (wrong.kind, wrong.version, wrong.outcome_known) == ("WrongVersion", 1, True)
        assert (await stub.Send(sending(door, expected_version=1))).success.version == 2
        reused = (await stub.Send(sending(door, data={"amount": 11}, command_id="x"))).failed
        assert (reused.kind, reused.outcome_known) == ("CommandIdReused", True)
        failed = (await stub.Send(sending(door, "Fail", {"where": "handler"}))).failed
        assert (failed.kind, failed.outcome_known) == ("CommandFailed", True)
        assert "broken" not in failed.message


async def test_an_outcome_that_nobody_knows_is_never_a_status_that_clients_repeat(serving: Serving) -> None:
    """A command that was handled, and not committed in its time, is a reply with outcome_known false."""
    slow, _, go_on = slow_bank()
    async with serving(slow) as door, door.stub() as stub:
        failed = (await stub.Send(sending(door, engine="slow", timeout_ms=50), timeout=20)).failed
        assert (failed.kind, failed.outcome_known) == ("OutcomeUnknown", False)
        go_on.set()


async def test_a_command_without_time_is_not_done(serving: Serving) -> None:
    """Neither with a time of 0, nor behind another one that takes all of its time."""
    slow, begun, go_on = slow_bank()
    async with serving(slow) as door, door.stub() as stub:
        error = await refused(stub.Send(sending(door, engine="slow", timeout_ms=0)))
        assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        first = asyncio.ensure_future(stub.Send(sending(door, engine="slow")))
        await begun.wait()
        error = await refused(stub.Send(sending(door, engine="slow", timeout_ms=50)))
        assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        error = await refused(stub.Send(sending(door, engine="slow"), timeout=0.05))
        assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        go_on.set()
        assert (await first).success.version == 1
        assert json.loads((await stub.Send(sending(door, engine="slow"))).success.state) == 20


async def test_what_is_not_understood_is_refused(serving: Serving) -> None:
    """Unknown engines and commands, wrong fields, ids that none can have, bytes that are no message."""
    async with serving() as door, door.stub() as stub, door.channel() as channel:
        missing = [{"engine": "nobody"}, {"command": "Nothing"}, {"engine": ""}]
        for fields in missing:
            assert (await refused(stub.Send(sending(door, **fields)))).code() is grpc.StatusCode.NOT_FOUND
        deep = door.client.engines.SendRequest(engine="bank", aggregate="a", command="Deposit", data=b"[" * 100_000)
        wrong = [
            sending(door, data={"amount": "ten"}),
            sending(door, data=[]),
            sending(door, aggregate=""),
            sending(door, aggregate="\0hr"),
            sending(door, aggregate="a" * 100_000),
            sending(door, command_id=""),
            sending(door, since="yesterday"),
            door.client.engines.SendRequest(engine="bank", aggregate="a", command="Deposit", data=b"\xff"),
            deep,
        ]
        for request in wrong:
            assert (await refused(stub.Send(request))).code() is grpc.StatusCode.INVALID_ARGUMENT
        raw = channel.unary_unary("/headrace.engine.v1.Engines/Send")
        assert (await refused(raw(b"\xff\xff\xff"))).code() is grpc.StatusCode.INVALID_ARGUMENT
        other = channel.unary_unary("/headrace.engine.v1.Engines/Purge")
        assert (await refused(other(b""))).code() is grpc.StatusCode.UNIMPLEMENTED
        assert (await stub.Send(sending(door))).success.version == 1


async def test_what_is_too_large_is_refused_before_it_is_read(serving: Serving) -> None:
    """A message above the limit; the next call on the same connection works."""
    async with serving(max_message_bytes=10_000) as door, door.stub() as stub:
        error = await refused(stub.Send(sending(door, "Note", {"text": "x" * 20_000})))
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert (await stub.Send(sending(door))).success.version == 1


async def test_a_flood_is_refused_and_health_is_still_told(serving: Serving) -> None:
    """As many calls as may be are answered at a time; the next one is told that nothing was done."""
    slow, begun, go_on = slow_bank()
    async with serving(slow, max_requests_in_flight=1) as door, door.stub() as stub, door.channel() as channel:
        first = asyncio.ensure_future(stub.Send(sending(door, engine="slow")))
        await begun.wait()
        error = await refused(stub.Send(sending(door, engine="slow")))
        assert (error.code(), kind_of(error)) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "Busy")
        check = door.client.health_grpc.HealthStub(channel).Check
        assert (await check(door.client.health.HealthCheckRequest())).status == 1
        go_on.set()
        assert (await first).success.version == 1


async def test_a_caller_that_sends_too_often_is_told_when_to_try_again(serving: Serving) -> None:
    """The rate of one caller is limited, if the settings say so."""
    async with serving(requests_per_s=0.01, burst=1) as door, door.stub() as stub:
        assert (await stub.Send(sending(door))).success.version == 1
        error = await refused(stub.Send(sending(door)))
        assert (error.code(), kind_of(error)) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "RateExceeded")
        assert 1000 < int(dict(error.trailing_metadata() or ())["headrace-retry-in-ms"]) <= 100_000


async def test_health_is_told_as_grpc_does(serving: Serving) -> None:
    """The service by its name, and the whole server by none; others are not known, and nothing is streamed."""
    async with serving() as door, door.channel() as channel:
        check, request = door.client.health_grpc.HealthStub(channel).Check, door.client.health.HealthCheckRequest
        assert (await check(request())).status == 1
        assert (await check(request(service="headrace.engine.v1.Engines"))).status == 1
        assert (await refused(check(request(service="other")))).code() is grpc.StatusCode.NOT_FOUND
        assert (await refused(channel.unary_unary("/grpc.health.v1.Health/Watch")(b""))).code() is (
            grpc.StatusCode.UNIMPLEMENTED
        )


async def test_a_node_that_stops_finishes_the_calls_that_it_has_begun(serving: Serving) -> None:
    """No call that was taken is cut off while the node leaves."""
    slow, begun, go_on = slow_bank()
    async with serving(slow) as door:
        channel = grpc.aio.insecure_channel(door.address)
        stub = door.client.engines_grpc.EnginesStub(channel)
        first = asyncio.ensure_future(stub.Send(sending(door, engine="slow")))
        await begun.wait()
        asyncio.get_running_loop().call_later(0.05, go_on.set)
    assert (await first).success.version == 1
    await channel.close()


async def test_a_state_that_json_can_not_carry_does_not_hide_that_the_command_was_done(serving: Serving) -> None:
    """The reply has no state then, but its version; only engines with a codec of their own have such states."""

    class Complex:
        async def open(self) -> None: ...

        async def prepare(self, data: bytes) -> None: ...

        def encode(self, value: complex) -> bytes:
            return repr(value).encode()

        def decode(self, data: bytes) -> complex:
            return complex(data.decode())

    counter = counter_engine("counter")
    strange: Engine[Any] = Engine("strange", state=Complex(), journal=None, partitions=1)
    kind = counter.commands.kinds(["Deposit"])[0]

    def add(count: Any, command: Any, context: Any) -> None:
        context.update_state(complex((count or 0) + command.amount))

    add.__annotations__["command"] = kind
    strange.command(add)
    async with serving(strange) as door, door.stub() as stub:
        done = (await stub.Send(sending(door, engine="strange"))).success
        assert (done.HasField("state"), done.version) == (False, 1)


def test_the_compiled_messages_are_those_of_the_proto_files(tmp_path: Any, client: SimpleNamespace) -> None:
    """What the package ships is what `make protos` makes of its proto files."""
    compiled = tmp_path / "messages.binpb"
    files = sorted(path.name for path in PROTOS.glob("*.proto"))
    assert protoc.main(["", f"-I{PROTOS}", f"--descriptor_set_out={compiled}", *files]) == 0
    made, shipped = (
        descriptor_pb2.FileDescriptorSet.FromString(path.read_bytes()) for path in (compiled, PROTOS / "messages.binpb")
    )
    assert list(made.file) == list(shipped.file)
    assert client.engines.DESCRIPTOR.package == "headrace.engine.v1"
