"""What only the Cassandra store promises: write times, its tables, what it does when the network fails."""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from cassandra import InvalidRequest
from tests.suites.journal_script import Script

from headrace.config import CassandraStoreSettings, StoreSettings
from headrace.errors import Closed, HeadraceError, TimedOut, Unreachable
from headrace.journal import KeptHeads, replicate_batch
from headrace.model import Event
from headrace.protocol.layout import Generation, Layout
from headrace.services import RunningService
from headrace.store import JournalWrite, Place, RowDeletion, Store, open_store, write_time
from headrace.store.cassandra.address import parse
from headrace.store.cassandra.session import Session
from headrace.store.metrics import REQUESTS
from headrace.store.rows import meta_segment
from headrace.testing.conformance.store_rows import counted
from headrace.testing.conformance.store_setting import deadline, event, events, head, read_rows, replicated, seq_nrs
from headrace.testing.proxy import TcpProxy

pytestmark = pytest.mark.servers

IMPATIENT = StoreSettings(cassandra=CassandraStoreSettings(request_timeout_s=1.5, attempt_timeout_s=0.5))


async def until(is_so: Callable[[], bool], *, within_s: float) -> None:
    is_late = deadline(within_s)
    while not is_so():
        assert not is_late()
        await asyncio.sleep(0.05)


async def test_every_write_carries_its_place_as_write_time(store_address: str, cql: Any) -> None:
    """Rows, heads and pointers: 2^62 + generation * 2^46 + offset, above any clock."""
    store = await open_store(store_address)
    await store.writer.write_rows("times", "id", [event(1, 77, generation=3)])
    await store.writer.write_meta(head("times", "id", 78, generation=3))
    await store.writer.move_replicated(replicated("times", 79, generation=3))
    await store.close()
    keyspace = store_address.rpartition("/")[2]
    asked = {
        77: "SELECT writetime(payload_txt) FROM {}.journal WHERE id = 'id' AND topic = 'times' AND segment = 0",
        78: "SELECT writetime(seq_nr) FROM {}.metajournal WHERE topic = 'times' AND id = 'id' ALLOW FILTERING",
        79: "SELECT writetime(offset) FROM {}.pointer2 WHERE topic = 'times' AND partition = 0",
    }
    for offset, query in asked.items():
        assert (
            cql.execute(query.format(keyspace)).one()[0] == write_time(Place(3, offset)) == 2**62 + 3 * 2**46 + offset
        )


async def test_rows_leave_no_nulls_for_readers_to_skip(store_address: str, cql: Any) -> None:
    """A column that is absent is not written: readers would pass a tombstone for each of them."""
    store = await open_store(store_address)
    await store.writer.write_rows("nulls", "id", events(1, 3))
    await store.close()
    keyspace = store_address.rpartition("/")[2]
    asked = f"SELECT writetime(origin), writetime(payload_bin) FROM {keyspace}.journal"
    found = cql.execute(f"{asked} WHERE id = 'id' AND topic = 'nulls' AND segment = 0").all()
    assert [tuple(row) for row in found] == [(None, None)] * 3


async def test_a_partition_delete_at_a_place_beats_rows_by_the_clock(store_address: str, cql: Any) -> None:
    """What the clock wrote before and after loses to any place; what is above the place stays."""
    store = await open_store(store_address)
    keyspace = store_address.rpartition("/")[2]
    by_clock = (
        f"INSERT INTO {keyspace}.journal (id, topic, segment, seq_nr, timestamp, generation, partition, offset,"
        " log_time, meta_record_id) VALUES ('id', 'clock', 0, %s, 1, 0, 0, 1, 1, uuid())"
    )
    cql.execute(by_clock, (1,))
    await store.writer.delete_rows("clock", "id", [RowDeletion(0, None)], at=Place(0, 0))
    cql.execute(by_clock, (2,))
    await store.writer.write_rows("clock", "id", [event(3, 0), event(4, 1)])
    assert seq_nrs(await read_rows(store, "clock", "id")) == [4]
    await store.close()


async def through(cassandra: RunningService, proxy: TcpProxy, settings: StoreSettings) -> Store:
    return await open_store(f"cassandra://{proxy.address}/exam", settings=settings)


async def test_silence_is_a_time_out_that_says_whether_it_may_have_happened(
    cassandra: RunningService, store_address: str
) -> None:
    """Retried until the deadline, then told; when the network is back the same store goes on."""
    await (await open_store(store_address)).close()
    with TcpProxy(cassandra.host, cassandra.port) as proxy:
        store = await through(cassandra, proxy, IMPATIENT)
        await store.writer.write_rows("silence", "id", [event(1)])
        retried = counted("headrace_store_retries_total")
        proxy.drop()
        with pytest.raises((TimedOut, Unreachable)) as write:
            await store.writer.write_rows("silence", "id", [event(2)])
        assert not write.value.outcome_known
        assert counted("headrace_store_retries_total") > retried
        with pytest.raises((TimedOut, Unreachable)) as read:
            await store.reader.meta("silence", "id")
        assert read.value.outcome_known
        with pytest.raises((TimedOut, Unreachable)) as put:
            await store.settings.put("silence", "x", expected=None)
        assert not put.value.outcome_known
        proxy.restore()
        assert await answered(lambda: read_rows(store, "silence", "id")) in ([event(1)], [event(1), event(2)])
        await store.close()


async def test_a_short_cut_is_bridged_by_retries(cassandra: RunningService, store_address: str) -> None:
    """Connections that were reset are made again within the deadline; the caller notices nothing."""
    await (await open_store(store_address)).close()
    settings = StoreSettings(cassandra=CassandraStoreSettings(request_timeout_s=30, attempt_timeout_s=1))
    with TcpProxy(cassandra.host, cassandra.port) as proxy:
        store = await through(cassandra, proxy, settings)
        proxy.cut()
        writing = asyncio.ensure_future(store.writer.write_rows("cut", "id", events(1, 20)))
        retried = counted("headrace_store_retries_total")
        await until(lambda: counted("headrace_store_retries_total") > retried, within_s=10)
        proxy.restore()
        await writing
        assert await answered(lambda: read_rows(store, "cut", "id")) == events(1, 20)
        await store.close()


async def answered(ask: Callable[[], Any]) -> Any:
    """Ask until somebody answers: the driver takes a moment to trust a node again."""
    is_late = deadline(30)
    while True:
        try:
            return await ask()
        except (TimedOut, Unreachable):
            assert not is_late()


async def test_requests_in_flight_are_bounded_and_all_are_answered(store_address: str) -> None:
    """A thousand questions at once through two slots: each gets its own answer."""
    store = await open_store(
        store_address, settings=StoreSettings(cassandra=CassandraStoreSettings(max_requests_in_flight=2))
    )
    for n in range(10):
        await store.writer.write_meta(head("bounded", f"id-{n}", n))
    found = await asyncio.gather(*(store.reader.meta("bounded", f"id-{n % 10}") for n in range(1000)))
    assert [meta.offset for meta in found if meta] == [n % 10 for n in range(1000)]
    await store.close()


async def test_a_cancelled_caller_leaves_the_store_in_order(store_address: str) -> None:
    """Its answer is dropped when it comes; closing does not wait for ever."""
    store = await open_store(store_address)
    asked = [asyncio.ensure_future(store.reader.meta("cancelled", "id")) for _ in range(50)]
    await asyncio.sleep(0)
    for each in asked:
        each.cancel()
    await asyncio.gather(*asked, return_exceptions=True)
    assert await store.reader.meta("cancelled", "id") is None
    await asyncio.wait_for(store.close(), 20)


async def test_closing_waits_for_answers_still_due(store_address: str) -> None:
    """What was sent before close is answered; the rest is told Closed, and what was acknowledged is there."""
    store = await open_store(store_address)
    due = [asyncio.ensure_future(store.reader.meta("due", "id")) for _ in range(20)]
    writing = [asyncio.ensure_future(store.writer.write_rows("due", f"id-{n}", events(1, 60))) for n in range(20)]
    await asyncio.sleep(0)
    await store.close()
    assert await asyncio.gather(*due) == [None] * 20
    outcomes = await asyncio.gather(*writing, return_exceptions=True)
    assert all(outcome is None or isinstance(outcome, Closed) for outcome in outcomes)
    again = await open_store(store_address)
    for n, outcome in enumerate(outcomes):
        assert outcome is not None or len(await read_rows(again, "due", f"id-{n}")) == 60
    await again.close()


async def test_closing_leaves_no_thread_and_prints_nothing(
    store_address: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """The driver's loop ends with its last timer; its other threads at once. An address nobody serves leaves none."""
    before = set(threading.enumerate())
    store = await open_store(store_address, settings=IMPATIENT)
    await store.reader.topics()
    await store.close()
    with pytest.raises(Unreachable):
        await open_store("cassandra://127.0.0.1:1/ks", settings=IMPATIENT)

    def is_quiet() -> bool:
        left = [each.name for each in set(threading.enumerate()) - before if each.is_alive()]
        return not [name for name in left if not name.startswith("asyncio")]

    await until(is_quiet, within_s=20)
    assert capfd.readouterr() == ("", "")
    assert logging.getLogger("cassandra").handlers


def ids_of_segments(segments: int, *, each: int) -> list[str]:
    """Return ids whose heads lie in as few partitions of the table of heads, in turn."""
    chosen: dict[int, list[str]] = {segment: [] for segment in range(segments)}
    names = (f"id-{n}" for n in itertools.count())
    while any(len(ids) < each for ids in chosen.values()):
        id_ = next(names)
        own = chosen.get(meta_segment(id_, CassandraStoreSettings().meta_segments))
        if own is not None and len(own) < each:
            own.append(id_)
    return [id_ for together in zip(*chosen.values(), strict=True) for id_ in together]


@pytest.mark.parametrize("tags", [(), ("a", "b")], ids=["plain", "tagged"])
async def test_a_batch_of_many_journals_takes_few_requests(store_address: str, tags: tuple[str, ...]) -> None:
    """FP4: small journals share requests for their rows, and their heads share queries and batches."""
    store = await open_store(store_address)
    ids, script, heads = ids_of_segments(2, each=20), Script(f"many-journals-{len(tags)}"), KeptHeads()
    layout = Layout(script.at.topic, "script", (Generation(1),))

    def requests() -> Counter[str]:
        operations = ("read meta", "read metas of", "write meta", "write metas", "write rows")
        return Counter({name: int(REQUESTS.labels("cassandra", name, "done")._value.get()) for name in operations})

    for seq_nr in (1, 2):
        before, taken = requests(), len(script.records)
        for id_ in ids:
            script.append(id_, seq_nr, given=[Event(seq_nr, b"payload", tags=tags)])
        await replicate_batch(store, layout, script.at, script.records[taken:], up_to=script.offset - 1, heads=heads)
        read = {} if seq_nr == 2 else {"read metas of": 1}  # heads are kept
        assert requests() - before == Counter({"write metas": 2, "write rows": 4, **read})
    for id_ in ids:
        assert seq_nrs(await read_rows(store, script.at.topic, id_)) == [1, 2]
    await store.close()


class Answers:
    """Takes the place of the driver's session, and keeps what it answered; it fails for the batches that are chosen."""

    def __init__(self, driver: Any, *, is_failing: Callable[[Any], bool] = lambda _statement: False) -> None:
        self._driver = driver
        self._is_failing = is_failing
        self.futures: list[Any] = []

    def execute_async(self, statement: Any, *arguments: Any, **options: Any) -> Any:
        if self._is_failing(statement):
            raise InvalidRequest("chosen by the test")
        self.futures.append(self._driver.execute_async(statement, *arguments, **options))
        return self.futures[-1]


def journals_of_sizes(topic: str, sizes: Iterable[int]) -> list[JournalWrite]:
    """Return journals with a row or two of the given sizes, plain and others."""
    made = []
    for nr, size in enumerate(sizes):
        columns: dict[str, Any] = {"payload": b"x" * size, "payload_type": "binary", "origin": "o" * 20}
        if nr % 3 == 0:
            columns |= {"tags": ("ä" * 20, "tag"), "headers": {"header": "ü" * 30}, "metadata": '{"ß":1}'}
        rows = [event(1, nr, **columns), *([event(2, nr, **columns)] if nr % 2 else [])]
        made.append(JournalWrite(head(topic, f"jö-{nr}", nr, properties={"é": "è" * 9} if nr % 4 == 0 else {}), rows))
    return made


async def test_no_server_warns_of_batches_that_journals_share(store_address: str) -> None:
    """A server warns of more than ten partitions or 5 KiB, and would do so thousands of times a minute."""
    store = await open_store(store_address)
    session: Any = store.writer._session  # type: ignore[attr-defined]
    session._driver = answers = Answers(session._driver)
    journals = journals_of_sizes("warned-of", [*range(0, 2200, 40), *range(60)])
    await store.writer.write_journals(journals)
    assert [future.warnings for future in answers.futures if future.warnings] == []
    assert len(answers.futures) < len(journals)
    for meta, rows in journals:
        assert await read_rows(store, meta.topic, meta.id) == list(rows)
        assert await store.reader.meta(meta.topic, meta.id) == meta
    await store.close()


async def test_a_journal_whose_rows_failed_gets_no_head(store_address: str) -> None:
    """Rows come before heads. Journals that share a request with one that is refused are written all the same (E8)."""
    store = await open_store(store_address)
    session: Any = store.writer._session  # type: ignore[attr-defined]
    poisoned = {"jö-3", "jö-17"}

    def is_failing(statement: Any) -> bool:
        added = getattr(statement, "_statements_and_parameters", ())
        return any(len(values) > 6 and values[0].decode() in poisoned for _, _, values in added if values[0])

    session._driver = Answers(session._driver, is_failing=is_failing)
    journals = journals_of_sizes("half-failed", [10] * 40)
    with pytest.raises(HeadraceError):
        await store.writer.write_journals(journals)
    found = await store.reader.metas_of("half-failed", [journal.meta.id for journal in journals])
    assert set(found) == {journal.meta.id for journal in journals} - poisoned
    for id_ in found:
        assert await read_rows(store, "half-failed", id_)
    await store.close()


async def test_a_node_that_is_slow_to_answer_is_asked_again_when_a_store_is_opened(cassandra: RunningService) -> None:
    """An attempt without an answer is repeated within the time of a request; an error says how long it waited."""
    host, _, port = cassandra.address.rpartition(":")
    patience = CassandraStoreSettings(attempt_timeout_s=1.0, request_timeout_s=20.0)
    with TcpProxy(host, int(port)) as proxy:
        proxy.hold_answers()
        opening = asyncio.ensure_future(Session.open(parse(f"cassandra://{proxy.address}/slow"), patience))
        await until(lambda: proxy.connections >= 2, within_s=15)  # the first attempt was given up
        proxy.restore()
        session = await opening
        await session.close()
        proxy.hold_answers()
        hurried = patience.model_copy(update={"request_timeout_s": 1.0})
        with pytest.raises(Unreachable, match="connect: no answer within 1 s; nothing was done"):
            await Session.open(parse(f"cassandra://{proxy.address}/slow"), hurried)
