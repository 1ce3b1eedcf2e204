"""What a handler gets beside its message: who asked, how much time is left, and ways to address others."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

from headrace.errors import BadArgument, ContextEnded, HeadraceError
from headrace.keyspace.messages import Entry
from headrace.model import NewRecord, check_topic_name
from headrace.observe import counter, get_logger
from headrace.state import UnitOfWork

if TYPE_CHECKING:
    from headrace.keyspace.client import KeyspaceClient
    from headrace.keyspace.declaration import Keyspace

__all__ = ["Context"]

NOT_SENT = counter("keyspace", "tells_not_sent", "Tells of handlers that this node could not send.", ["keyspace"])

# Ids of asks within asks grow longer and longer; what is longer than this becomes a digest.
_LONGEST_ID = 200

_logger = get_logger(__name__)


class Context:
    """One call of a handler.

    Tells and emitted records leave when the call is committed, and not at all if it fails. An `ask` goes out at once:
    it carries an id that stays the same if this handler is run again, so the other side does it once. `keyspace` is the
    one whose handler it is: ids of messages are those of a key in it, and others may have the same.
    """

    def __init__(
        self,
        *,
        keyspace: str,
        partition: int,
        key: Any,  # noqa: ANN401
        now_ms: int,
        deadline_s: float,
        request_id: str,
        chain: tuple[Entry, ...],
        unit: UnitOfWork,
        client_of: Callable[[type[Keyspace]], KeyspaceClient],
        gate: Callable[[], Awaitable[None]] | None = None,
        changelogs: Collection[str] = (),
    ) -> None:
        self.partition = partition
        self.key = key
        self.now_ms = now_ms
        self.request_id = request_id
        self._deadline_s = deadline_s
        self._chain = chain
        self._unit = unit
        self._client_of = client_of
        self._gate = gate
        self._changelogs = changelogs
        self._asks = 0
        self._asker = _asker_of(keyspace, partition, chain)
        self._tells: list[tuple[KeyspaceClient, Any]] = []
        self._has_ended = False
        self._sends: list[tuple[str, Callable[[], None]]] = []

    @property
    def left_s(self) -> float:
        """How much time the caller still gives this call."""
        return max(0.0, self._deadline_s - asyncio.get_running_loop().time())

    async def ask(self, keyspace: type[Keyspace], message: object, *, timeout_s: float | None = None) -> Any:  # noqa: ANN401
        """Ask another key, here or in another keyspace, and return its reply. Raises AskCycle, and what it raises."""
        self._asks += 1
        number = self._asks
        if self._gate is not None:
            await self._gate()  # nobody may see what is read here while the last owner may still answer
        left_s = self.left_s if timeout_s is None else min(timeout_s, self.left_s)
        return await self._client_of(keyspace).ask(
            message,
            message_id=_id_of(f"{self._asker}/{self.request_id}", number),
            timeout_s=max(left_s, 0.001),
            chain=self._chain,
        )

    def tell(self, keyspace: type[Keyspace], message: object) -> None:
        """Send a message, at most once, when this call is committed. Raises UnknownMessage, ContextEnded."""
        self._check_running("tell")
        client = self._client_of(keyspace)
        client.check(message)
        self._tells.append((client, message))

    def emit(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
        partition: int | None = None,
    ) -> None:
        """Write a record to another topic, in the transaction of this call.

        Raises BadArgument for a changelog, and ContextEnded once the handler has returned.
        """
        self._check_running("emit")
        if topic in self._changelogs:
            raise BadArgument("topic", topic, "it is the changelog of a state; write to the state instead")
        check_topic_name(topic)
        for name, data in (("key", key), ("value", value), *(headers or {}).items()):
            if data is not None and not isinstance(data, bytes):
                raise BadArgument(name, data, "what is emitted is bytes")
        self._unit.add(NewRecord(topic, key, value, tuple((headers or {}).items()), partition=partition))

    def end(self) -> None:
        """Take nothing more: the handler has returned, or failed."""
        self._has_ended = True

    def _check_running(self, call: str) -> None:
        if self._has_ended:
            raise ContextEnded(f"the handler of request {self.request_id!r}", f"context.{call}")

    async def prepare_tells(self) -> None:
        """Make the messages of `tell` ready to be sent, before the commit: a wrong message fails the call."""
        self._sends = [(client.name, await client.prepare_tell(message)) for client, message in self._tells]

    def send_tells(self) -> None:
        """Send the messages of `tell`; called after the commit. What can't be sent is lost, as a tell may be."""
        for keyspace, send in self._sends:
            try:
                send()
            except HeadraceError as error:
                NOT_SENT.labels(keyspace).inc()
                _logger.warning("a tell was not sent", keyspace=keyspace, reason=str(error))


def _asker_of(keyspace: str, partition: int, chain: tuple[Entry, ...]) -> str:
    """Return what tells asks apart that come from requests with the same id: of other keyspaces, keys or partitions.

    A key's partition is no part of it: a resize changes that.
    """
    has_key = bool(chain) and chain[-1][0] == keyspace
    where = b"key " + chain[-1][1] if has_key else b"partition %d" % partition
    return hashlib.blake2b(keyspace.encode() + b" " + where, digest_size=8).hexdigest()


def _id_of(request_id: str, number: int) -> str:
    """Return the id of an ask, the same whenever the request is handled again."""
    if len(request_id) > _LONGEST_ID:
        request_id = hashlib.blake2b(request_id.encode(errors="surrogatepass"), digest_size=16).hexdigest()
    return f"{request_id}/{number}"
