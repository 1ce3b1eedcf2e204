"""One turn of one place: take the lease, send batch after batch, delete what was acknowledged, give the lease back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from sqlalchemy.exc import SQLAlchemyError

from headrace.errors import Fenced, Misconfigured, Unavailable
from headrace.observe import get_logger
from headrace.outbox.flows import Flow
from headrace.outbox.leases import LaneLease, LaneLeases, LeaseLost
from headrace.outbox.log_lines import Showing, tell_unheard
from headrace.outbox.messages import Lane, PendingMessage
from headrace.outbox.metrics import DEAD, LEASES_LOST, PROCESSED, SEND_ERRORS, SUPERSEDED
from headrace.outbox.rows import MessageRows
from headrace.outbox.send import Sender, Sent, compact, keep_all
from headrace.outbox.settings import OutboxSettings
from headrace.runtime import Backoff, crash_point

__all__ = ["Parts", "Turn"]

_logger = get_logger(__name__)

# A place whose messages are all held back is looked at again after this.
_BLOCKED_PAUSE_MS = 1000


# How long a database that may be frozen is waited for when the work is over anyway.
_LAST_WORD_S = 1.0


@dataclass(slots=True)
class Parts:
    """What all workers of a relay share.

    `unsettled` holds what is in the log but perhaps still in the table, because its delete is under way or has failed.
    """

    leases: LaneLeases
    rows: MessageRows
    sender: Sender
    settings: OutboxSettings
    showing: Showing
    is_stopping: Callable[[], bool]
    unsettled: dict[Lane, list[Sent]] = field(default_factory=dict)


class Turn:
    """Turns of one worker, known by its uuid."""

    def __init__(self, parts: Parts, owner: str) -> None:
        self._parts = parts
        self._owner = owner
        settings = parts.settings
        self._backoff = Backoff(settings.first_retry_s, 2.0, max(settings.first_retry_s, settings.max_retry_s))
        self._overlaps = settings.delivery == "at_least_once"

    async def run(self, place: Lane) -> bool:
        """Do the turn; returns whether more is waiting. Raises what the database raises."""
        lease = await self._parts.leases.acquire(place, self._owner)
        if lease is None:
            return False
        try:
            return await self._while_kept(lease)
        except LeaseLost:
            LEASES_LOST.labels(place.topic).inc()
            _logger.warning("lease lost, its new holder goes on", topic=place.topic, bucket=place.bucket)
            return False
        except asyncio.CancelledError:
            await self._abandon(lease)
            raise
        except SQLAlchemyError:
            raise
        except Exception as error:
            await self._hold(lease, error)
            return False

    async def _abandon(self, lease: LaneLease) -> None:
        try:
            await asyncio.wait_for(asyncio.shield(self._parts.leases.abandon(lease)), _LAST_WORD_S)
        except (TimeoutError, SQLAlchemyError) as error:
            place = lease.place
            _logger.warning("lease is left to run out", topic=place.topic, bucket=place.bucket, error=repr(error))

    async def _hold(self, lease: LaneLease, error: Exception) -> None:
        topic = lease.place.topic
        (LEASES_LOST if isinstance(error, Fenced) else SEND_ERRORS).labels(topic).inc()
        delay_s = self._backoff.delay_s(lease.retries + 1)
        story = f"{type(error).__name__}: {error}"
        _logger.warning("sending failed", topic=topic, bucket=lease.place.bucket, error=story, next_try_s=delay_s)
        if isinstance(error, Unavailable | Misconfigured):
            tell_unheard(f"sending to {topic} failed: {story}")
        await self._parts.leases.hold(lease, story, delay_s=delay_s)

    async def _while_kept(self, lease: LaneLease) -> bool:
        """Work while another task renews the lease; when that finds it lost, the work stops where it stands."""
        work = asyncio.create_task(self._work(lease))
        keeping = asyncio.create_task(self._keep(lease))
        try:
            await asyncio.wait({work, keeping}, return_when=asyncio.FIRST_COMPLETED)
            if keeping.done() and not work.done():
                keeping.result()
            return await work
        finally:
            await _ended(work, keeping)

    async def _keep(self, lease: LaneLease) -> None:
        while True:
            await asyncio.sleep(self._parts.settings.lease_s / 3)
            try:
                await self._parts.leases.renew(lease)
            except SQLAlchemyError as error:
                _logger.warning("lease not renewed, will try again", topic=lease.place.topic, error=str(error))

    async def _work(self, lease: LaneLease) -> bool:
        await self._settle_earlier(lease)
        more, is_blocked = await self._batches(lease)
        await self._parts.leases.release(lease, pause_ms=_BLOCKED_PAUSE_MS if is_blocked else 0)
        return more

    async def _settle_earlier(self, lease: LaneLease) -> None:
        """Delete what is in the log from before: sending it again would be a duplicate that we know of."""
        recovered = await self._parts.sender.recover(lease)
        if not recovered.is_empty:
            self._remember(lease.place, recovered)
        for sent in list(self._parts.unsettled.get(lease.place, ())):
            await self._settle(lease, sent)

    async def _batches(self, lease: LaneLease) -> tuple[bool, bool]:
        """Send batches while they are full; returns whether more is waiting, and whether all of it is held back."""
        settings, place = self._parts.settings, lease.place
        policy = settings.poison_policy_of(place.topic)
        batch = await self._parts.rows.read(place, policy)
        is_blocked = not batch.rows and policy != "skip"
        flow, being_deleted = Flow(), list[int]()
        try:
            for nr in range(1, settings.turn_batches + 1):
                if not batch.rows:
                    break
                ids = [row.id for row in batch.rows]
                if batch.is_full and nr < settings.turn_batches:
                    flow.read_ahead(partial(self._parts.rows.read, place, policy, in_hand=[*being_deleted, *ids]))
                is_whole = await self._send(lease, batch.rows, flow)
                if not batch.is_full or not is_whole or self._parts.is_stopping():
                    return batch.is_full or not is_whole, False
                following = await flow.next_batch()
                if following is None:  # the turn is over
                    return True, False
                batch, being_deleted = following, ids
            return False, is_blocked
        finally:
            await flow.end()

    async def _send(self, lease: LaneLease, rows: Sequence[PendingMessage], flow: Flow) -> bool:
        """Send one batch and begin to settle it; returns whether all of it is done."""
        settings, topic = self._parts.settings, lease.place.topic
        if time.monotonic() - lease.confirmed_s > settings.lease_s * 2 / 3:
            await self._parts.leases.renew(lease)  # this process stood still, perhaps for longer than the lease
        batch = compact(rows) if topic in settings.compact_topics else keep_all(rows)
        try:
            sent = await self._parts.sender.send(lease, batch, settings.poison_policy_of(topic))
        except Exception as error:
            self._parts.showing.failed(topic, batch.kept, error)
            raise
        crash_point("outbox.after-send")
        self._remember(lease.place, sent)  # before anything can fail: it is in the log
        self._parts.showing.sent(topic, batch.kept)
        SUPERSEDED.labels(topic).inc(len(sent.superseded))
        await flow.settled()
        flow.settle(self._settle(lease, sent))
        if not self._overlaps:
            await flow.settled()
        return len(sent.ids) == len(rows)

    def _remember(self, place: Lane, sent: Sent) -> None:
        self._parts.unsettled.setdefault(place, []).append(sent)

    async def _settle(self, lease: LaneLease, sent: Sent) -> None:
        place = lease.place
        gone = await self._parts.rows.settle(lease, sent)
        self._parts.unsettled[place].remove(sent)
        PROCESSED.labels(place.topic).inc(max(0, gone - len(sent.refused)))
        for id_, reason in sent.refused.items():
            DEAD.labels(place.topic).inc()
            _logger.error("message is dead", topic=place.topic, id=id_, reason=reason)


async def _ended(*tasks: asyncio.Task[Any]) -> None:
    """Cancel the tasks and wait for their end, but not for a database that does not answer."""
    for task in tasks:
        task.cancel()
        task.add_done_callback(lambda done: done.cancelled() or done.exception())  # seen, or raised by who waits
    await asyncio.wait(tasks, timeout=_LAST_WORD_S)
