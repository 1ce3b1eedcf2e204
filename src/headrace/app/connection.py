"""The connection of an application: the log, the store, and everything that is built on them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, TypeVar

from headrace.app.nodes import MissingPartitions, NodePart, RunningNode, running_node
from headrace.app.projections import ProjectionHandle, opened_projection, running_projection, share_of_arguments
from headrace.config import HeadraceSettings, StoreSettings
from headrace.engine import Engine, EngineClient
from headrace.errors import BadArgument, NoStore
from headrace.journal import HeadCache, Journal
from headrace.keyspace import App, Keyspace, KeyspaceClient
from headrace.log import Log, open_log
from headrace.observe import Health, get_logger
from headrace.projection import Projection
from headrace.serde import Registry, open_registry
from headrace.store import Store, open_store
from headrace.tags import After, TaggedEvent, TagQueries

if TYPE_CHECKING:  # they need the extra `gateway`
    from starlette.types import ASGIApp

    from headrace.gateway import GatewayApp, GatewayRoute

__all__ = ["Headrace", "connect"]

S = TypeVar("S")
_logger = get_logger(__name__)


class Headrace:
    """An open connection: the log, the store, the schema registry, and what is built on them."""

    def __init__(self, log: Log, store: Store | None, registry: Registry, settings: HeadraceSettings) -> None:
        self.log = log
        self.registry = registry
        self.settings = settings
        self._store = store
        self._head_cache: HeadCache | None = None
        self._tags: TagQueries | None = None
        self._node: RunningNode | None = None

    @property
    def store(self) -> Store:
        """The eventual store. Raises NoStore if none was named."""
        if self._store is None:
            raise NoStore
        return self._store

    def journal(
        self, topic: str, *, read_only: bool = False, origin: str | None = None, partitions: int | None = None
    ) -> Journal:
        """Return the journals of a topic. The topic is created, with `partitions`, when it is first written to."""
        settings = self.settings.journal
        if self._head_cache is None:
            self._head_cache = HeadCache(
                self.log,
                self.store.reader,
                max_actions=settings.head.max_actions,
                max_record_bytes=settings.head.max_record_bytes,
                idle_s=settings.head.idle_s,
                trim_every_s=settings.head.trim_every_s,
            )
        return Journal(
            self.log,
            self.store,
            topic,
            cache=self._head_cache,
            origin=origin,
            read_only=read_only,
            timeout_s=settings.read_timeout_s,
            snapshots_kept=settings.snapshots_kept,
            partitions=settings.partitions if partitions is None else partitions,
            lease_s=settings.lease_s,
            slow_s=settings.slow_s,
        )

    @property
    def tags(self) -> TagQueries:
        """Queries by tag. Raises NoStore if no store was named."""
        if self._tags is None:
            self._tags = TagQueries(self.log, self.store, self.settings.tags)
        return self._tags

    def events_by_tag(
        self,
        tag: str | Sequence[str],
        *,
        after: After = None,
        live: bool = False,
        read_only: bool = False,
        skip_trimmed: bool = False,
        at_least: str | None = None,
    ) -> AsyncGenerator[TaggedEvent, None]:
        """Yield a tag's events of all journals, each once, in one order; with `live` also those that come later.

        With several tags, all their events; an event with more than one of the tags comes once.
        The query starts after `after`: an event's `tag_offset`, the text of one, or a time. With `read_only` nothing
        is written to the log, and events may wait for idle partitions. If events after the start were removed because
        of their age, it raises TagTrimmed; with `skip_trimmed` it starts behind them. With `at_least`, the consistency
        token of a write, it does not end before what was written.
        """
        return self.tags.events(
            tag, after=after, live=live, read_only=read_only, skip_trimmed=skip_trimmed, at_least=at_least
        )

    def project(
        self, projection: Projection, *, worker: int | None = None, workers: int | None = None
    ) -> AbstractAsyncContextManager[ProjectionHandle]:
        """Run a projection in this process while the block runs: `async with hr.project(balances): …`.

        All its workers, in any process, divide the journals among themselves; or, with `worker` (from 0) of `workers`,
        this one takes a fixed share. The block gets a handle, which can wait until events are handled. A failure of
        the handler does not end the block: it is logged once, shown by `handle.health`, and tried again, unless the
        projection's recovery says otherwise.
        """
        return running_projection(projection, self.tags, self.store, share_of_arguments(worker, workers))

    def projection(self, projection: Projection) -> AbstractAsyncContextManager[ProjectionHandle]:
        """Open a projection that runs elsewhere, to check it, wait for it, pause it or resume it."""
        return opened_projection(projection, self.tags, self.store)

    def gateway(
        self, *parts: NodePart, routes: Sequence[GatewayRoute] = (), beside: ASGIApp | None = None
    ) -> GatewayApp:
        """Return the gateway of this connection, an ASGI application; `headrace.gateway.serving` serves it.

        `parts` are the keyspaces and engines that it serves, which needs a node (`hr.node`), and the routes of an App.
        `routes` are further routes in the gateway's own manner, `beside` is an ASGI application of your own. Without
        a store the routes of journals and tags are answered with 501. Raises MissingExtra without the extra `gateway`.
        """
        from headrace import __version__
        from headrace.app.gateways import ConnectionParts, ConsoleConnection, served_beside
        from headrace.gateway import GatewayApp, ServedKeyspace

        app = App(*(part for part in parts if not isinstance(part, Engine)))
        engines = [part for part in parts if isinstance(part, Engine)]
        if self._store is None:
            _logger.warning("journals and events by tag are not served", reason=str(NoStore()))
        return GatewayApp(
            ConnectionParts(self.log, self.registry, lambda: self.tags, self.journal, node=self._node_health),
            self.settings.gateway,
            version=__version__,
            keyspaces=[ServedKeyspace(each.spec, self.keyspace(each)) for each in app.keyspaces.values()],
            engines=[self.engine(engine) for engine in engines],
            console=ConsoleConnection(self, lambda: self._node) if self.settings.gateway.console else None,
            routes=routes,
            beside=served_beside(app, beside),
            find_missing=self._missing_of([*app.keyspaces], [engine.name for engine in engines]),
        )

    def _missing_of(self, keyspaces: Sequence[str], engines: Sequence[str]) -> MissingPartitions | None:
        return None if self._node is None else MissingPartitions(self._node, keyspaces, engines)

    @contextlib.asynccontextmanager
    async def node(self, *parts: NodePart) -> AsyncIterator[RunningNode]:
        """Be a node of the cluster while the block runs, and serve these keyspaces and engines.

        Without any it only calls others. Raises DuplicateNode, WrongGroupSize, WrongEngineTopic, MissingExtra.
        """
        if self._node is not None:
            raise BadArgument("node", parts, "this connection has a node already; name all parts in one call")
        async with running_node(self.log, self.registry, self.settings, parts, lambda: self.store) as node:
            self._node = node
            try:
                yield node
            finally:
                self._node = None

    def _node_health(self) -> Health | None:
        return None if self._node is None else self._node.health

    def keyspace(self, kind: type[Keyspace]) -> KeyspaceClient:
        """Return the client of a keyspace; a node runs in this process (`hr.node`). Raises BadArgument."""
        if self._node is None:
            raise BadArgument("keyspace", kind.__name__, "requests go through a node; use `async with hr.node(…):`")
        return self._node.keyspace(kind)

    def engine(self, engine: Engine[S]) -> EngineClient[S]:
        """Return the client of an engine; a node runs in this process (`hr.node`). Raises BadArgument."""
        if self._node is None:
            raise BadArgument("engine", engine.name, "commands go through a node; use `async with hr.node(…):`")
        return self._node.engine(engine)

    async def close(self) -> None:
        """Close everything that was opened on the log and the store, then these.

        A caller that is cancelled meanwhile waits until all is closed; what stayed open would keep its threads.
        """
        closing = asyncio.ensure_future(self._close())
        try:
            await asyncio.shield(closing)
        except asyncio.CancelledError:
            await asyncio.wait([closing])
            raise

    async def _close(self) -> None:
        if self._head_cache is not None:
            await self._head_cache.close()
        await self.registry.close()
        if self._store is not None:
            await self._store.close()
        await self.log.close()


def _store_of(address: str, settings: HeadraceSettings) -> str | None:
    """Return the store's address: the same folder for an embedded log, otherwise the one in the settings, if any."""
    if address.startswith("embedded:"):
        return address
    return settings.store.address if settings.store.address != StoreSettings().address else None


@contextlib.asynccontextmanager
async def connect(
    address: str | None = None, *, store: str | None = None, settings: HeadraceSettings | None = None
) -> AsyncIterator[Headrace]:
    """Open the log at `address`, and everything that is built on it, while the block runs.

    `embedded:./data` is a folder on this machine with log and store in one; `kafka://host:9092` is a cluster, and
    `store` is the address of its store. The schema registry is the one in the settings. Without an address the one in
    the settings is used; without settings they are loaded from the environment and the files that it names.
    """
    settings = settings or HeadraceSettings.load()
    address = address or settings.log.address
    settings = settings.model_copy(update={"log": settings.log.model_copy(update={"address": address})})
    async with contextlib.AsyncExitStack() as half_open:
        log = await open_log(address, settings=settings.log)
        half_open.push_async_callback(log.close)
        registry = await open_registry(log=log, settings=settings.registry)
        half_open.push_async_callback(registry.close)
        where = store or _store_of(address, settings)
        opened = Headrace(log, await open_store(where, settings=settings.store) if where else None, registry, settings)
        half_open.pop_all()
    try:
        yield opened
    finally:
        await opened.close()
