"""Waking relays at a commit: directly in this process, by NOTIFY in others where the database can."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any

from sqlalchemy import URL

from headrace.observe import get_logger
from headrace.outbox.dialects.dialect import CONNECT_S
from headrace.outbox.engines import url_of

__all__ = ["CHANNEL", "add_listener", "announce", "listen", "listening_name", "remove_listener"]

CHANNEL = "headrace_outbox"

_logger = get_logger(__name__)

_IDLE_S = 60.0
# Commits of this long share one NOTIFY; and a hook that runs right before the commit is behind it then.
_GATHER_S = 0.001

_lock = threading.Lock()
_listeners: dict[str, set[Callable[[], None]]] = {}
_notifiers: dict[str, Notifier] = {}


def announce(url: URL) -> None:
    """Wake the relays of a database to which messages were committed. Cheap, and never raises: relays also poll."""
    name = listening_name(url)
    with _lock:
        callbacks = list(_listeners.get(name, ()))
    for callback in callbacks:
        callback()
    if not callbacks and url.get_backend_name() == "postgresql":
        _notifier(name, url).notify()


def add_listener(name: str, callback: Callable[[], None]) -> None:
    """Call back, from any thread, when this process commits messages to the database."""
    with _lock:
        _listeners.setdefault(name, set()).add(callback)


def remove_listener(name: str, callback: Callable[[], None]) -> None:
    """Stop calling back."""
    with _lock:
        _listeners.get(name, set()).discard(callback)


def listening_name(url: URL) -> str:
    """Return a name for the database that is the same whatever the driver and the user."""
    return f"{url.get_backend_name()}://{url.host or ''}:{url.port or ''}/{url.database}"


def _forget_all() -> None:
    """Forget relays and threads of the process that this one was forked from: its event loops do not run here."""
    global _lock  # noqa: PLW0603 - another thread of that process may have held it
    _lock = threading.Lock()
    _listeners.clear()
    _notifiers.clear()


os.register_at_fork(after_in_child=_forget_all)


def _notifier(name: str, url: URL) -> Notifier:
    with _lock:
        if name not in _notifiers:
            _notifiers[name] = Notifier(url)
        return _notifiers[name]


class Notifier:
    """Sends NOTIFY from a thread and connection of its own.

    Not inside the application's transaction: PostgreSQL lets only one transaction with a NOTIFY commit at a time.
    """

    def __init__(self, url: URL) -> None:
        self._url = url_of(url)
        self._wanted = threading.Event()
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()

    def notify(self) -> None:
        """Have a NOTIFY sent soon."""
        self._wanted.set()
        with self._starting:
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="headrace-outbox-notify", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        import psycopg

        try:
            with psycopg.connect(**_arguments(self._url), autocommit=True) as connection:
                while self._wanted.wait(_IDLE_S):
                    time.sleep(_GATHER_S)
                    self._wanted.clear()
                    connection.execute(f"NOTIFY {CHANNEL}")
        except psycopg.Error as error:
            _logger.info("relays were not notified, they find the messages when they poll", error=str(error))


async def listen(url: URL, wake: Callable[[], None]) -> None:
    """Call `wake` at each notification, without an end. Raises what the driver raises when the connection ends."""
    import psycopg

    async with await psycopg.AsyncConnection.connect(**_arguments(url), autocommit=True) as connection:
        await connection.execute(f"LISTEN {CHANNEL}")
        wake()  # for what was committed before this connection listened
        async for _ in connection.notifies():
            wake()


def _arguments(url: URL) -> dict[str, Any]:
    """Return the arguments of psycopg.connect, as an engine gets them.

    libpq reads the text of a URL in another way: a "+" is no blank to it, and a host in the query has no port.
    """
    _, arguments = url.get_dialect()().create_connect_args(url)
    return {"connect_timeout": CONNECT_S, **arguments}
