"""The bulk load of a state: the rows of a frame become records of its changelog topic.

Each partition has one task, which becomes the partition's owner as any node would: it waits until the owner before has
released the partition or its lease is over, takes the transactional id, and writes its Epoch. From then on nobody else
can write. So a load waits, and gives up, while the keyspace is not paused. At its end the task releases the partition.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.cluster import OwnedPartition, PartitionTakeover, ensure_lease_topic, open_coordinator
from headrace.config import HeadraceSettings
from headrace.errors import BadArgument
from headrace.keyspace import REPLIES, Keyspace, change_phase, specs_of
from headrace.log import Log
from headrace.model import TopicPartition, partition_of
from headrace.pipeline.jobs.job_reports import REPORT_COLUMNS, PartitionReport, report_batch, reports_of
from headrace.pipeline.spark.endpoints import Endpoints
from headrace.pipeline.spark.process import log_of, one_line, run
from headrace.pipeline.spark.session import provide_interpreter
from headrace.pipeline.tables.state_frames import is_codec, is_json, key_type
from headrace.pipeline.topics.avro_write import ColumnEncoding, encoded
from headrace.serde import BlockingRegistry
from headrace.state import OrderedKeys, StateSpec, StateWrite, ensure_changelog, new_record

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

__all__ = ["LoadReport", "LoadSummary", "StateGroup", "StateLoad", "load_keyspace", "load_state"]

_RECORDS_AT_ONCE = 1000
_BYTES_AT_ONCE = 1024 * 1024
_COLUMNS = ("key", "value", "ttl_ms")


class LoadReport(PartitionReport, frozen=True, kw_only=True):
    """The report of the load of one partition."""

    records: int = 0


@dataclass(frozen=True, slots=True)
class LoadSummary:
    """The result of a load: the records that were written, of which a row without a value is a deletion."""

    records: int
    partitions: int


class StateGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Who owns the state: the prefix of its transactional ids, the cluster's id, the changelogs of the group in order.

    These must be as at the nodes that own the state otherwise. The first changelog names the partitions. `lease_s` is
    how long the load's own leases are; it waits for those of others by the length that the log names.
    """

    prefix: str
    cluster_id: str
    changelogs: tuple[str, ...]
    lease_s: float = 0.5


def load_state(
    frame: DataFrame,
    endpoints: Endpoints,
    state: StateSpec[Any, Any],
    group: StateGroup,
    *,
    registry: BlockingRegistry | None = None,
    timeout_s: float = 30.0,
) -> LoadSummary:
    """Write the rows of a frame as the values of a state, while the keyspace is paused.

    Columns: `key` and `value`, of the state's types (as `state_frame` has them); a row without a value deletes the key;
    optionally `ttl_ms`. A key may come once. A partition whose owner does not release it within `timeout_s` is not
    written. A load that failed may have written some of its rows; running it again writes all of them again, to the
    same result. Raises BadArgument, WrongStateTopic, IncompatibleSchema, and OperationFailed for what happened in a
    task.
    """
    provide_interpreter(frame.sparkSession)
    _check_state(frame, state, group)
    run(_ensure(endpoints, state, group))
    keyed = frame.withColumn("key", _keys(frame, state))
    _check_once(keyed, state)
    flat = keyed.selectExpr("key.bytes AS key", "key.partition AS partition", "value", _ttl(frame))
    rows = _values(flat, state, registry)
    task = LoadTask(endpoints.pack(), state.topic, group, state.longest_ttl_ms, timeout_s)
    tasks = rows.select("partition", "key", "value", "ttl_ms").repartitionById(state.partitions, "partition")
    reports = reports_of(tasks.mapInArrow(task, REPORT_COLUMNS), LoadReport, "loading")
    return LoadSummary(sum(report.records for report in reports), len(reports))


def load_keyspace(
    frame: DataFrame,
    endpoints: Endpoints,
    keyspace: type[Keyspace],
    state: str,
    *,
    settings: HeadraceSettings | None = None,
    registry: BlockingRegistry | None = None,
    timeout_s: float = 60.0,
) -> LoadSummary:
    """Write the rows of a frame as the values of a keyspace's state: `load_state` between a pause and a resume.

    The keyspace was served before, so that it has a layout; its callers wait meanwhile. `settings` name the cluster.
    If the load fails, the keyspace stays paused, because some of the rows may be written: run it again, or resume it.
    """
    settings = settings or HeadraceSettings.load()
    specs, group = run(_paused(endpoints, keyspace, settings))
    if state not in specs or state == REPLIES:
        run(_resumed(endpoints, keyspace, settings))
        raise BadArgument("state", state, f"keyspace {keyspace.spec.name!r} has {sorted(keyspace.spec.states)}")
    done = load_state(frame, endpoints, specs[state], group, registry=registry, timeout_s=timeout_s)
    run(_resumed(endpoints, keyspace, settings))
    return done


async def _paused(
    endpoints: Endpoints, keyspace: type[Keyspace], settings: HeadraceSettings
) -> tuple[dict[str, StateSpec[Any, Any]], StateGroup]:
    """Pause a keyspace; return its states and who owns them."""
    spec, cluster = keyspace.spec, settings.cluster
    log = await log_of(endpoints)
    coordinator = await open_coordinator(cluster.coordinator or endpoints.log, settings=settings)
    try:
        cluster_id = (await coordinator.fresh_view()).cluster_id
    finally:
        await coordinator.close()
    layout = await change_phase(log, cluster.name, spec.name, "paused")
    specs = specs_of(spec, layout, replies_kept_s=settings.keyspace.replies_kept_s)
    changelogs = tuple(each.topic for each in specs.values() if not each.is_external)
    return specs, StateGroup(prefix=cluster.name, cluster_id=cluster_id, changelogs=changelogs)


async def _resumed(endpoints: Endpoints, keyspace: type[Keyspace], settings: HeadraceSettings) -> None:
    await change_phase(await log_of(endpoints), settings.cluster.name, keyspace.spec.name, "serving")


def _check_state(frame: DataFrame, state: StateSpec[Any, Any], group: StateGroup) -> None:
    if state.is_external:
        raise BadArgument("state", state.name, f"topic {state.topic!r} belongs to others, it is only read")
    if state.topic not in group.changelogs:
        raise BadArgument("group", group.changelogs, f"the changelog of the state, {state.topic!r}, is one of them")
    if state.unique:
        raise BadArgument("state", state.name, "a load can't check unique values; write through the state instead")
    for name in frame.columns:
        if name not in _COLUMNS:
            raise BadArgument("frame", name, "its columns are key, value, and maybe ttl_ms; select those")
    if state.ttl_of is not None and "ttl_ms" not in frame.columns:
        raise BadArgument("frame", frame.columns, "the state has a time to live for each value; give a column ttl_ms")
    types = dict(frame.dtypes)
    expected = key_type(state.key).replace(" ", "").replace("timestamp_ltz", "timestamp")
    if types.get("key") != expected:
        raise BadArgument("column key", types.get("key"), f"the state's keys need a column of {expected}")
    if "value" not in types:
        raise BadArgument("column value", None, "it must be there")


async def _ensure(endpoints: Endpoints, state: StateSpec[Any, Any], group: StateGroup) -> None:
    log = await log_of(endpoints)
    await ensure_changelog(log.admin, state.topic, partitions=state.partitions, config=state.config)
    await ensure_lease_topic(log, group.prefix)


def _keys(frame: DataFrame, state: StateSpec[Any, Any]) -> Any:  # noqa: ANN401 - a Column
    from pyspark.sql import functions as f

    return f.udf(StateKeyRouter(state.key, state.partitions), "struct<bytes: binary, partition: int>", useArrow=False)(
        "key"
    )


def _check_once(keyed: DataFrame, state: StateSpec[Any, Any]) -> None:
    twice = keyed.groupBy("key.bytes").count().where("count > 1").limit(1).collect()
    if twice:
        key = OrderedKeys(state.key).decode(bytes(twice[0][0]))
        raise BadArgument("frame", key, f"this key comes {twice[0][1]} times; which value is the newest can't be known")


def _ttl(frame: DataFrame) -> str:
    return f"CAST({'ttl_ms' if 'ttl_ms' in frame.columns else 'NULL'} AS BIGINT) AS ttl_ms"


def _values(frame: DataFrame, state: StateSpec[Any, Any], registry: BlockingRegistry | None) -> DataFrame:
    """Return the frame with values as the state's codec writes them. Raises BadArgument."""
    kind, column = state.value, dict(frame.dtypes)["value"]
    if kind not in (str, bytes, int) and not is_json(kind) and not is_codec(kind):
        if registry is None:
            raise BadArgument("registry", None, f"the values of {state.name!r} are Avro; give the registry for them")
        return encoded(frame, state.topic, ColumnEncoding(registry, kind))[0]
    if column == "binary" and (kind is bytes or is_codec(kind)):
        return frame  # a codec of the application has encoded them
    if kind is str and column == "string":
        expression = "CAST(value AS BINARY)"
    elif kind is int and column in ("bigint", "int", "smallint", "tinyint"):
        expression = "unhex(lpad(hex(CAST(value AS BIGINT)), 16, '0'))"
    elif is_json(kind) and column.startswith(("struct", "map", "array")):
        expression = "CAST(to_json(value) AS BINARY)"
    else:
        raise BadArgument("column value", column, f"the values of state {state.name!r} are {kind!r}")
    return frame.selectExpr("key", "partition", f"{expression} AS value", "ttl_ms")


class StateKeyRouter:
    """Encodes keys, and finds their partitions. It is a class of this module, so that it is pickled by name."""

    def __init__(self, kind: Any, partitions: int) -> None:  # noqa: ANN401
        self._kind = kind
        self._partitions = partitions

    def __call__(self, value: Any) -> tuple[bytes, int]:  # noqa: ANN401
        """Return the key's bytes and its partition. Raises NotStorable for a missing key."""
        keys = OrderedKeys(self._kind)
        kinds = self._kind.__args__ if keys.is_compound else (self._kind,)
        given = tuple(value) if keys.is_compound and value is not None else (value,)
        parts = tuple(_key_part(part, kind) for part, kind in zip(given, kinds, strict=True))
        key: Any = parts if keys.is_compound else parts[0]
        return keys.encode(key), partition_of(keys.routing_bytes(key), self._partitions)


def _key_part(value: Any, kind: type) -> Any:  # noqa: ANN401
    """Return what Spark hands out as the state's own type."""
    if kind is uuid.UUID and isinstance(value, str):
        return uuid.UUID(value)
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, datetime) and value.tzinfo is None:
        return value.replace(tzinfo=UTC)
    return value


class LoadTask:
    """Writes the rows of one partition, and reports. It is a class of this module, so that it is pickled by name."""

    def __init__(
        self, endpoints: str, topic: str, group: StateGroup, longest_ttl_ms: int | None, timeout_s: float
    ) -> None:
        self._endpoints = endpoints
        self._topic = topic
        self._group = group
        self._longest_ttl_ms = longest_ttl_ms
        self._timeout_s = timeout_s

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield one report if there are rows. An error is part of the report, so that other tasks can finish."""
        started_s = time.perf_counter()
        first = next((batch for batch in batches if batch.num_rows), None)
        if first is None:
            return
        at = TopicPartition(self._topic, first.column("partition")[0].as_py())
        writes = (write for batch in _chain(first, batches) for write in self._writes(batch))
        report = LoadReport(topic=at.topic, partition=at.partition)
        try:
            for done in self._load(at, writes):
                report = done
        except Exception as error:
            report = msgspec.structs.replace(report, error=one_line(error))
        yield report_batch(msgspec.structs.replace(report, took_s=time.perf_counter() - started_s))

    def _load(self, at: TopicPartition, writes: Iterator[tuple[bytes, StateWrite]]) -> Iterator[LoadReport]:
        """Yield what was written so far. Rows are taken in Spark's thread, so that the loop can keep the lease."""
        loading = run(StateLoad.begin(Endpoints.unpack(self._endpoints), self._group, at, timeout_s=self._timeout_s))
        written = 0
        try:
            for some in _batches(writes):
                run(loading.write(some))
                written += len(some)
                yield LoadReport(topic=at.topic, partition=at.partition, records=written)
            run(loading.release())
        finally:
            run(loading.close())

    def _writes(self, batch: pa.RecordBatch) -> Iterator[tuple[bytes, StateWrite]]:
        for row in batch.to_pylist():
            ttl_ms, longest = row["ttl_ms"], self._longest_ttl_ms
            if ttl_ms is not None and longest is not None and ttl_ms > longest:
                raise BadArgument("ttl_ms", ttl_ms, f"the longest in this state is {longest}; declare a longer one")
            is_due = ttl_ms is not None and ttl_ms <= 0
            yield row["key"], StateWrite(None) if is_due else StateWrite(row["value"], ttl_ms)


def _chain(first: pa.RecordBatch, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield first
    yield from batches


class StateLoad:
    """Owns one partition for as long as it takes to write its records."""

    def __init__(self, log: Log, group: StateGroup, at: TopicPartition) -> None:
        changelogs = tuple(TopicPartition(topic, at.partition) for topic in group.changelogs)
        self._at = at
        self._stamp_ms = 0
        self._takeover = PartitionTakeover(
            log,
            OwnedPartition(group.prefix, changelogs),
            group.cluster_id,
            name="load",
            waits_for="is the keyspace paused?",
            lease_s=group.lease_s,
        )

    @classmethod
    async def begin(cls, endpoints: Endpoints, group: StateGroup, at: TopicPartition, *, timeout_s: float) -> StateLoad:
        """Become the owner. Raises TimedOut if the owner before does not release the partition in time."""
        loading = cls(await log_of(endpoints), group, at)
        try:
            await loading.take_over(timeout_s=timeout_s)
        except BaseException:
            await loading.close()
            raise
        return loading

    async def take_over(self, *, timeout_s: float) -> None:
        """Wait until the partition is ours. Raises TimedOut, and what ends an owner, as ForeignCluster."""
        await self._takeover.take_over(timeout_s=timeout_s)
        self._stamp_ms = await self._takeover.last_time_ms()

    async def write(self, writes: Sequence[tuple[bytes, StateWrite]]) -> None:
        """Write values in one transaction. Raises NotPartitionOwner, TransactionFailed, RecordTooLarge."""
        self._stamp_ms = max(self._stamp_ms, time.time_ns() // 1_000_000)
        await self._takeover.commit([new_record(self._at, *each, timestamp_ms=self._stamp_ms) for each in writes])

    async def release(self) -> None:
        """Give the partition up, so that the next owner need not wait."""
        await self._takeover.release()

    async def close(self) -> None:
        """Stop; the lease of a partition that was not released expires."""
        await self._takeover.close()


def _batches(writes: Iterator[tuple[bytes, StateWrite]]) -> Iterator[list[tuple[bytes, StateWrite]]]:
    some: list[tuple[bytes, StateWrite]] = []
    size_bytes = 0
    for key, write in writes:
        some.append((key, write))
        size_bytes += len(write.value or b"")
        if len(some) >= _RECORDS_AT_ONCE or size_bytes >= _BYTES_AT_ONCE:
            yield some
            some, size_bytes = [], 0
    if some:
        yield some
