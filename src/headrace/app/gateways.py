"""The gateway of a connection: its journals, tags and schemas, served over HTTP."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.types import ASGIApp

from headrace.errors import UnknownTopic
from headrace.gateway import ServedJournal, ServedTags
from headrace.journal import Journal
from headrace.keyspace import App
from headrace.log import Log
from headrace.observe import Health, HealthSource
from headrace.serde import Registry

__all__ = ["ConnectionParts", "served_beside"]

_JOURNALS_AT_MOST = 1_000


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
    if not app.routes:
        return beside
    return Starlette(routes=[*app.routes, *([Mount("/", beside)] if beside is not None else [])])
