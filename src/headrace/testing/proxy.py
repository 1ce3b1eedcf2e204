"""A TCP proxy on loopback that can be cut, slowed and turned into a black hole."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, TypeVar

from headrace.errors import BadArgument, Closed
from headrace.testing.proxy_links import Conditions, Link

__all__ = ["TcpProxy"]

CALL_TIMEOUT_S = 10.0

_Result = TypeVar("_Result")


class TcpProxy:
    """Stands between clients and a server, on a thread of its own: blocking and async tests can use it.

    Promises: when a method returns, what it asked for holds, for open connections as for new ones.
    Does not promise: that bytes already handed to the system can be called back.
    """

    def __init__(self, target_host: str, target_port: int) -> None:
        self.host = "127.0.0.1"
        # Bound and never listening: it keeps the port ours, and clients refused, while the listener is closed.
        self._reservation = _bound(self.host, 0)
        self.port: int = self._reservation.getsockname()[1]
        self._conditions = Conditions((target_host, target_port))
        self._links: dict[asyncio.Task[None], Link] = {}
        self._listener: socket.socket | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="headrace-tcp-proxy", daemon=True)

    @property
    def address(self) -> str:
        """Where clients connect: host:port."""
        return f"{self.host}:{self.port}"

    @property
    def target(self) -> tuple[str, int]:
        """Where the server is: host and port."""
        return self._conditions.target

    @property
    def open_connections(self) -> int:
        """How many clients are connected now."""
        return len(self._links)

    @property
    def connections(self) -> int:
        """How many clients were ever accepted."""
        return self._conditions.connections

    @property
    def bytes_to_server(self) -> int:
        """How much was forwarded to the server."""
        return self._conditions.bytes_to_server

    @property
    def bytes_to_client(self) -> int:
        """How much was forwarded to clients."""
        return self._conditions.bytes_to_client

    def start(self) -> TcpProxy:
        """Begin to listen; the port is known before."""
        self._thread.start()
        self._call(self._listen())
        return self

    def close(self) -> None:
        """Reset all connections and let go of the port."""
        if self._loop.is_closed():
            return
        if self._thread.is_alive():
            self._call(self._cut())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
        self._loop.close()
        self._reservation.close()

    def cut(self) -> None:
        """Reset all connections and refuse new ones, as when the server's process is gone."""
        self._call(self._cut())

    def drop(self) -> None:
        """Accept everything and forward nothing, as when a cable is pulled: nobody hears anything."""
        self._call(self._set(is_black_hole=True))

    def hold_answers(self) -> None:
        """Forward what clients send and hold back what the server answers: it does what nobody hears of."""
        self._call(self._set(answers_are_held=True))

    def delay(self, seconds: float) -> None:
        """Hold everything back for so long, in both directions."""
        if seconds < 0:
            raise BadArgument("seconds", seconds, "a delay is 0 or more")
        self._call(self._set(delay_s=seconds))

    def throttle(self, bytes_per_s: float) -> None:
        """Let no more than so many bytes a second through, in each direction of each connection."""
        if bytes_per_s <= 0:
            raise BadArgument("bytes_per_s", bytes_per_s, "it must be above 0; drop() lets nothing through")
        self._call(self._set(bytes_per_s=bytes_per_s))

    def restore(self) -> None:
        """Work as at the start: accept, forward what was held back, at full speed."""
        self._call(self._set(is_black_hole=False, answers_are_held=False, delay_s=0.0, bytes_per_s=None))
        self._call(self._listen())

    def __enter__(self) -> TcpProxy:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _call(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        if not self._thread.is_alive():
            work.close()
            raise Closed(f"the TCP proxy at {self.address}")
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(CALL_TIMEOUT_S)

    async def _set(self, **changes: Any) -> None:  # noqa: ANN401 - the fields of Conditions
        for name, value in changes.items():
            setattr(self._conditions, name, value)

    # The listener is a plain socket: asyncio's servers hand a client over some turns of the loop after accepting
    # it, so that it could slip through a cut.
    async def _listen(self) -> None:
        if self._listener is None:
            self._listener = _bound(self.host, self.port)
            self._listener.setblocking(False)
            self._listener.listen()
            self._loop.add_reader(self._listener, self._accept, self._listener)

    def _accept(self, listener: socket.socket) -> None:
        try:
            client, _ = listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        client.setblocking(False)
        self._conditions.connections += 1
        link = Link(client, self._conditions)
        task = self._loop.create_task(link.run())
        self._links[task] = link
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._links.pop(task).close()

    async def _cut(self) -> None:
        if self._listener is not None:
            self._loop.remove_reader(self._listener)
            self._listener.close()
            self._listener = None
        tasks = list(self._links)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _bound(host: str, port: int) -> socket.socket:
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind((host, port))
    return bound
