"""The fold, pure: what actions make of a journal, however they are cut into batches, against a plain oracle."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.suites.journal_histories import random_history
from tests.suites.journal_oracle import Oracle
from tests.suites.journal_script import FIRST_MS, Script

from headrace.journal.window import without_skipped
from headrace.model import Record
from headrace.protocol.actions import Action, Append, Poison, Verdict
from headrace.protocol.entries import batch_of, entry_of
from headrace.protocol.fold import Effect, Entry, exists, pointer_of, record_id_of, reopened, step
from headrace.protocol.headers import decode_action, encode_action
from headrace.protocol.key_writes import KeyFold, deletions_up_to, fold_key
from headrace.store import DEFAULT_SEGMENT_SIZE, JournalMeta, Place, RowDeletion

MINUTE_MS = 60_000
DAY_MS = 24 * 60 * MINUTE_MS


def entries(script: Script | Sequence[Record], id_: str = "k", **options: Any) -> list[Entry]:
    records = script.records if isinstance(script, Script) else script
    return batch_of(records, 0, **options).by_id.get(id_, [])


def folded(
    script: Script | Sequence[Record], id_: str = "k", *, on: JournalMeta | None = None, **options: Any
) -> KeyFold:
    return fold_key(on, entries(script, id_, **options))


def stepped(script: Script, *, on: JournalMeta | None = None) -> tuple[JournalMeta | None, list[Effect]]:
    effects = []
    for entry in entries(script):
        done = step(on, entry)
        on = done.meta
        effects.append(done.effect)
    return on, effects


def journal(seq_nr: int, *, delete_to: int = 0, segment_size: int = 10_000, offset: int = 0) -> JournalMeta:
    """Return the head of a journal that exists."""
    return JournalMeta(
        topic="t",
        id="k",
        generation=0,
        partition=0,
        offset=offset,
        seq_nr=seq_nr,
        delete_to=delete_to,
        segment_size=segment_size,
        last_append=Place(0, offset),
        record_id=record_id_of("t", 0, 0, offset),
    )


def state(meta: JournalMeta | None) -> tuple[int, int, int] | None:
    return (meta.seq_nr, meta.delete_to, meta.offset) if meta is not None else None


def numbers(fold: KeyFold) -> list[int]:
    return [row.seq_nr for piece in fold.pieces for row in piece.rows]


class TestHead:
    """H lines: step by step."""

    def test_appends_go_on(self) -> None:
        """H1: append(@0; 1) + append 2–3@1: first offset 0, seq_nr 3."""
        script = Script()
        script.append("k", 1)
        script.append("k", 2, 3)
        meta, _ = stepped(script)
        assert state(meta) == (3, 0, 1)
        assert meta is not None
        assert meta.record_id == record_id_of("t", 0, 0, 0)

    def test_a_delete_is_clamped(self) -> None:
        """H2: append(@0; 2) + delete 3: delete_to 2."""
        script = Script()
        script.append("k", 1, 2)
        script.delete("k", 3)
        assert state(stepped(script)[0]) == (2, 2, 1)

    def test_delete_to_never_goes_back(self) -> None:
        """H3: append(@0; 2, delete_to 2) + delete 1: delete_to stays 2."""
        script = Script()
        script.append("k", 1, 2)
        script.delete("k", 2)
        script.delete("k", 1)
        assert state(stepped(script)[0]) == (2, 2, 2)

    def test_the_first_delete_of_a_missing_journal_sets_its_numbers(self) -> None:
        """H5: delete 2 then delete 1: delete 2."""
        script = Script()
        script.delete("k", 2)
        script.delete("k", 1)
        meta, effects = stepped(script)
        assert state(meta) == (2, 2, 1)
        assert effects == [Effect.DELETED, Effect.DELETED]

    def test_a_purge_ends_all_and_an_append_begins_anew(self) -> None:
        """H6: anything + purge: purge. purge + append 1@7: append(@7; 1)."""
        for begin in (lambda s: s.append("k", 1, 5), lambda s: s.delete("k", 3), lambda s: s.purge("k"), None):
            script = Script(offset=5)
            if begin is not None:
                begin(script)
            script.offset = 6
            script.purge("k")
            meta, effects = stepped(script)
            assert effects[-1] is Effect.PURGED
            assert meta is not None
            assert meta.is_purged
            assert not exists(meta)
            assert pointer_of(meta) == 0
            script.append("k", 1)
            meta, _ = stepped(script)
            assert state(meta) == (1, 0, 7)
            assert meta is not None
            assert meta.record_id == record_id_of("t", 0, 0, 7)
            assert meta.purged_at == Place(0, 6)

    def test_a_mark_changes_nothing(self) -> None:
        """H7: a mark changes nothing."""
        script = Script()
        script.append("k", 1, 3)
        before, _ = stepped(script)
        mark = entry_of(script.mark("k"), 0)
        assert mark is not None
        assert step(before, mark).meta is before
        assert step(None, mark).meta is None
        assert folded(script).meta == before


class TestVoid:
    """Appends and purges that change nothing."""

    @pytest.mark.parametrize(("first", "last"), [(1, 1), (3, 3), (3, 9)])
    def test_an_append_that_is_not_above_is_void(self, first: int, last: int) -> None:
        """J31: its first seq_nr must be above the journal's; the offset does not move."""
        script = Script(offset=4)
        script.append("k", first, last)
        fold = folded(script, on=journal(3))
        assert (fold.meta, fold.pieces) == (journal(3), [])
        assert len(fold.void) == 1
        assert "not above" in fold.void[0].reason

    @pytest.mark.parametrize(("on", "expected"), [(None, 2), (journal(3), 2), (journal(3), 0), (journal(3), 4)])
    def test_an_append_that_expected_something_else_is_void(self, on: JournalMeta | None, expected: int) -> None:
        """J26: with both numbers in the reason."""
        script = Script(offset=4)
        script.append("k", 5, expected=expected)
        fold = folded(script, on=on)
        assert (fold.meta, fold.pieces) == (on, [])
        assert str(expected) in fold.void[0].reason

    def test_an_append_that_expected_what_is_counts(self) -> None:
        """J26: 0 is a journal that is not there, whether it was purged or never was."""
        script = Script()
        script.append("k", 1, expected=0)
        script.append("k", 2, expected=1)
        script.purge("k")
        script.append("k", 1, expected=0)
        fold = folded(script)
        assert state(fold.meta) == (1, 0, 3)
        assert fold.void == []

    @pytest.mark.parametrize(("since", "counts"), [(0, False), (1, False), (2, True)])
    def test_an_append_tried_before_a_purge_is_void_after_it(self, since: int, counts: bool) -> None:
        """J28: a purge at or above the log's end before the first attempt is not undone by a retry."""
        script = Script()
        script.append("k", 1)
        script.purge("k")
        script.append("k", 1, append_id="a", since=Place(0, since))
        meta = folded(script).meta
        assert exists(meta) is counts
        script.append("k", 1)
        script.delete("k", 1)
        script.append("k", 2, append_id="b", since=Place(0, since))
        assert pointer_of(folded(script).meta) == (2 if counts else 1)

    def test_a_conditional_purge_is_void_after_an_append_it_has_not_seen(self) -> None:
        """PROTOCOL: purge_expired names the last append it saw."""
        script = Script()
        script.append("k", 1)
        script.append("k", 2)
        script.purge("k", last_append=0)
        fold = folded(script)
        assert state(fold.meta) == (2, 0, 1)
        assert len(fold.void) == 1
        script.purge("k", last_append=1)
        assert not exists(folded(script).meta)

    def test_a_void_append_is_not_what_a_conditional_purge_looks_at(self) -> None:
        """Meta keeps the place of the last append that was not void; deletes don't move it."""
        script = Script()
        script.append("k", 1)
        script.append("k", 1)
        script.delete("k", 1)
        script.purge("k", last_append=0)
        assert not exists(folded(script).meta)


class TestBatches:
    """B lines."""

    def test_one_write_for_the_appends_of_a_batch(self) -> None:
        """B1: append@0, mark@1: one append at 0. append1@0, append2@1: one write, offset 1, both events."""
        script = Script()
        script.append("k", 1)
        script.mark("k")
        fold = folded(script)
        assert state(fold.meta) == (1, 0, 0)
        assert numbers(fold) == [1]
        script = Script()
        script.append("k", 1)
        script.append("k", 2)
        fold = folded(script)
        assert len(fold.pieces) == 1
        assert state(fold.pieces[0].meta) == (2, 0, 1)
        assert numbers(fold) == [1, 2]

    @pytest.mark.parametrize(("first", "second"), [(1, 2), (2, 1)])
    def test_deletes_of_a_journal(self, first: int, second: int) -> None:
        """B2: on an existing journal of 5, deletes 1 and 2 in either order: delete_to 2, offset 3."""
        script = Script(offset=2)
        script.delete("k", first)
        script.delete("k", second)
        assert state(folded(script, on=journal(5)).meta) == (5, 2, 3)

    def test_deletes_of_a_missing_journal_are_clamped_at_their_place(self) -> None:
        """B2: on a missing one, delete 1, delete 2: seq_nr 1, delete_to 1."""
        script = Script()
        script.delete("k", 1)
        script.delete("k", 2)
        assert state(folded(script).meta) == (1, 1, 1)

    def test_what_is_deleted_in_its_batch_is_never_inserted(self) -> None:
        """B3: append1@1, delete1@2, append2@3, delete2@4: no row; seq_nr 2, delete_to 2, offset 4."""
        script = Script(offset=1)
        script.append("k", 1)
        script.delete("k", 1)
        script.append("k", 2)
        script.delete("k", 2)
        fold = folded(script)
        assert numbers(fold) == []
        assert state(fold.meta) == (2, 2, 4)

    def test_a_purge_cuts_the_batch(self) -> None:
        """B5: purge@0, append1@1: both, in order; an append or delete before a purge: no rows, a marker."""
        script = Script()
        script.purge("k")
        script.append("k", 1)
        fold = folded(script)
        assert [piece.meta.is_purged for piece in fold.pieces if piece.meta] == [True, False]
        assert numbers(fold) == [1]
        for begin in (lambda s: s.append("k", 1, 2), lambda s: s.delete("k", 1)):
            script = Script()
            begin(script)
            script.purge("k")
            fold = folded(script)
            assert numbers(fold) == []
            assert fold.meta is not None
            assert (fold.meta.is_purged, fold.meta.offset) == (True, 1)

    def test_of_purges_the_last_counts(self) -> None:
        """B5: purge, mark, purge: the last purge."""
        script = Script()
        script.purge("k")
        script.mark("k")
        script.purge("k")
        fold = folded(script)
        assert fold.meta is not None
        assert (fold.meta.is_purged, fold.meta.offset) == (True, 2)

    def test_nothing_is_collapsed_across_kinds(self) -> None:
        """B6: append 2–4, delete 6, append 5–6 in one batch: delete_to 4; 5 and 6 alive."""
        script = Script()
        script.append("k", 2, 4)
        script.delete("k", 6)
        script.append("k", 5, 6)
        fold = folded(script)
        assert state(fold.meta) == (6, 4, 2)
        assert numbers(fold) == [5, 6]


class TestRules:
    """What the store's lines say about the fold."""

    def test_the_first_append_says_what_never_was(self) -> None:
        """R2: first append is 5,6,7@10: delete_to 4, seq_nr 7, offset 10."""
        script = Script(offset=10)
        script.append("k", 5, 7)
        assert state(folded(script).meta) == (7, 4, 10)

    def test_a_delete_of_a_missing_journal_counts_as_its_pointer(self) -> None:
        """R8: delete 5 @1: seq_nr 5; append 6 counts, append 1 is void."""
        script = Script(offset=1)
        script.delete("k", 5)
        script.append("k", 1)
        script.append("k", 6)
        fold = folded(script)
        assert state(fold.meta) == (6, 5, 3)
        assert numbers(fold) == [6]
        assert len(fold.void) == 1

    @pytest.mark.parametrize(
        ("to", "size", "after", "gone"),
        [
            (1, 10, 0, [(0, 1)]),
            (9, 10, 0, [(0, 9)]),
            (10, 10, 0, [(0, None)]),
            (11, 10, 0, [(0, None), (1, 11)]),
            (35, 10, 0, [(0, None, 2), (3, 35)]),
            (40, 10, 0, [(0, None, 3)]),
            (10**15, 1, 3, [(3, None, 10**15 - 1)]),
            (35, 10, 20, [(2, None), (3, 35)]),
            (35, 10, 25, [(2, None), (3, 35)]),
            (35, 10, 35, []),
            (0, 10, 0, []),
        ],
    )
    def test_a_delete_drops_full_segments_whole(
        self, to: int, size: int, after: int, gone: list[tuple[int, int | None]]
    ) -> None:
        """R11: full segments whole, as one range however many they are; the last one by its numbers."""
        assert deletions_up_to(to, size, after=after) == [RowDeletion(*one) for one in gone]

    def test_a_purge_covers_every_segment_that_may_hold_rows(self) -> None:
        """R13: 10 × segment_size events, purge: ten segments go whole, in one range."""
        script = Script(offset=1)
        script.purge("k")
        fold = folded(script, on=journal(40, segment_size=4))
        assert [gone for gone, _ in fold.pieces[0].deletions] == [RowDeletion(0, None, 9)]

    def test_a_purge_names_the_segments_of_rows_that_it_drops(self) -> None:
        """FJ6: rows that a purge of the same batch drops may be a rival's, on their way: their segments are named."""
        script = Script(offset=1)
        script.append("k", 1, 2)
        script.append("k", 10**9)
        script.purge("k")
        (piece,) = folded(script).pieces
        gone = [RowDeletion(0, None, 99_999), RowDeletion(0, None), RowDeletion(99_999, None)]
        assert [deletion for deletion, _ in piece.deletions] == gone
        assert [(gap.after, gap.next) for gap in piece.gaps] == [(0, 99_999)]

    def test_a_purge_covers_the_segment_of_a_delete_to_that_ran_ahead(self) -> None:
        """R14: meta(seq_nr n, delete_to n+1), purge: both segments cleaned."""
        script = Script(offset=1)
        script.purge("k")
        fold = folded(script, on=journal(4, delete_to=5, segment_size=4))
        assert [gone for gone, _ in fold.pieces[0].deletions] == [RowDeletion(0, None, 1)]

    def test_a_delete_to_that_ran_ahead_counts(self) -> None:
        """R15: meta(seq_nr 300, delete_to 400) + delete 200: delete_to stays 400, and seq_nr counts as 400."""
        script = Script(offset=1)
        script.delete("k", 200)
        assert state(folded(script, on=journal(300, delete_to=400)).meta) == (400, 400, 1)
        script = Script(offset=1)
        script.append("k", 350)
        assert len(folded(script, on=journal(300, delete_to=400)).void) == 1
        script.append("k", 401)
        assert state(folded(script, on=journal(300, delete_to=400)).meta) == (401, 400, 2)

    def test_segment_size_belongs_to_an_incarnation(self) -> None:
        """R17: a change of the topic's size is for the incarnations after it."""
        script = Script()
        script.append("k", 1, 3)
        script.mark("k", segment_size=2)
        script.append("k", 4)
        script.append("other", 1, 3)
        assert [row.segment for piece in folded(script).pieces for row in piece.rows] == [0, 0, 0, 0]
        assert [row.segment for piece in folded(script, "other").pieces for row in piece.rows] == [0, 0, 1]
        script.purge("k")
        script.append("k", 1, 3)
        fold = folded(script)
        assert [row.segment for row in fold.pieces[-1].rows] == [0, 0, 1]
        assert fold.pieces[0].meta is not None
        assert fold.pieces[0].meta.segment_size == 10_000

    @pytest.mark.parametrize(("written", "ms"), [("1 minute", MINUTE_MS), ("1 day", DAY_MS)])
    def test_expiry_is_set_and_cleared_by_appends(self, written: str, ms: int) -> None:
        """R19: expire_on is exact, the next append without it removes it, a delete does not touch it."""
        script = Script()
        script.append("k", 1, expire_after=written)
        meta = folded(script).meta
        assert meta is not None
        assert (meta.expire_after, meta.expire_on_ms) == (written, FIRST_MS + 1 + ms)
        script.delete("k", 1)
        meta = folded(script).meta
        assert meta is not None
        assert (meta.expire_after, meta.expire_on_ms) == (written, FIRST_MS + 1 + ms)
        script.append("k", 1, expire_after="2 days")
        assert folded(script).meta == meta
        script.append("k", 2)
        meta = folded(script).meta
        assert meta is not None
        assert (meta.expire_after, meta.expire_on_ms) == (None, None)

    def test_a_purge_clears_the_expiry(self) -> None:
        """R19: the marker has none."""
        script = Script()
        script.append("k", 1, expire_after="1 day")
        script.purge("k")
        meta = folded(script).meta
        assert meta is not None
        assert (meta.expire_after, meta.expire_on_ms, meta.record_id, meta.last_append) == (None, None, None, None)

    def test_record_ids_are_computed_not_drawn(self) -> None:
        """The same record begins the same incarnation; any other, another."""
        assert record_id_of("t", 0, 1, 2) == record_id_of("t", 0, 1, 2)
        ids = {record_id_of(*of) for of in (("t", 0, 1, 2), ("u", 0, 1, 2), ("t", 1, 1, 2), ("t", 0, 2, 1))}
        assert len(ids) == 4
        assert len({record_id_of("t1", 0, 1, 1), record_id_of("t", 10, 1, 1), record_id_of("t", 0, 11, 1)}) == 3

    def test_a_poison_holds_all_that_follows(self) -> None:
        """A record that can't be decoded stops its own key; a purge behind it counts for nothing."""
        script = Script()
        script.append("k", 1)
        script.poison("k")
        script.append("k", 2)
        script.purge("k")
        fold = folded(script)
        assert fold.meta is not None
        assert (fold.meta.held_from, fold.meta.seq_nr, fold.meta.is_purged) == (1, 1, False)
        assert [entry.offset for entry in fold.held] == [1, 2, 3]
        assert numbers(fold) == [1]

    def test_a_value_nobody_can_decode_holds_the_key(self) -> None:
        """Also one whose numbers contradict the header, or whose expiry is none."""
        for value in (
            None,
            b"{",
            b'{"events":[{"seqNr":2}]}',
            b'{"events":[{"seqNr":1}],"metadata":{"expireAfter":"soon"}}',
        ):
            script = Script()
            good = script.append("k", 1)
            script.records[0] = Record("t", 0, 0, 1, good.key, value, good.headers)
            fold = folded(script)
            assert fold.meta is not None
            assert fold.meta.held_from == 0
            assert not exists(fold.meta)


seeds = st.integers(0, 1 << 32)


class Replica:
    """Heads by id, and what replication keeps with the replicated offset: log time and segment size."""

    def __init__(self) -> None:
        self.metas: dict[str, JournalMeta | None] = {}
        self.sizes = {0: DEFAULT_SEGMENT_SIZE}

    def apply(self, records: Sequence[Record], begin: int, end: int) -> None:
        batch = batch_of(records[begin:end], 0, segment_size=self.sizes[begin])
        for number in range(begin, end):
            self.sizes[number + 1] = batch_of(
                records[number : number + 1], 0, segment_size=self.sizes[number]
            ).segment_size
        for id_, of_key in batch.by_id.items():
            self.metas[id_] = fold_key(self.metas.get(id_), of_key).meta


def check_against(oracle: Oracle, metas: dict[str, JournalMeta | None]) -> None:
    for id_, meta in metas.items():
        plain = oracle.journals.get(id_)
        assert exists(meta) is (plain is not None), id_
        if plain is not None and meta is not None:
            assert (meta.seq_nr, meta.delete_to, meta.expire_after) == (
                plain.seq_nr,
                plain.delete_to,
                plain.expire_after,
            )
            assert meta.record_id == record_id_of("t", 0, 0, plain.born)
            assert (meta.last_append.offset if meta.last_append else -1) == plain.last_append


@given(seeds)
@settings(max_examples=300, deadline=None)
def test_the_fold_is_what_a_plain_reading_of_the_log_gives(seed: int) -> None:
    """H1, H2, H3, H5, H6, H7: for random histories, after every record."""
    records = random_history(random.Random(seed), actions=25).records
    oracle, replica = Oracle(), Replica()
    for number, record in enumerate(records):
        oracle.apply(record)
        replica.apply(records, number, number + 1)
        check_against(oracle, replica.metas)


@given(seeds)
@settings(max_examples=300, deadline=None)
def test_batches_cut_anywhere_with_replays_end_in_the_same_state(seed: int) -> None:
    """B7: the same records cut into batches at any place, with replays, end in the same state."""
    rng = random.Random(seed)
    records = random_history(rng, actions=25).records
    whole, cut = Replica(), Replica()
    whole.apply(records, 0, len(records))
    done = 0
    while done < len(records):
        begin, end = rng.randint(max(0, done - 6), done), rng.randint(done, min(len(records), done + 8))
        cut.apply(records, begin, end)
        done = max(done, end)
    assert cut.metas == whole.metas
    check_against(Oracle(records), cut.metas)


def placed(generation: int, offset: int, action: Action) -> Entry:
    return Entry(
        topic="t", id="k", generation=generation, partition=generation, offset=offset, timestamp_ms=1, action=action
    )


def test_a_verdict_is_about_one_record_and_not_its_offset_elsewhere() -> None:
    """E9: a key moved, and both partitions have a record at offset 5 that can't be decoded: one was passed over."""
    skip = Verdict(id="v", held_from=5, is_skip=True, generation=0)
    history = [placed(0, 5, Poison("value")), placed(0, 9, skip), placed(1, 5, Poison("value"))]
    assert [entry.place for entry in without_skipped(history)] == [(0, 9), (1, 5)]
    repeated = [*history, placed(1, 9, skip)]  # the same verdict, given twice
    assert Place(1, 5) in [entry.place for entry in without_skipped(repeated)]
    held_anew = msgspec.structs.replace(journal(1), generation=1, partition=1, offset=5, held_from=5)
    assert reopened(held_anew, repeated[-1], [history[-1]]) is None
    assert reopened(held_anew, placed(1, 9, msgspec.structs.replace(skip, generation=1)), [history[-1]]) is not None


def test_a_verdict_without_a_generation_ends_the_hold_that_it_meets() -> None:
    """E9: earlier versions wrote the offset alone; such a verdict passes over what the journal is held from then."""
    skip = Verdict(id="v", held_from=5, is_skip=True)
    history = [placed(0, 5, Poison("value")), placed(0, 9, skip), placed(1, 5, Poison("value"))]
    assert [entry.place for entry in without_skipped(history)] == [(0, 9), (1, 5)]
    assert reopened(msgspec.structs.replace(journal(1, offset=5), held_from=5), history[1], history[:1]) is not None


def test_the_header_of_a_verdict_names_the_generation() -> None:
    """E9: what is written is read again, with the generation and without."""
    for generation in (None, 0, 3):
        verdict = Verdict(id="v", held_from=5, is_skip=True, generation=generation)
        assert decode_action(Record("t", 0, 9, 1, b"k", None, encode_action(verdict))) == verdict


@pytest.mark.parametrize("is_skip", [True, False])
def test_what_was_held_before_a_journal_moved_and_after_comes_back(is_skip: bool) -> None:
    """FT11: held at offset 500, then written at offset 3 of another partition: the verdict brings both, in order."""

    def entry(generation: int, partition: int, offset: int, action: Action) -> Entry:
        return Entry(topic="t", id="k", generation=generation, partition=partition, offset=offset, timestamp_ms=1,
                     action=action)  # fmt: skip

    meta = msgspec.structs.replace(journal(1, offset=500), held_from=500)
    held = [
        entry(1, 7, 3, Append(first=2, last=2, payload_format="json")),
        entry(0, 0, 500, Poison("value")),
        entry(0, 0, 501, Append(first=2, last=2, payload_format="json")),
        entry(1, 7, 500, Append(first=3, last=3, payload_format="json")),
    ]
    opened = reopened(meta, entry(1, 7, 501, Verdict(id="v", held_from=500, is_skip=is_skip)), held)
    assert opened is not None
    state, again = opened
    places = [(0, 500), (0, 501), (1, 3), (1, 500)]
    assert [each.place for each in again if each.place > state.place] == (places[1:] if is_skip else places)
