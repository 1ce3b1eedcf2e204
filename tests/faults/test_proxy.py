"""The proxy, between a real client and a real echo server on loopback."""

from __future__ import annotations

import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from headrace.errors import BadArgument, Closed
from headrace.testing.proxy import TcpProxy


class Echo(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        try:
            while received := self.request.recv(65_536):
                self.request.sendall(received)
        except ConnectionError:
            return


@pytest.fixture
def proxy() -> Iterator[TcpProxy]:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Echo) as server:
        server.daemon_threads = True
        serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        serving.start()
        with TcpProxy(*server.server_address) as proxy:
            yield proxy
        server.shutdown()
        serving.join()


@pytest.fixture
def client(proxy: TcpProxy) -> Iterator[socket.socket]:
    with connected(proxy) as client:
        yield client


def connected(proxy: TcpProxy) -> socket.socket:
    return socket.create_connection((proxy.host, proxy.port), timeout=5)


def receive(client: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size:
        chunk = client.recv(size - len(received))
        if not chunk:
            break
        received += chunk
    return received


def echoed(client: socket.socket, sent: bytes) -> bytes:
    client.sendall(sent)
    return receive(client, len(sent))


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline, "it did not happen within 5 s"
        time.sleep(0.005)


def is_silent(client: socket.socket, for_s: float) -> bool:
    client.settimeout(for_s)
    try:
        return client.recv(1) == b"never"
    except TimeoutError:
        return True
    finally:
        client.settimeout(5)


def test_bytes_go_through_and_are_counted(proxy: TcpProxy, client: socket.socket) -> None:
    """What the server sends back arrives whole; bytes and connections are counted in both directions."""
    assert echoed(client, b"hello") == b"hello"
    assert (proxy.bytes_to_server, proxy.bytes_to_client) == (5, 5)
    assert (proxy.connections, proxy.open_connections) == (1, 1)


def test_a_megabyte_survives_the_way(client: socket.socket) -> None:
    """Large streams keep their order and their last byte."""
    sent = bytes(range(256)) * 4096
    sender = threading.Thread(target=client.sendall, args=(sent,))
    sender.start()
    assert receive(client, len(sent)) == sent
    sender.join()


def test_held_answers_are_lost_when_the_connection_is_cut(proxy: TcpProxy, client: socket.socket) -> None:
    """FL1: the server gets what was sent, the client hears nothing until `restore`, and never after a cut."""
    proxy.hold_answers()
    client.sendall(b"done?")
    until(lambda: proxy.bytes_to_server == 5)
    assert is_silent(client, 0.1)
    proxy.restore()
    assert receive(client, 5) == b"done?"
    proxy.hold_answers()
    client.sendall(b"again")
    until(lambda: proxy.bytes_to_server == 10)
    proxy.cut()
    with pytest.raises(ConnectionResetError):
        client.recv(1)
    assert proxy.bytes_to_client == 5


def test_the_end_of_a_stream_is_passed_on(proxy: TcpProxy, client: socket.socket) -> None:
    """A client that stops sending still gets the whole answer, and then the end."""
    client.sendall(b"last words" * 10_000)
    client.shutdown(socket.SHUT_WR)
    assert receive(client, 200_000) == b"last words" * 10_000
    until(lambda: proxy.open_connections == 0)


def test_cut_resets_open_connections_and_refuses_new_ones(proxy: TcpProxy, client: socket.socket) -> None:
    """After cut, the client sees a reset and a new connection is refused."""
    assert echoed(client, b"x") == b"x"
    proxy.cut()
    with pytest.raises(ConnectionResetError):
        client.recv(1)
    with pytest.raises(ConnectionRefusedError):
        connected(proxy)
    assert proxy.open_connections == 0


def test_restore_after_cut_keeps_the_address(proxy: TcpProxy, client: socket.socket) -> None:
    """The same port answers again, any number of times."""
    for _ in range(5):
        proxy.cut()
        proxy.restore()
        with connected(proxy) as again:
            assert echoed(again, b"back") == b"back"


def test_no_connection_slips_through_a_cut(proxy: TcpProxy) -> None:
    """Clients that connect while the cut happens are reset too; none is left open, none talks to the server."""
    for _ in range(20):
        clients = [connected(proxy) for _ in range(5)]
        proxy.cut()
        assert proxy.open_connections == 0
        for client in clients:
            with client, pytest.raises(ConnectionResetError):
                echoed(client, b"anybody?")
        proxy.restore()


def test_a_client_that_does_not_read_does_not_hold_up_a_cut(proxy: TcpProxy) -> None:
    """Bytes that nobody takes are thrown away with the connection."""
    with connected(proxy) as client:
        client.settimeout(0.2)
        with pytest.raises(TimeoutError):
            client.sendall(b"x" * 100_000_000)
        proxy.cut()
        assert proxy.open_connections == 0


def test_drop_accepts_and_forwards_nothing(proxy: TcpProxy, client: socket.socket) -> None:
    """In a black hole old and new connections stay open and silent; restore lets what was held back through."""
    assert echoed(client, b"before") == b"before"
    proxy.drop()
    with connected(proxy) as newcomer:
        client.sendall(b"old")
        newcomer.sendall(b"new")
        assert is_silent(client, for_s=0.1)
        assert is_silent(newcomer, for_s=0.1)
        assert proxy.bytes_to_server == len("before")
        proxy.restore()
        assert receive(client, 3) == b"old"
        assert receive(newcomer, 3) == b"new"


def test_delay_holds_back_both_directions(proxy: TcpProxy, client: socket.socket) -> None:
    """A round trip takes twice the delay; after restore it takes none."""
    proxy.delay(0.1)
    began = time.monotonic()
    assert echoed(client, b"slow") == b"slow"
    assert time.monotonic() - began >= 0.2
    proxy.delay(60)
    client.sendall(b"stuck")
    assert is_silent(client, for_s=0.05)
    proxy.restore()
    assert receive(client, 5) == b"stuck"


def test_a_delay_does_not_narrow_the_line(proxy: TcpProxy, client: socket.socket) -> None:
    """Many chunks sent together arrive together: one delay each way, not one for each chunk."""
    proxy.delay(0.1)
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    began = time.monotonic()
    for _ in range(30):
        client.sendall(b"x")
        time.sleep(0.005)
    assert receive(client, 30) == b"x" * 30
    assert time.monotonic() - began < 30 * 0.1


def test_throttle_bounds_the_speed(proxy: TcpProxy, client: socket.socket) -> None:
    """Ten kilobytes at 50 kB/s take at least 0.2 s less the first piece; full speed comes back."""
    proxy.throttle(50_000)
    began = time.monotonic()
    assert echoed(client, b"x" * 10_000) == b"x" * 10_000
    assert time.monotonic() - began >= 0.18
    proxy.restore()
    began = time.monotonic()
    assert echoed(client, b"x" * 200_000) == b"x" * 200_000
    assert time.monotonic() - began < 3.9


def test_a_server_that_is_not_there_looks_like_a_reset() -> None:
    """The proxy accepts, can't reach the server, and resets."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with TcpProxy(*unused.getsockname()) as proxy, pytest.raises(ConnectionResetError), connected(proxy) as client:
            client.recv(1)


def test_impossible_speeds_are_refused(proxy: TcpProxy) -> None:
    """Negative delays and speeds of nothing are mistakes of the test."""
    with pytest.raises(BadArgument):
        proxy.delay(-1)
    with pytest.raises(BadArgument, match=r"drop\(\)"):
        proxy.throttle(0)


def test_a_closed_proxy_says_so(proxy: TcpProxy) -> None:
    """After close nothing listens, and calls raise Closed; closing again is fine."""
    proxy.close()
    with pytest.raises(Closed):
        proxy.cut()
    with pytest.raises(ConnectionRefusedError):
        connected(proxy)
    proxy.close()
