"""One connection to a cluster, for the event loop: requests bounded in number, with a deadline, repeated on trouble."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Iterable, Sequence
from typing import Any, NamedTuple

from cassandra.cluster import ResultSet
from cassandra.policies import FallthroughRetryPolicy

from headrace.config import CassandraStoreSettings
from headrace.errors import Closed
from headrace.runtime import Backoff
from headrace.store.cassandra.addresses import ClusterAddress
from headrace.store.cassandra.binding import Binding
from headrace.store.cassandra.clusters import connect, make_cluster, nodes_by_dc
from headrace.store.cassandra.completions import Completions
from headrace.store.cassandra.faults import DRIVER_ERRORS, explain, is_transient
from headrace.store.metrics import PAGES, REQUEST_SECONDS, REQUESTS, RETRIES

__all__ = ["Page", "Row", "Session"]

Row = tuple[Any, ...]

_WAITS = Backoff(first_s=0.02, limit_s=1.0)
_NEVER_AGAIN = FallthroughRetryPolicy()


class Page(NamedTuple):
    """Rows, and where the next page starts (None: there is none)."""

    rows: Sequence[Row]
    next_state: bytes | None


class Session:
    """Asks the cluster and names what goes wrong."""

    def __init__(self, address: ClusterAddress, settings: CassandraStoreSettings, cluster: Any, driver: Any) -> None:  # noqa: ANN401 - the driver has no types
        self.address = address
        self._settings = settings
        self._cluster = cluster
        self._driver = driver
        self._prepared: dict[str, Binding] = {}
        self._completions = Completions()
        self._free = asyncio.Semaphore(settings.max_requests_in_flight)
        self._active = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._is_closed = False

    @classmethod
    async def open(cls, address: ClusterAddress, settings: CassandraStoreSettings) -> Session:
        """Connect. Raises Unreachable or Forbidden."""
        cluster = make_cluster(address, settings)
        try:
            driver = await asyncio.to_thread(connect, cluster)
        except DRIVER_ERRORS as failure:
            raise explain(
                failure, address.text, "connect", timeout_s=settings.attempt_timeout_s, outcome_known=True
            ) from failure
        return cls(address, settings, cluster, driver)

    async def prepare(self, queries: Iterable[str]) -> None:
        """Make queries known to the cluster; `{keyspace}` in them is ours."""
        await self._in_thread("prepare statements", self._prepare_all, list(queries))

    async def define(self, statement: str) -> None:
        """Run a statement that changes the schema, and wait until all nodes know; repeatable ones only."""
        text = statement.replace("{keyspace}", self.address.keyspace)
        await self._in_thread("change the schema", self._define, text)

    async def ask_once(self, text: str, values: Sequence[object] = ()) -> Sequence[Row]:
        """Ask something that was not prepared."""
        self.check()
        found = await self._attempt(_Request("read the schema", text, tuple(values)), self._settings.attempt_timeout_s)
        return found.rows

    def bind(self, query: str, values: Sequence[object]) -> Any:  # noqa: ANN401
        """Return a prepared query with its values."""
        return self._prepared[query].bound(values)

    def fill(self, batch: Any, query: str, key: Sequence[object], rows: Iterable[Sequence[object]]) -> None:  # noqa: ANN401
        """Add a prepared query to a batch, once for each row; the values of all begin with `key`."""
        self._prepared[query].fill(batch, key, rows)

    async def read(self, operation: str, query: str, values: Sequence[object]) -> Sequence[Row]:
        """Return all rows of a query whose answer fits one page."""
        return (await self._ask(_Request(operation, self.bind(query, values)))).rows

    async def pages(
        self, table: str, query: str, values: Sequence[object], *, page_size: int
    ) -> AsyncGenerator[Sequence[Row], None]:
        """Yield the pages of a query, each fetched when it is asked for; the empty ones are left out."""
        state: bytes | None = None
        while True:
            bound = self.bind(query, values)
            bound.fetch_size = page_size
            page = await self._ask(_Request(f"read {table}", bound, paging_state=state))
            PAGES.labels("cassandra", table).inc()
            if page.rows:
                yield page.rows
            state = page.next_state
            if state is None:
                return

    async def write(self, operation: str, statement: Any) -> None:  # noqa: ANN401
        """Do a write that may be repeated: all that carry their place do."""
        await self._ask(_Request(operation, statement, is_write=True))

    async def decide(self, operation: str, query: str, values: Sequence[object]) -> Row:
        """Run a lightweight transaction and return its answer, [applied] first.

        Not repeated, by us or by the driver: the first attempt may have won, and the second would say that it lost.
        """
        statement = self.bind(query, values)
        statement.is_idempotent = False
        statement.retry_policy = _NEVER_AGAIN
        request = _Request(operation, statement, is_write=True, is_repeatable=False)
        return (await self._ask(request)).rows[0]

    def nodes_by_dc(self) -> dict[str, int]:
        """Return how many nodes each data centre has."""
        return nodes_by_dc(self._cluster)

    def check(self) -> None:
        """Raise Closed after the store was closed."""
        if self._is_closed:
            raise Closed(f"store {self.address.text}")

    async def close(self) -> None:
        """Wait for the answers still due, then let go of connections and threads."""
        if self._is_closed:
            return
        self._is_closed = True
        await self._idle.wait()
        await asyncio.to_thread(self._cluster.shutdown)

    async def _ask(self, request: _Request) -> Page:
        self.check()
        started_s, outcome = time.perf_counter(), "failed"
        self._active += 1
        self._idle.clear()
        try:
            async with self._free:
                page = await self._until_deadline(request)
            outcome = "done"
            return page
        finally:
            self._active -= 1
            if not self._active:
                self._idle.set()
            REQUESTS.labels("cassandra", request.operation, outcome).inc()
            REQUEST_SECONDS.labels("cassandra", request.operation).observe(time.perf_counter() - started_s)

    async def _until_deadline(self, request: _Request) -> Page:
        timeout_s = self._settings.request_timeout_s
        deadline_s = time.monotonic() + timeout_s
        attempt = 0
        while True:
            left_s = deadline_s - time.monotonic()
            try:
                return await self._attempt(request, min(left_s, self._settings.attempt_timeout_s))
            except DRIVER_ERRORS as failure:
                attempt += 1
                wait_s = _WAITS.delay_s(attempt)
                if not (request.is_repeatable and is_transient(failure)) or time.monotonic() + wait_s > deadline_s:
                    raise self._named(failure, request, timeout_s) from failure
            RETRIES.labels("cassandra", request.operation).inc()
            await asyncio.sleep(wait_s)

    async def _attempt(self, request: _Request, timeout_s: float) -> Page:
        answer: asyncio.Future[Sequence[Row]] = asyncio.get_running_loop().create_future()
        response = self._driver.execute_async(
            request.statement, request.values, timeout=timeout_s, paging_state=request.paging_state
        )
        done = self._completions
        response.add_callbacks(done.succeeded, done.failed, callback_args=(answer,), errback_args=(answer,))
        rows = await answer
        return Page(rows or (), ResultSet(response, rows).paging_state)

    def _named(self, failure: BaseException, request: _Request, timeout_s: float) -> BaseException:
        return explain(
            failure, self.address.text, request.operation, timeout_s=timeout_s, outcome_known=not request.is_write
        )

    async def _in_thread(self, operation: str, function: Any, argument: Any) -> None:  # noqa: ANN401
        self.check()
        try:
            await asyncio.to_thread(function, argument)
        except DRIVER_ERRORS as failure:
            timeout_s = self._settings.request_timeout_s
            raise explain(failure, self.address.text, operation, timeout_s=timeout_s, outcome_known=False) from failure

    def _prepare_all(self, queries: Sequence[str]) -> None:
        for query in queries:
            prepared = self._driver.prepare(query.replace("{keyspace}", self.address.keyspace))
            prepared.is_idempotent = True
            self._prepared[query] = Binding(prepared)

    def _define(self, text: str) -> None:
        self._driver.execute(text, timeout=self._settings.request_timeout_s * 3)


class _Request(NamedTuple):
    """Something to ask, and how."""

    operation: str
    statement: Any
    values: tuple[object, ...] | None = None
    paging_state: bytes | None = None
    is_write: bool = False
    is_repeatable: bool = True
