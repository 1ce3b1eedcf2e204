"""A push hook that posts each change to an HTTP endpoint, and the keyspace whose changes it tells."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import httpx

from headrace.errors import PushRefused
from headrace.keyspace import Context, Keyspace, PushedChange, State, handles, state

__all__ = ["HttpPush", "Inbox", "Inboxes", "Notify"]

GONE = (400, 404, 410)


@dataclass(frozen=True)
class Inbox:
    """What a device shows: how many messages are unread, and the last one."""

    unread: int
    last: str


@dataclass(frozen=True)
class Notify:
    """Put a message into the inbox of a device."""

    id: str
    text: str


class Inboxes(Keyspace, partitions=2, replicas=1, store="memory"):
    """The inboxes of devices."""

    inboxes: State[str, Inbox] = state()

    @handles
    async def notify(self, message: Notify, context: Context) -> Inbox:
        """Add a message."""
        before = await self.inboxes.get(message.id)
        after = Inbox((before.unread if before else 0) + 1, message.text)
        await self.inboxes.put(message.id, after)
        return after


class HttpPush:
    """Posts changes to `{url}/{device}`. The id lets the service drop repeats.

    A device that the service does not know any more becomes a dead letter; other failures are tried again.
    """

    def __init__(self, http: httpx.AsyncClient, url: str) -> None:
        self._http = http
        self._url = url

    async def push(self, change: PushedChange) -> None:
        """Post a change. Raises PushRefused, or httpx's errors."""
        body = {"id": change.id, "inbox": None if change.value is None else asdict(change.value)}
        response = await self._http.post(f"{self._url}/{change.key}", json=body)
        if response.status_code in GONE:
            raise PushRefused(self._url, f"status {response.status_code} for device {change.key!r}")
        response.raise_for_status()
