"""Journals under random use, held against a plain dict of lists: one hypothesis state machine for all tiers."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.suites.journal_faults import RepeatingLog
from tests.suites.journal_races import Model, RaceRules
from tests.suites.journal_setting import new_topic, read, replicate

from headrace.config import EmbeddedLogSettings, EmbeddedStoreSettings, LogSettings, StoreSettings
from headrace.errors import JournalTopicExpires, WrongSeqNr
from headrace.journal import JOURNAL_TOPIC, HeadCache, Journal, Topology, grow_topic
from headrace.journal.retention import remove_replicated
from headrace.log import Log, ensure_topic, open_log
from headrace.model import Event, TopicConfig, TopicPartition
from headrace.store import Store, open_store

__all__ = ["JournalMachine"]

T = TypeVar("T")

LEASE_S = 0.01
MOST_PARTITIONS = 5

ids = st.sampled_from(["a", "b", "ключ"])
payloads = st.one_of(
    st.none(),
    st.binary(max_size=5),
    st.text(max_size=5),
    st.dictionaries(st.text(max_size=2), st.integers(0, 9), max_size=2),
)


class JournalMachine(RaceRules, RuleBasedStateMachine):
    """Appends, deletes, purges, replication of a part, restarts, records delivered twice; retention, growth, losses.

    A tier says where it is.
    """

    def make_addresses(self) -> tuple[str, str]:
        """Return where the log and the store are."""
        raise NotImplementedError("override make_addresses")

    def empty_store_address(self) -> str:
        """Return where a store is that holds nothing."""
        raise NotImplementedError("override empty_store_address")

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.model: dict[str, Model] = {}
        self.partitions = 1
        self.is_log_whole = True

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(asyncio.wait_for(coroutine, 60))

    @initialize(is_repeated=st.booleans(), most=st.sampled_from([1, 3, 1000]), is_expiring=st.booleans())
    def start(self, is_repeated: bool, most: int, is_expiring: bool) -> None:
        self.addresses = self.make_addresses()
        self.is_repeated = is_repeated
        self.most = most
        self.run(self.open())
        config = TopicConfig(retention_ms=1) if is_expiring else JOURNAL_TOPIC
        self.topic = self.run(new_topic(self.log, config=config))
        self.use()
        if is_expiring:
            self.begin_with_a_topic_that_expires()

    def begin_with_a_topic_that_expires(self) -> None:
        """A topic that was created with a retention is refused until that is changed."""
        with pytest.raises(JournalTopicExpires):
            self.run(self.journal.append("a", [Event(1)]))
        self.run(ensure_topic(self.log.admin, self.topic, partitions=1, config=JOURNAL_TOPIC))

    @rule(
        id_=ids, sizes=st.lists(st.lists(payloads, min_size=1, max_size=3), min_size=1, max_size=3), gap=st.booleans()
    )
    def append(self, id_: str, sizes: list[list[Any]], gap: bool) -> None:
        for given in sizes:
            model = self.model.setdefault(id_, Model())
            first = model.pointer + 1 + (2 if gap else 0)
            events = [Event(first + n, payload) for n, payload in enumerate(given)]
            self.run(self.journal.append(id_, events))
            model.events += [(event.seq_nr, event.payload) for event in events]
            model.pointer = events[-1].seq_nr

    @rule(id_=ids, off_by=st.sampled_from([-1, 0, 0, 0, 1]))
    def append_expecting(self, id_: str, off_by: int) -> None:
        pointer = self.model[id_].pointer if id_ in self.model else 0
        expected = max(0, pointer + off_by)
        event = Event(max(expected, pointer) + 1, "checked")
        if expected != pointer:
            with pytest.raises(WrongSeqNr) as refused:
                self.run(self.journal.append(id_, [event], expected=expected))
            assert (refused.value.expected, refused.value.actual) == (expected, pointer)
            return
        self.run(self.journal.append(id_, [event], expected=expected))
        model = self.model.setdefault(id_, Model())
        model.events.append((event.seq_nr, event.payload))
        model.pointer = event.seq_nr

    @rule(id_=ids)
    def append_void(self, id_: str) -> None:
        """Another instance writes a number that is taken."""
        if id_ in self.model and self.model[id_].pointer > 0:
            other = Journal(self.seen, self.store, self.topic, cache=None, lease_s=LEASE_S)
            self.run(other.append(id_, [Event(self.model[id_].pointer, "void")]))

    @rule(id_=ids, to=st.integers(1, 12))
    def delete(self, id_: str, to: int) -> None:
        written = self.run(self.journal.delete(id_, to=to))
        assert (written is None) == (id_ not in self.model)
        if id_ in self.model:
            model = self.model[id_]
            model.events = [(number, payload) for number, payload in model.events if number > min(to, model.pointer)]

    @rule(id_=ids)
    def purge(self, id_: str) -> None:
        self.run(self.journal.purge(id_))
        self.model.pop(id_, None)

    @rule(share=st.floats(0, 1), batch=st.integers(1, 5))
    def replicate_some(self, share: float, batch: int) -> None:
        bounds = self.run(self.log.bounds(TopicPartition(self.topic, 0)))
        self.run(replicate(self.seen, self.store, self.topic, up_to=int(bounds.end * share) - 1, batch=batch))

    @rule()
    def replicate_rows_but_not_the_offset(self) -> None:
        self.run(replicate(self.seen, self.store, self.topic, move_to=-1))

    @rule()
    def truncate_what_is_replicated(self) -> None:
        at = TopicPartition(self.topic, 0)
        replicated = self.run(self.store.reader.replicated(at))
        if replicated is not None:
            self.is_log_whole = False
            self.run(self.log.retention.truncate(at, before=replicated.offset + 1))

    @rule(share=st.floats(0, 1))
    def time_passes(self, share: float) -> None:
        """Replication gets some way and stands still; then the log cleans up, and what is old goes: here all is."""
        self.replicate_some(share, batch=5)
        layout = self.run(Topology(self.log, self.store.settings, self.topic).layout())
        self.run(self.log.retention.enforce())
        if self.run(remove_replicated(self.log, self.store, layout, retention_ms=1, now_ms=1 << 50)):
            self.is_log_whole = False

    @rule(more=st.integers(1, 3))
    def grow(self, more: int) -> None:
        """The topic gets more partitions; keys move."""
        if self.partitions + more <= MOST_PARTITIONS:
            self.partitions += more
            self.run(grow_topic(self.log, self.store.settings, self.topic, partitions=self.partitions, lease_s=0))

    @rule()
    def lose_the_store(self) -> None:
        """While the log has everything, an empty store beside it is as good as any."""
        if self.is_log_whole:
            self.run(self.close())
            self.addresses = (self.addresses[0], self.empty_store_address())
            self.run(self.open())
            self.use()

    @rule()
    def restart(self) -> None:
        self.run(self.close())
        self.run(self.open())
        self.use()

    @invariant()
    def journals_are_what_the_model_says(self) -> None:
        if not hasattr(self, "topic"):
            return
        for id_ in ("a", "b", "ключ"):
            found = [(event.seq_nr, event.payload) for event in self.run(read(self.journal, id_))]
            model = self.model.get(id_)
            assert found == (model.events if model is not None else [])
            assert self.run(self.journal.pointer(id_)) == (model.pointer if model is not None else None)

    def teardown(self) -> None:
        if hasattr(self, "log"):
            self.run(self.close())
        self.loop.close()

    async def open(self) -> None:
        log_address, store_address = self.addresses
        self.log: Log = await open_log(log_address, settings=LogSettings(embedded=EmbeddedLogSettings(fsync=False)))
        settings = StoreSettings(embedded=EmbeddedStoreSettings(fsync=False))
        self.store: Store = await open_store(store_address, settings=settings)
        self.seen: Log = RepeatingLog(self.log) if self.is_repeated else self.log
        self.cache = HeadCache(self.seen, self.store.reader, max_actions=self.most)

    def use(self) -> None:
        self.journal = Journal(
            self.seen, self.store, self.topic, cache=self.cache, partitions=self.partitions, lease_s=LEASE_S
        )

    async def close(self) -> None:
        await self.cache.close()
        await self.store.close()
        await self.log.close()
