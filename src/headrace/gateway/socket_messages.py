"""Messages that the client of a socket with many keys publishes: those to one key are handled in their order."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from headrace.access import Caller
from headrace.errors import Busy, HeadraceError, NotFound
from headrace.gateway.keyspaces import KeyspaceRoutes
from headrace.gateway.problems import problem_of
from headrace.gateway.socket_requests import Publish
from headrace.gateway.socket_wire import Say
from headrace.gateway.state_forms import json_of
from headrace.keyspace import KeyspaceClient
from headrace.protocol import check_text

__all__ = ["SocketMessages"]

_MOST_ID_CHARS = 255


class SocketMessages:
    """The messages of one socket that are on their way. Each is answered with its reply, or with a problem."""

    def __init__(self, say: Say, caller: Caller, routes: KeyspaceRoutes, *, limit: int) -> None:
        self._say = say
        self._caller = caller
        self._routes = routes
        self._limit = limit
        self._last: dict[tuple[str, Any], asyncio.Task[None]] = {}
        self._running: set[asyncio.Task[None]] = set()

    @property
    def tasks(self) -> set[asyncio.Task[None]]:
        """What runs, to be cancelled when the socket ends."""
        return self._running

    async def take(self, request: Publish) -> None:
        """Begin to send a message, behind those to the same key; a refusal is sent to the client."""
        try:
            client, message, key = self._checked(request)
        except HeadraceError as error:
            await self.refuse(request.id, error)
            return
        place = (request.keyspace, key)
        task = asyncio.ensure_future(self._send(self._last.get(place), client, message, request))
        self._last[place] = task
        self._running.add(task)
        task.add_done_callback(lambda done: self._forget(place, done))

    def _checked(self, request: Publish) -> tuple[KeyspaceClient, Any, Any]:
        """Return the message and its key. Raises Forbidden, NotFound, NotDecodable, BadArgument, Busy."""
        self._caller.check("command", "keyspace", request.keyspace)
        if len(self._running) >= self._limit:
            raise Busy("this socket (messages)", self._limit)
        if request.message_id is not None:
            check_text("message_id", request.message_id, least=1, most=_MOST_ID_CHARS)
        served = self._routes.served(request.keyspace)
        form = self._routes.messages(request.keyspace).get(request.message)
        if form is None:
            raise NotFound(f"message {request.message[:60]!r} of keyspace {request.keyspace!r}")
        message = form.from_json(request.data)
        key_of = served.client.check(message).key_of
        if key_of is None:
            raise NotFound(f"message {request.message!r} to a single key; it is for all partitions: send it by HTTP")
        return served.client, message, key_of(message)

    async def _send(
        self,
        before: asyncio.Task[None] | None,
        client: KeyspaceClient,
        message: Any,  # noqa: ANN401
        request: Publish,
    ) -> None:
        if before is not None:
            await asyncio.wait({before})
        try:
            reply = await client.ack(message, message_id=request.message_id)
        except Exception as error:  # what a handler raises is an answer, as over HTTP
            await self.refuse(request.id, error)
            return
        await self._say(msgspec.json.encode({"op": "published", "id": request.id, "reply": json_of(reply)}).decode())

    async def refuse(self, number: int, error: BaseException) -> None:
        """Tell the client that a message was not handled, and why."""
        refused = {"op": "refused", "id": number, "problem": problem_of(error).to_json("")}
        await self._say(msgspec.json.encode(refused).decode())

    def _forget(self, place: tuple[str, Any], done: asyncio.Task[None]) -> None:
        self._running.discard(done)
        if self._last.get(place) is done:
            del self._last[place]
        if not done.cancelled():
            done.exception()  # the wire is gone; the socket ends for the same reason
