"""The session with a cluster, for use from the event loop: encryption, login, limits, statements and their answers."""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Hashable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

from cassandra import ConsistencyLevel
from cassandra.auth import PlainTextAuthProvider
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, ResultSet
from cassandra.connection import DefaultEndPoint
from cassandra.policies import (
    ConstantSpeculativeExecutionPolicy,
    DCAwareRoundRobinPolicy,
    NoSpeculativeExecutionPolicy,
    TokenAwarePolicy,
)
from cassandra.query import tuple_factory

from headrace.config import CassandraStoreSettings
from headrace.errors import BadArgument, Closed
from headrace.store.cassandra.address import ClusterAddress
from headrace.store.cassandra.faults import DRIVER_ERRORS, explain, is_late
from headrace.store.cassandra.requests import Binding
from headrace.store.cassandra.retries import NEVER_AGAIN, with_retries
from headrace.store.metrics import PAGES, REQUEST_SECONDS, REQUESTS

__all__ = ["Completions", "Page", "Row", "Session", "connect", "each_of", "make_cluster", "nodes_by_dc", "tls_context"]

_SECTION = "store.cassandra"


def tls_context(settings: CassandraStoreSettings) -> ssl.SSLContext | None:
    """Return the TLS context; None if TLS is off. Raises BadArgument for files that are missing or not PEM."""
    if not settings.tls:
        return None
    context = _trusting(settings)
    if settings.certificate_location is not None:
        _add_certificate(context, settings)
    return context


def _trusting(settings: CassandraStoreSettings) -> ssl.SSLContext:
    try:
        # The content wins over the file: a worker gets the content, and its machine may not have the file.
        file = None if settings.ca_pem else settings.ca_location
        return ssl.create_default_context(cafile=file, cadata=settings.ca_pem)
    except (OSError, ValueError) as error:  # ssl's errors are OSErrors
        where = "ca_pem" if settings.ca_pem else "ca_location"
        raise BadArgument(f"{_SECTION}.{where}", settings.ca_location, f"it must be certificates: {error}") from error


def _add_certificate(context: ssl.SSLContext, settings: CassandraStoreSettings) -> None:
    # An empty password instead of none: without one OpenSSL would ask at the terminal.
    password = settings.key_password.get_secret_value() if settings.key_password else ""
    try:
        context.load_cert_chain(settings.certificate_location or "", settings.key_location, password)
    except (OSError, ValueError) as error:
        files = (settings.certificate_location, settings.key_location)
        rule = f"they must be a certificate and its key as PEM, and key_password must open it: {error}"
        raise BadArgument(f"{_SECTION}.certificate_location and key_location", files, rule) from error


# Version 5 adds checksums that Python is slow at; all of Cassandra 3.11 to 5 speak 4.
_PROTOCOL = 4
_HEARTBEAT_S = 5
_OTHER_NODES = 2

# Without a handler of its own the driver's warnings would go to stderr of programs that configure no logging.
logging.getLogger("cassandra").addHandler(logging.NullHandler())


def make_cluster(address: ClusterAddress, settings: CassandraStoreSettings) -> Any:  # noqa: ANN401 - the driver has no types
    """Return the driver's Cluster, not connected yet."""
    nearest = DCAwareRoundRobinPolicy(settings.local_dc or "")
    profile = ExecutionProfile(
        # Shuffled, because otherwise every attempt at a row goes to the same replica first, a frozen one included.
        load_balancing_policy=TokenAwarePolicy(nearest, shuffle_replicas=True),
        speculative_execution_policy=_speculation(settings),
        consistency_level=ConsistencyLevel.name_to_value[settings.consistency],
        serial_consistency_level=ConsistencyLevel.LOCAL_SERIAL,
        request_timeout=settings.attempt_timeout_s,
        row_factory=tuple_factory,
    )
    return Cluster(
        contact_points=[DefaultEndPoint(host, port) for host, port in address.contacts],
        port=address.contacts[0][1],
        auth_provider=_login(settings),
        ssl_context=tls_context(settings),
        execution_profiles={EXEC_PROFILE_DEFAULT: profile},
        protocol_version=_PROTOCOL,
        connect_timeout=settings.attempt_timeout_s,
        control_connection_timeout=settings.attempt_timeout_s,
        max_schema_agreement_wait=settings.request_timeout_s,
        # A silent node counts as down after these; by default it would be asked first for a minute.
        idle_heartbeat_interval=_HEARTBEAT_S,
        idle_heartbeat_timeout=settings.attempt_timeout_s,
    )


def nodes_by_dc(cluster: Any) -> dict[str, int]:  # noqa: ANN401
    """Return how many nodes each data centre has, as far as the driver knows."""
    return dict(Counter(host.datacenter for host in cluster.metadata.all_hosts() if host.datacenter))


def _speculation(settings: CassandraStoreSettings) -> Any:  # noqa: ANN401
    """Ask a second and a third node when the first is slow; the driver does so only for idempotent statements."""
    if settings.speculate_after_s is None:
        return NoSpeculativeExecutionPolicy()
    return ConstantSpeculativeExecutionPolicy(settings.speculate_after_s, _OTHER_NODES)


def connect(cluster: Any) -> Any:  # noqa: ANN401
    """Return the driver's Session; blocks. If the cluster does not answer, no thread is left behind."""
    try:
        return cluster.connect()
    except BaseException:
        cluster.shutdown()
        raise


def _login(settings: CassandraStoreSettings) -> Any:  # noqa: ANN401
    if settings.username is None:
        return None
    password = settings.password.get_secret_value() if settings.password else ""
    return PlainTextAuthProvider(settings.username, password)


class Completions:
    """Hands answers to the event loop; answers that arrive together wake it once."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ready: deque[tuple[asyncio.Future[Any], Any, BaseException | None]] = deque()
        self._is_woken = False

    def succeeded(self, rows: Any, future: asyncio.Future[Any]) -> None:  # noqa: ANN401 - the driver has no types
        """Take an answer, in the driver's thread."""
        self._post(future, rows, None)

    def failed(self, error: BaseException, future: asyncio.Future[Any]) -> None:
        """Take a failure, in the driver's thread."""
        self._post(future, None, error)

    def _post(self, future: asyncio.Future[Any], rows: Any, error: BaseException | None) -> None:  # noqa: ANN401
        self._ready.append((future, rows, error))
        if self._is_woken:
            return
        self._is_woken = True
        try:
            self._loop.call_soon_threadsafe(self._deliver)
        except RuntimeError:
            return  # the loop was closed before the session: no caller waits any more

    def _deliver(self) -> None:
        self._is_woken = False  # first: what is posted from here on wakes the loop again
        while self._ready:
            future, rows, error = self._ready.popleft()
            if future.done():
                continue  # the caller was cancelled
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(rows)


Row = tuple[Any, ...]


class Page(NamedTuple):
    """Rows, and the start of the next page; None after the last page."""

    rows: Sequence[Row]
    next_state: bytes | None


_AT_ONCE = 64

T = TypeVar("T")


async def each_of(do: Callable[[T], Coroutine[Any, Any, None]], items: Iterable[T]) -> list[Exception]:
    """Do the work for each item, some at a time; return the failures after all have ended."""
    waiting = iter(items)
    failures: list[Exception] = []

    async def work() -> None:
        for item in waiting:
            try:
                await do(item)
            except Exception as failure:
                failures.append(failure)

    await asyncio.gather(*(work() for _ in range(_AT_ONCE)))
    return failures


class Session:
    """Runs statements and turns the driver's errors into ours."""

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
        self._metrics: dict[tuple[str, str], tuple[Any, Any]] = {}

    @classmethod
    async def open(cls, address: ClusterAddress, settings: CassandraStoreSettings) -> Session:
        """Connect; a node that is slow to answer is asked again. Raises Unreachable or Forbidden."""
        last_attempt_s = time.monotonic() + settings.request_timeout_s - settings.attempt_timeout_s
        while True:
            cluster = make_cluster(address, settings)
            try:
                return cls(address, settings, cluster, await asyncio.to_thread(connect, cluster))
            except DRIVER_ERRORS as failure:
                if is_late(failure) and time.monotonic() < last_attempt_s:
                    continue
                raise explain(
                    failure, address.text, "connect", timeout_s=settings.attempt_timeout_s, outcome_known=True
                ) from failure

    async def prepare(self, queries: Iterable[str]) -> None:
        """Prepare queries; `{keyspace}` in them is replaced."""
        await self._in_thread("prepare statements", self._prepare_all, list(queries))

    async def define(self, statement: str) -> None:
        """Run a statement that changes the schema, and wait until all nodes agree; it must be safe to repeat."""
        text = statement.replace("{keyspace}", self.address.keyspace)
        await self._in_thread("change the schema", self._define, text)

    async def ask_once(self, text: str, values: Sequence[object] = ()) -> Sequence[Row]:
        """Run a statement that was not prepared."""
        self.check()
        found = await self._attempt(_Request("read the schema", text, tuple(values)), self._settings.attempt_timeout_s)
        return found.rows

    def bind(self, query: str, values: Sequence[object]) -> Any:  # noqa: ANN401
        """Return a prepared query with its values."""
        return self._prepared[query].bound(values)

    def fill(self, batch: Any, query: str, key: Sequence[object], rows: Iterable[Sequence[object]]) -> None:  # noqa: ANN401
        """Add a prepared query to a batch, once for each row; the values of all begin with `key`."""
        self._prepared[query].fill(batch, key, rows)

    def fill_encoded(self, batch: Any, query: str, key: Sequence[object], rows: Iterable[list[object]]) -> None:  # noqa: ANN401
        """Do the same with rows whose values are encoded already."""
        self._prepared[query].fill_encoded(batch, key, rows)

    def nodes_of(self, query: str, key: Sequence[object]) -> Hashable | None:
        """Return the nodes that hold a partition, to be compared; None if the driver does not know them.

        The values of the query begin with `key`, the partition's key.
        """
        routing_key = self._prepared[query].routing_key(key)
        if routing_key is None:
            return None
        return frozenset(self._cluster.metadata.get_replicas(self.address.keyspace, routing_key)) or None

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
        """Run a write that may be repeated, as every write with a place may."""
        await self._ask(_Request(operation, statement, is_write=True))

    async def decide(self, operation: str, query: str, values: Sequence[object]) -> Row:
        """Run a lightweight transaction and return its answer, [applied] first.

        It is never retried: the first attempt may have won, and the second would report that it lost.
        """
        statement = self.bind(query, values)
        statement.is_idempotent = False
        statement.retry_policy = NEVER_AGAIN
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
        """Wait for pending answers, then close connections and threads."""
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
            self._count(request.operation, outcome, time.perf_counter() - started_s)

    def _count(self, operation: str, outcome: str, took_s: float) -> None:
        """Count a request; the metrics of each operation are looked up once."""
        metrics = self._metrics.get((operation, outcome))
        if metrics is None:
            counted = REQUESTS.labels("cassandra", operation, outcome)
            metrics = self._metrics[operation, outcome] = (counted, REQUEST_SECONDS.labels("cassandra", operation))
        metrics[0].inc()
        metrics[1].observe(took_s)

    async def _until_deadline(self, request: _Request) -> Page:
        try:
            return await with_retries(
                partial(self._attempt, request),
                self._settings,
                operation=request.operation,
                is_repeatable=request.is_repeatable,
            )
        except DRIVER_ERRORS as failure:
            raise self._named(failure, request, self._settings.request_timeout_s) from failure

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
    """A statement and the options to run it with."""

    operation: str
    statement: Any
    values: tuple[object, ...] | None = None
    paging_state: bytes | None = None
    is_write: bool = False
    is_repeatable: bool = True
