"""The gateway of a connection: its journals, tags and schemas, served over HTTP, and what its console shows.

The console shows topics and journals, the outbox, the quarantine, and the cluster.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from headrace.app.copy_journals import journal_topics
from headrace.app.nodes import RunningNode
from headrace.cluster import ClusterView
from headrace.config import OutboxSettings
from headrace.errors import BadArgument, MissingExtra, UnknownTopic
from headrace.gateway import (
    ConsoleOutbox,
    JournalLine,
    LogTopics,
    PartitionOffsets,
    ServedJournal,
    ServedTags,
    TopicFacts,
)
from headrace.journal import Held, Journal, Moment, held_journals, pass_verdict
from headrace.keyspace import App
from headrace.log import Log
from headrace.model import Position, TopicPartition
from headrace.observe import Health, HealthSource
from headrace.serde import Registry
from headrace.store import JournalMeta

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection
    from starlette.types import ASGIApp

    from headrace.app.connection import Headrace
    from headrace.outbox import DeadMessage, LaneStatus

__all__ = ["ConnectionParts", "ConsoleConnection", "served_beside"]

_JOURNALS_AT_MOST = 1_000
_PARTITIONS_AT_MOST = 1_000
_TOPICS_AT_A_TIME = 8


class ConnectionParts:
    """What the gateway serves of a connection. Journals are kept: they remember the appends that were tried.

    `node` gives the health of the node in this process, if there is one.
    """

    def __init__(
        self,
        log: Log,
        registry: Registry,
        find_tags: Callable[[], ServedTags],
        open_journal: Callable[[str], Journal],
        *,
        node: HealthSource = lambda: None,
    ) -> None:
        self._log = log
        self._open_journal = open_journal
        self._journals: OrderedDict[str, Journal] = OrderedDict()
        self.registry = registry
        self._find_tags = find_tags
        self.health = Health("gateway")
        self.health.check("log", self._ask_log)
        self.health.check("registry", self._ask_registry)
        self.health.include(node)

    @property
    def tags(self) -> ServedTags:
        """Queries by tag. Raises NoStore."""
        return self._find_tags()

    def journal(self, topic: str) -> ServedJournal:
        """Return the journals of a topic. Raises BadArgument, NoStore."""
        found = self._journals.pop(topic, None) or self._open_journal(topic)
        self._journals[topic] = found
        while len(self._journals) > _JOURNALS_AT_MOST:
            self._journals.popitem(last=False)
        return found

    async def has_topic(self, topic: str) -> bool:
        """Return True if the topic exists."""
        try:
            await self._log.admin.describe(topic)
        except UnknownTopic:
            return False
        return True

    async def _ask_log(self) -> None:
        await self._log.admin.topics()

    async def _ask_registry(self) -> None:
        await self.registry.subjects()


def served_beside(app: App, beside: ASGIApp | None) -> ASGIApp | None:
    """Return what is served beside the gateway: the routes of an application, then another ASGI application."""
    from starlette.applications import Starlette
    from starlette.routing import Mount

    if not app.routes:
        return beside
    return Starlette(routes=[*app.routes, *([Mount("/", beside)] if beside is not None else [])])


class ConsoleConnection:
    """The console's parts of a connection; `node` returns the node that runs in this process, if any."""

    def __init__(self, hr: Headrace, node: Callable[[], RunningNode | None]) -> None:
        self._node = node
        self.topics = _Topics(hr)
        self.quarantine = _Quarantine(hr)
        found = hr.settings.outbox
        self.outbox: ConsoleOutbox | None = None if found.database is None else _Outbox(found)

    @property
    def node_id(self) -> str | None:
        """The node in this process."""
        node = self._node()
        return None if node is None else node.id

    @property
    def cluster(self) -> ClusterView | None:
        """What the node in this process knows of the cluster."""
        node = self._node()
        return None if node is None else node.view


class _Topics:
    """The topics of the log. Their partitions are asked a few topics at a time, and no more than a page can show."""

    def __init__(self, hr: Headrace) -> None:
        self._hr = hr

    async def topics(self) -> LogTopics:
        """Return the topics, as many as have a thousand partitions together."""
        names, journals = sorted(await self._hr.log.admin.topics()), frozenset(await journal_topics(self._hr))
        found: list[TopicFacts] = []
        asked = 0
        while asked < len(names) and sum(len(each.partitions) for each in found) < _PARTITIONS_AT_MOST:
            some = names[asked : asked + _TOPICS_AT_A_TIME]
            asked += len(some)
            answers = await asyncio.gather(*(self._facts(name, is_journal=name in journals) for name in some))
            found += [each for each in answers if each is not None]
        return LogTopics(tuple(found), left_out=len(names) - asked)

    async def journals(self, topic: str, *, limit: int) -> list[JournalLine]:
        """Return the first journals that the store gives, by id."""
        found: list[JournalLine] = []
        async with contextlib.aclosing(self._hr.store.reader.metas(topic, page_size=limit)) as pages:  # type: ignore[type-var]
            async for page in pages:
                found += [_line(meta) for meta in page if not meta.is_purged]
                if len(found) >= limit:
                    break
        return sorted(found[:limit], key=lambda each: each.id)

    def history(self, topic: str, id_: str) -> AsyncIterator[Moment]:
        """Yield the timeline of a journal."""
        return self._hr.journal(topic, read_only=True).history(id_)

    async def _facts(self, topic: str, *, is_journal: bool) -> TopicFacts | None:
        """Return the offsets of a topic; None if it was deleted in the meantime."""
        try:
            partitions = await (self._replicated(topic) if is_journal else self._plain(topic))
        except UnknownTopic:
            return None
        return TopicFacts(topic, is_journal, partitions)

    async def _plain(self, topic: str) -> tuple[PartitionOffsets, ...]:
        log = self._hr.log
        count = (await log.admin.describe(topic)).partitions
        bounds = [(n, await log.bounds(TopicPartition(topic, n))) for n in range(count)]
        return tuple(PartitionOffsets(n, each.start, each.end) for n, each in bounds)

    async def _replicated(self, topic: str) -> tuple[PartitionOffsets, ...]:
        stats = await self._hr.journal(topic, read_only=True).stats()
        return tuple(
            PartitionOffsets(
                each.partition, each.start, each.end, each.start if each.replicated is None else each.replicated + 1
            )
            for each in stats
        )


class _Quarantine:
    """The journals that are held."""

    def __init__(self, hr: Headrace) -> None:
        self._hr = hr

    async def held(self, topics: Sequence[str]) -> list[Held]:
        """Return what is held of these topics."""
        return [each for topic in topics async for each in held_journals(self._hr.store, topic)]

    async def decide(self, topic: str, id_: str, *, skip: bool, offset: int) -> Position:
        """Write a verdict."""
        return await pass_verdict(self._hr.log, self._hr.store, topic, id_, skip=skip, offset=offset)


class _Outbox:
    """The outbox of the settings. Each question is a connection of its own, in a thread: they are rare."""

    def __init__(self, settings: OutboxSettings) -> None:
        self._settings = settings

    async def lanes(self) -> list[LaneStatus]:
        """Return what waits."""
        operations = _operations()
        found: list[LaneStatus] = await self._run(operations.ask, operations.status)
        return found

    async def dead(self, *, limit: int) -> list[DeadMessage]:
        """Return dead messages."""
        operations = _operations()
        found: list[DeadMessage] = await self._run(operations.ask, lambda db: operations.dead_messages(db, limit=limit))
        return found

    async def change_dead(self, change: Literal["replay", "purge"], topic: str, ids: Sequence[int] | None) -> int:
        """Replay or purge, all that are named or none."""
        operations = _operations()

        def work(db: Connection) -> int:
            missing = operations.missing_ids(db, ids, topic=topic) if ids else []
            if missing:
                rule = f"no dead message of topic {topic!r} has it, and nothing was changed"
                raise BadArgument("id", missing if len(missing) > 1 else missing[0], rule)
            changed = operations.replay if change == "replay" else operations.purge
            return int(changed(db, topic=topic, ids=ids))

        count: int = await self._run(operations.change, work)
        return count

    async def _run(self, how: Callable[..., Any], work: Callable[[Connection], Any]) -> Any:  # noqa: ANN401
        database = self._settings.database
        url = database.get_secret_value() if database is not None else ""
        return await asyncio.to_thread(how, url, work, table_prefix=self._settings.table_prefix)


def _line(meta: JournalMeta) -> JournalLine:
    return JournalLine(meta.id, meta.seq_nr, meta.updated_ms, is_held=meta.held_from is not None)


def _operations() -> Any:  # noqa: ANN401 - a module
    """Return the outbox's operations, which need SQLAlchemy. Raises MissingExtra."""
    try:
        from headrace.outbox import operations
    except ModuleNotFoundError as missing:
        if missing.name not in ("sqlalchemy", "alembic"):
            raise
        raise MissingExtra(missing.name, "outbox") from missing
    return operations
