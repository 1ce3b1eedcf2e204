"""Requests between nodes."""

from __future__ import annotations

import asyncio
import datetime as dt
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from headrace.cluster.client import Peer
from headrace.cluster.frames import Frame, FrameKind, decode_error, encode_error, encode_frame, frames_in
from headrace.cluster.server import IncomingRequest, NodeServer
from headrace.cluster.transport import CLUSTER, METHOD, NODE, SERVICE, STREAM, grpc_library
from headrace.config import ClusterSettings, ClusterTlsSettings
from headrace.errors import (
    BadArgument,
    Busy,
    Forbidden,
    HeadraceError,
    InvalidSettings,
    NodeListenFailed,
    NotPartitionOwner,
    OperationFailed,
    Refused,
    RefusedByPeer,
    TimedOut,
    Unreachable,
    WrongSeqNr,
)
from headrace.testing.processes import running_function

SETTINGS = ClusterSettings(name="c", max_requests_in_flight=50, max_message_bytes=100_000)


class Service:
    """A node's handlers, and what they saw."""

    def __init__(self) -> None:
        self.seen: list[IncomingRequest] = []
        self.gate = asyncio.Event()
        self.cancelled = asyncio.Event()

    async def echo(self, request: IncomingRequest) -> bytes:
        self.seen.append(request)
        return request.payload

    async def wait(self, request: IncomingRequest) -> bytes:
        self.seen.append(request)
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return b"done"

    async def fail(self, request: IncomingRequest) -> bytes:
        raise ERRORS[int(request.payload)]

    async def large(self, request: IncomingRequest) -> bytes:
        return bytes(int(request.payload))


class OwnRefusal(Refused):
    """An error of the application."""

    def __str__(self) -> str:
        return "not on Sundays"


ERRORS: list[Exception] = [
    WrongSeqNr("acc-1", 4, 6),
    NotPartitionOwner("accounts", 3, "node-1", "node-2"),
    TimedOut("an append", 3.0, outcome_known=False),
    OwnRefusal(),
    ValueError("no such colour"),
]


@pytest.fixture
def service() -> Service:
    return Service()


@pytest_asyncio.fixture
async def server(service: Service) -> AsyncIterator[NodeServer]:
    handlers = {"echo": service.echo, "wait": service.wait, "fail": service.fail, "large": service.large}
    server = NodeServer("node-1", handlers, SETTINGS)
    await server.start()
    yield server
    await server.stop()


@pytest_asyncio.fixture
async def peer(server: NodeServer) -> AsyncIterator[Peer]:
    peer = Peer(server.address, node="node-2", settings=SETTINGS, expected="node-1")
    yield peer
    await peer.close()


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not is_so():  # noqa: ASYNC110 - it can only be asked
            await asyncio.sleep(0.005)


def test_frames_survive_the_way() -> None:
    """A message holds any number of frames, each with its method and payload."""
    frames = [
        Frame(FrameKind.REQUEST, 1, 3000, b"ask", b"x" * 1000),
        Frame(FrameKind.REPLY, 2**64 - 1, 0, b"", b""),
        Frame(FrameKind.CANCEL, 7, 0, b"", b""),
    ]
    message = b"".join(
        encode_frame(each.kind, each.id, time_left_ms=each.time_left_ms, method=each.method, payload=each.payload)
        for each in frames
    )
    assert list(frames_in(message)) == frames
    with pytest.raises(OperationFailed, match="bytes are missing"):
        list(frames_in(message + encode_frame(FrameKind.REPLY, 1, payload=b"abc")[:-1]))
    with pytest.raises(OperationFailed, match="too few"):
        list(frames_in(message + b"\x01"))


async def test_many_requests_share_a_stream(peer: Peer, service: Service) -> None:
    """Each gets its own reply, whatever order they end in."""
    payloads = [f"{nr}".encode() * nr for nr in range(40)]
    replies = await asyncio.gather(*(peer.call("echo", each, timeout_s=5) for each in payloads))
    assert replies == payloads
    assert {each.peer for each in service.seen} == {"node-2"}


@pytest.mark.parametrize("nr", range(3))
async def test_errors_arrive_as_they_were_raised(peer: Peer, nr: int) -> None:
    """C8: with type, fields and whether the outcome is known."""
    with pytest.raises(type(ERRORS[nr])) as raised:
        await peer.call("fail", str(nr).encode(), timeout_s=5)
    assert vars(raised.value) == vars(ERRORS[nr])
    assert str(raised.value) == str(ERRORS[nr])


async def test_errors_of_others_keep_their_family(peer: Peer) -> None:
    """C8: a refusal stays one; of anything else the outcome is unknown."""
    with pytest.raises(RefusedByPeer, match="OwnRefusal: not on Sundays"):
        await peer.call("fail", b"3", timeout_s=5)
    with pytest.raises(OperationFailed, match="ValueError: no such colour") as failed:
        await peer.call("fail", b"4", timeout_s=5)
    assert not failed.value.outcome_known
    with pytest.raises(Forbidden, match="no such method"):
        await peer.call("nothing", b"", timeout_s=5)


def test_an_error_with_fields_of_any_type_is_carried() -> None:
    """A value that can't be sent is sent as its representation."""
    error = decode_error(encode_error(BadArgument("key", object, "it is a str")), peer="p")
    assert isinstance(error, BadArgument)
    assert error.value == repr(object)
    assert isinstance(decode_error(encode_error(Unreachable("a", "b", False)), peer="p"), HeadraceError)


def test_an_error_of_another_version_is_carried_as_far_as_it_is_understood() -> None:
    """Its message stays, whatever became of its fields."""
    other = msgspec.msgpack.encode(["WrongSeqNr", {"journal": "a"}, "expected 4, found 6", True, True])
    assert (
        str(decode_error(other, peer="node-2")) == "node 'node-2' refused the request: WrongSeqNr: expected 4, found 6"
    )
    garbage = decode_error(b"\xff", peer="node-2")
    assert isinstance(garbage, OperationFailed)
    assert not garbage.outcome_known


async def test_a_deadline_ends_both_sides(peer: Peer, service: Service) -> None:
    """C8: the caller gets TimedOut with an unknown outcome, and the handler is cancelled."""
    with pytest.raises(TimedOut) as timed_out:
        await peer.call("wait", b"", timeout_s=0.1)
    assert not timed_out.value.outcome_known
    await asyncio.wait_for(service.cancelled.wait(), 5)
    left_s = service.seen[0].deadline_s - asyncio.get_running_loop().time()
    assert left_s < 0.1
    assert await peer.call("echo", b"on", timeout_s=5) == b"on"


async def test_cancelling_a_call_cancels_its_handler(peer: Peer, service: Service) -> None:
    """Nobody works for callers that are gone."""
    call = asyncio.create_task(peer.call("wait", b"", timeout_s=30))
    await until(lambda: bool(service.seen))
    call.cancel()
    await asyncio.wait_for(service.cancelled.wait(), 5)


async def test_a_request_that_was_given_up_before_it_was_sent_is_never_sent(peer: Peer, service: Service) -> None:
    """C8: its caller was told that nothing was done."""
    await peer.call("echo", b"first", timeout_s=5)
    connection = peer._connection
    assert connection is not None
    call = asyncio.create_task(peer.call("echo", b"late", timeout_s=5))
    await asyncio.sleep(0)  # the request waits for the writer, which has its turn after this one
    connection._expire(connection._last_id, 5)
    with pytest.raises(TimedOut) as timed_out:
        await call
    assert timed_out.value.outcome_known
    await peer.call("echo", b"next", timeout_s=5)
    assert [each.payload for each in service.seen] == [b"first", b"next"]


async def test_requests_in_flight_are_bounded(peer: Peer, service: Service) -> None:
    """One too many is refused at once, and has not been sent."""
    calls = [asyncio.create_task(peer.call("wait", b"", timeout_s=30)) for _ in range(50)]
    await until(lambda: len(service.seen) == 50)
    with pytest.raises(Busy, match="50 requests in flight") as busy:
        await peer.call("echo", b"", timeout_s=5)
    assert busy.value.outcome_known
    service.gate.set()
    assert await asyncio.gather(*calls) == [b"done"] * 50


async def test_a_server_bounds_what_it_runs(server: NodeServer, service: Service) -> None:
    """A caller with a higher bound of its own gets Busy from the server."""
    eager = Peer(server.address, node="n", settings=SETTINGS.model_copy(update={"max_requests_in_flight": 500}))
    calls = [asyncio.create_task(eager.call("wait", b"", timeout_s=30)) for _ in range(51)]
    with pytest.raises(Busy, match="node 'node-1' has 50 requests"):
        await calls[50]
    service.gate.set()
    await asyncio.gather(*calls[:50])
    await eager.close()


async def test_a_node_that_stops_answers_what_it_has_seen(peer: Peer, server: NodeServer, service: Service) -> None:
    """C13: what it never saw fails at once with a known outcome, and can be asked elsewhere."""
    seen = [asyncio.create_task(peer.call("wait", b"", timeout_s=30)) for _ in range(10)]
    await until(lambda: len(service.seen) == 10)
    stopping = asyncio.create_task(server.stop(grace_s=20))
    await asyncio.sleep(0)
    unseen = [asyncio.create_task(peer.call("echo", b"", timeout_s=30)) for _ in range(10)]
    failures = await asyncio.wait_for(asyncio.gather(*unseen, return_exceptions=True), 10)
    assert {type(each) for each in failures} == {Unreachable}
    assert all(each.outcome_known for each in failures if isinstance(each, Unreachable))
    assert not any(each.done() for each in seen)
    assert len(service.seen) == 10
    service.gate.set()
    assert await asyncio.wait_for(asyncio.gather(*seen), 10) == [b"done"] * 10
    await stopping
    with pytest.raises(Unreachable) as unreachable:
        await peer.call("echo", b"", timeout_s=5)
    assert unreachable.value.outcome_known


async def test_a_caller_that_does_not_read_is_not_read(server: NodeServer, service: Service) -> None:
    """Its replies would gather without bound; the others are served meanwhile."""
    library = grpc_library()
    count, longest = 400, 0
    async with library.aio.insecure_channel(server.address) as channel:
        stream = channel.stream_stream(METHOD)(metadata=[(NODE, "deaf"), (CLUSTER, "c")])

        async def write() -> None:
            for nr in range(count):
                await stream.write(encode_frame(FrameKind.REQUEST, nr + 1, method=b"echo", payload=bytes(20_000)))

        writing = asyncio.create_task(write())
        await until(lambda: any(len(each._outbox) >= 50 for each in server._streams))
        other = Peer(server.address, node="n", settings=SETTINGS)
        assert await other.call("echo", b"served", timeout_s=10) == b"served"
        await other.close()
        replies = 0
        while replies < count:
            replies += len(list(frames_in(await stream.read())))
            longest = max(longest, *(len(each._outbox) for each in server._streams))
        await writing
        stream.cancel()
    assert longest <= 60


async def test_a_peer_that_talks_nonsense_fails_its_callers_at_once() -> None:
    """C8: with an unknown outcome; nobody waits for a deadline."""
    library = grpc_library()

    async def babble(requests: object, context: Any) -> None:
        await context.send_initial_metadata(((NODE, "node-1"), (CLUSTER, "c")))
        await context.read()
        await context.write(b"\x07nonsense")
        await context.read()

    server = library.aio.server()
    handlers = {STREAM: library.stream_stream_rpc_method_handler(babble)}
    server.add_generic_rpc_handlers((library.method_handlers_generic_handler(SERVICE, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    peer = Peer(f"127.0.0.1:{port}", node="n", settings=SETTINGS)
    with pytest.raises(Unreachable) as unreachable:
        await peer.call("echo", b"", timeout_s=60)
    assert not unreachable.value.outcome_known
    await peer.close()
    await server.stop(None)


async def test_messages_have_a_largest_size(peer: Peer) -> None:
    """Too large a request is refused here, too large a reply there; neither harms the stream."""
    assert len(await peer.call("large", b"100000", timeout_s=5)) == 100_000
    assert len(await peer.call("echo", bytes(100_000), timeout_s=5)) == 100_000
    with pytest.raises(BadArgument, match="max_message_bytes"):
        await peer.call("echo", bytes(100_001), timeout_s=5)
    with pytest.raises(OperationFailed, match="100001 bytes are more") as failed:
        await peer.call("large", b"100001", timeout_s=5)
    assert not failed.value.outcome_known
    replies = await asyncio.gather(*(peer.call("large", b"90000", timeout_s=5) for _ in range(20)))
    assert {len(each) for each in replies} == {90_000}


async def test_a_node_that_is_another_one_is_not_asked(server: NodeServer, service: Service) -> None:
    """C16: an address may have been given to another node, or to another cluster."""
    other = SETTINGS.model_copy(update={"name": "other"})
    for settings, expected in ((SETTINGS, "node-9"), (other, "node-1")):
        peer = Peer(server.address, node="n", settings=settings, expected=expected)
        with pytest.raises(Unreachable, match="node 'node-1' of cluster 'c' is there") as refused:
            await peer.call("echo", b"", timeout_s=5)
        assert refused.value.outcome_known
        await peer.close()
    assert service.seen == []


async def test_nobody_listens() -> None:
    """The outcome is known: nothing was sent."""
    peer = Peer("127.0.0.1:1", node="n", settings=SETTINGS)
    with pytest.raises(Unreachable) as unreachable:
        await peer.call("echo", b"", timeout_s=5)
    assert unreachable.value.outcome_known
    await peer.close()
    with pytest.raises(Unreachable, match="the connection was closed"):
        await peer.call("echo", b"", timeout_s=5)


async def test_a_connection_that_is_closed_while_it_is_opened() -> None:
    """C8: its callers find nobody, and are not cancelled themselves."""
    listener = socket.create_server(("127.0.0.1", 0))  # takes connections, and never answers
    peer = Peer(f"127.0.0.1:{listener.getsockname()[1]}", node="n", settings=SETTINGS)
    calling = asyncio.create_task(peer.call("echo", b"", timeout_s=30))
    await until(lambda: peer._connecting is not None)
    await peer.close()
    with pytest.raises(Unreachable, match="the connection was closed") as closed:
        await calling
    assert closed.value.outcome_known
    listener.close()


async def test_two_nodes_do_not_share_a_port(server: NodeServer) -> None:
    """The second is told so."""
    second = NodeServer("node-2", {}, SETTINGS.model_copy(update={"listen": server.address}))
    with pytest.raises(NodeListenFailed, match=f"listen at {server.address}: .* stop the process that listens there"):
        await second.start()


@pytest.mark.parametrize("setting", ["listen", "advertise"])
@pytest.mark.parametrize("address", ["127.0.0.1:99999", "127.0.0.1:-1", "127.0.0.1:", "127.0.0.1", "nonsense", ""])
async def test_a_node_listens_at_no_other_port_than_it_was_told(setting: str, address: str) -> None:
    """Others would look for it in vain: gRPC takes 99999 modulo 65536, and 443 where there is no port."""
    server = NodeServer("node-1", {}, SETTINGS.model_copy(update={setting: address}))
    try:
        with pytest.raises(BadArgument, match=f"cluster.{setting} is '{address}', but it must be HOST:PORT"):
            await server.start()
    finally:
        await server.stop()


async def test_a_killed_peer_fails_all_that_is_in_flight_at_once(service: Service) -> None:
    """C8: with an unknown outcome; the next call finds nobody, with a known one, and a node that is back is found."""
    with running_function("tests.cluster.nodes:serve_slowly", "127.0.0.1:0", "node-1") as child:
        address = child.wait_for_line(r"listening on (\S+)", timeout_s=20)[1]
        peer = Peer(address, node="n", settings=SETTINGS, expected="node-1")
        assert await peer.call("echo", b"up", timeout_s=10) == b"up"
        calls = [asyncio.create_task(peer.call("wait", b"", timeout_s=60)) for _ in range(20)]
        await asyncio.to_thread(child.wait_for_line, "waiting 20", 20)
        child.send_signal(signal.SIGKILL)
        outcomes = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 10)
    assert {type(each) for each in outcomes} == {Unreachable}
    assert not any(each.outcome_known for each in outcomes if isinstance(each, Unreachable))
    with pytest.raises(Unreachable) as unreachable:
        await peer.call("echo", b"", timeout_s=5)
    assert unreachable.value.outcome_known
    again = NodeServer("node-1", {"echo": service.echo}, SETTINGS.model_copy(update={"listen": address}))
    await again.start()
    assert await peer.call("echo", b"back", timeout_s=5) == b"back"
    await peer.close()
    await again.stop()


async def test_a_request_that_waits_for_a_frozen_peer_times_out(service: Service) -> None:
    """C8: a frozen process keeps its connections; callers have their deadlines, and it answers when it wakes."""
    with running_function("tests.cluster.nodes:serve_slowly", "127.0.0.1:0", "node-1") as child:
        address = child.wait_for_line(r"listening on (\S+)", timeout_s=20)[1]
        peer = Peer(address, node="n", settings=SETTINGS)
        await peer.call("echo", b"up", timeout_s=10)
        child.send_signal(signal.SIGSTOP)
        with pytest.raises(TimedOut):
            await peer.call("echo", b"", timeout_s=0.2)
        child.send_signal(signal.SIGCONT)
        assert await peer.call("echo", b"awake", timeout_s=10) == b"awake"
        await peer.close()


def certificates(folder: Path, name: str) -> ClusterTlsSettings:
    """Write a certificate that signs itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = dt.datetime.now(dt.UTC)
    built = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("nodes.example")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    certificate, private = folder / f"{name}.pem", folder / f"{name}.key"
    certificate.write_bytes(built.public_bytes(serialization.Encoding.PEM))
    form = serialization.PrivateFormat.PKCS8
    private.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
    return ClusterTlsSettings(
        ca_location=str(certificate),
        certificate_location=str(certificate),
        key_location=str(private),
        server_name="nodes.example",
    )


async def test_nodes_speak_tls(tmp_path: Path, service: Service) -> None:
    """Each shows a certificate that the other trusts; who shows none, or another one, is not served."""
    tls = SETTINGS.model_copy(update={"tls": certificates(tmp_path, "ours")})
    server = NodeServer("node-1", {"echo": service.echo}, tls)
    await server.start()
    peer = Peer(server.address, node="n", settings=tls)
    assert await peer.call("echo", b"secret", timeout_s=5) == b"secret"
    await peer.close()
    stranger = certificates(tmp_path, "theirs").model_copy(update={"ca_location": tls.tls.ca_location})
    for settings in (SETTINGS, SETTINGS.model_copy(update={"tls": stranger})):
        peer = Peer(server.address, node="n", settings=settings)
        with pytest.raises(Unreachable) as refused:
            await peer.call("echo", b"secret", timeout_s=5)
        assert refused.value.outcome_known
        await peer.close()
    await server.stop()
    assert len(service.seen) == 1


async def test_half_of_tls_is_a_mistake(tmp_path: Path) -> None:
    """The error names the settings."""
    ours = certificates(tmp_path, "ours")
    for broken, message in (
        (ours.model_copy(update={"key_location": None}), r"cluster\.tls\.key_location: a node that speaks TLS needs"),
        (ours.model_copy(update={"ca_location": "/nowhere"}), r"cluster\.tls\.ca_location: /nowhere can't be read"),
    ):
        server = NodeServer("node-1", {}, SETTINGS.model_copy(update={"tls": broken}))
        with pytest.raises(InvalidSettings, match=message):
            await server.start()


def test_grpc_leaves_programs_alone_that_are_started_later() -> None:
    """Its handlers of forks ended Spark's Java process before it began; a user's own setting counts."""
    program = "import os; from headrace.cluster.transport import grpc_library as g; g(); print(os.environ['{}'])"
    name = "GRPC_ENABLE_FORK_SUPPORT"
    for given, expected in (({}, "0"), ({name: "1"}, "1")):
        environ = {key: value for key, value in os.environ.items() if key != name} | given
        done = subprocess.run(
            [sys.executable, "-c", program.format(name)], env=environ, capture_output=True, text=True, check=True
        )
        assert done.stdout.strip() == expected
