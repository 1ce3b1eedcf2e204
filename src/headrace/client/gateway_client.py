"""The client itself: one address, one token, one socket."""

from __future__ import annotations

import inspect
import re
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

from headrace.client.connection import ClientConnection, ConnectionOptions
from headrace.client.key_socket import KeySocket
from headrace.client.requests import (
    GatewayEngine,
    GatewayJournal,
    GatewayState,
    HttpRequests,
    key_text,
    path_segment,
    problem_error,
    repeatable,
    tag_list,
    tagged_events,
)
from headrace.errors import BadArgument, GatewayRefused, GatewayUnavailable, MissingExtra
from headrace.runtime import Backoff

__all__ = ["GatewayClient", "Token"]

Token = str | Callable[[], str | Awaitable[str | None] | None]

# What may stand in a header and, where browsers can't send one, in a sub-protocol.
_TOKEN = re.compile(r"[A-Za-z0-9._~+-]+")


class GatewayClient:
    """A client of the gateway at `url`. Use it as `async with GatewayClient(url) as client`.

    `token` is a text, or a function that returns a fresh one whenever one is needed. `on_status` gets "open" and
    "waiting", with the close code, when the socket changes.
    """

    def __init__(
        self,
        url: str,
        *,
        token: Token | None = None,
        backoff: Backoff | None = None,
        timeout_s: float = 30.0,
        on_status: Callable[[str, int | None], None] | None = None,
    ) -> None:
        try:
            import httpx
        except ImportError as error:
            raise MissingExtra("httpx", "client") from error
        if not isinstance(url, str) or not url.startswith(("http://", "https://")):
            raise BadArgument("url", url, "it must be the gateway's address, as in http://localhost:8080")
        self.url = url.rstrip("/")
        self._given = token if callable(token) else _checked(token)
        self._backoff = backoff or Backoff(first_s=0.1, limit_s=10.0)
        self._http = httpx.AsyncClient(base_url=self.url, timeout=timeout_s)
        self._requests = HttpRequests(self._http, self._token, has_fresh_tokens=callable(token))
        self._options = ConnectionOptions(
            url="ws" + self.url.removeprefix("http") + "/socket",
            token=self._token,
            has_fresh_tokens=callable(token),
            probe=self._probe,
            problem=problem_error,
            backoff=self._backoff,
            on_status=on_status,
        )
        self._connection = ClientConnection(self._options)
        self._sockets: set[KeySocket] = set()

    async def __aenter__(self) -> GatewayClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End the socket, all subscriptions, and connections."""
        await self._connection.close()
        for socket in tuple(self._sockets):
            await socket.close()
        await self._http.aclose()

    def state(self, keyspace: str, name: str) -> GatewayState:
        """Return one state of a keyspace."""
        return GatewayState(self._requests, self._connection, keyspace, name)

    def engine(self, name: str) -> GatewayEngine:
        """Return an engine."""
        return GatewayEngine(self._requests, name)

    def journal(self, topic: str) -> GatewayJournal:
        """Return the journals of a topic."""
        return GatewayJournal(self._requests, topic)

    async def keyspaces(self) -> list[dict[str, Any]]:
        """Return the keyspaces that the caller may read."""
        return list((await self._requests.json("GET", "/keyspaces"))["keyspaces"])

    async def event_page(
        self, tags: Sequence[str] | str, *, after: str | None = None, limit: int | None = None
    ) -> dict[str, Any]:
        """Return a page of the events of tags, or of one, with `next` and `is_end`."""
        query = {"tag": tag_list(tags), "after": after, "limit": limit}
        return dict(await self._requests.json("GET", "/events", query=query))

    def events(self, tags: Sequence[str] | str, *, after: str | None = None) -> AsyncIterator[dict[str, Any]]:
        """Yield the events of tags, or of one, as they are written, from `after` on."""
        return tagged_events(self._requests, tags, after, self._backoff)

    async def publish(
        self, keyspace: str, message: str, data: Mapping[str, Any], *, message_id: str | None = None
    ) -> Any:  # noqa: ANN401
        """Send a message to its handler over the socket, and return the reply; it is handled once."""
        request = {"keyspace": keyspace, "message": message, "data": dict(data)}
        return await self._connection.publish({**request, "message_id": message_id or uuid.uuid4().hex})

    async def send(
        self, keyspace: str, message: str, data: Mapping[str, Any], *, idempotency_key: str | None = None
    ) -> Any:  # noqa: ANN401
        """Send a message to its handler over HTTP, and return the reply. With a key it may be repeated."""
        path = f"/keyspaces/{path_segment(keyspace)}/messages/{path_segment(message)}"
        return await self._requests.json("POST", path, body=dict(data), headers=repeatable(idempotency_key))

    def key_socket(self, keyspace: str, state: str, key: Any, *, is_json: bool = False) -> KeySocket:  # noqa: ANN401
        """Open a socket on one key: values as framed Avro, or as JSON, and messages to the key."""
        path = "/".join(path_segment(each) for each in (keyspace, "states", state, key_text(key)))
        url = self._options.url.removesuffix("/socket") + f"/keyspaces/{path}"
        socket = KeySocket(self._options._replace(url=url), is_json=is_json, on_end=self._sockets.discard)
        self._sockets.add(socket)
        return socket

    async def _token(self) -> str | None:
        if not callable(self._given):
            return self._given
        found = self._given()
        return _checked(await found if inspect.isawaitable(found) else found)

    async def _probe(self) -> GatewayRefused | None:
        """Ask by a plain request why a socket could not be opened; return the error if the client is refused."""
        try:
            await self.keyspaces()
        except GatewayUnavailable:
            return None
        except GatewayRefused as error:
            return error if error.status in (401, 403) else None
        return None


def _checked(token: str | None) -> str | None:
    """Return a token without the space around it, as a file may have; None for an empty one. Raises BadArgument."""
    found = (token or "").strip()
    if found and not _TOKEN.fullmatch(found):
        raise BadArgument("token", "…", "a JSON Web Token consists of letters, digits, '-', '_' and '.'")
    return found or None
