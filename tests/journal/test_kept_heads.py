"""Heads that a worker keeps: only those of contiguous batches of one generation, and not too many."""

from __future__ import annotations

from headrace.journal import KeptHeads
from headrace.model import TopicPartition
from headrace.store import JournalMeta, Place
from headrace.testing.conformance.store_setting import head

AT, OTHER = TopicPartition("t", 0), TopicPartition("t", 1)


def heads(*ids: str, offset: int = 10) -> dict[str, JournalMeta]:
    return {id_: head("t", id_, offset) for id_ in ids}


def test_contiguous_batches_find_the_heads_of_the_batches_before() -> None:
    """Of all batches before, not only of the last; a journal that was changed otherwise is forgotten."""
    kept = KeptHeads()
    assert kept.after(AT, Place(0, 0)) == {}
    kept.keep(AT, Place(0, 0), Place(0, 10), heads("a", "b", "c"), gone=())
    kept.keep(AT, Place(0, 10), Place(0, 20), heads("a", offset=20), gone=["b", "nobody"])
    assert kept.after(AT, Place(0, 20)) == {**heads("c"), **heads("a", offset=20)}
    assert kept.after(OTHER, Place(0, 20)) == {}


def test_nothing_is_kept_when_another_process_moved_the_offset() -> None:
    """Neither before the next batch nor after it: what lies between was folded elsewhere."""
    kept = KeptHeads()
    kept.keep(AT, Place(0, 0), Place(0, 10), heads("a"), gone=())
    assert kept.after(AT, Place(0, 15)) == {}
    assert kept.after(AT, Place(0, 10)) == {}
    kept.keep(AT, Place(0, 10), Place(0, 20), heads("a"), gone=())
    kept.keep(AT, Place(0, 25), Place(0, 30), heads("b", offset=30), gone=())
    assert kept.after(AT, Place(0, 30)) == heads("b", offset=30)


def test_nothing_is_kept_beyond_a_generation() -> None:
    """A journal may leave the partition when the topic grows, and come back with the next growth."""
    kept = KeptHeads()
    kept.keep(AT, Place(0, 0), Place(0, 10), heads("a"), gone=())
    kept.keep(AT, Place(0, 10), Place(1, 20), heads("b"), gone=())
    assert kept.after(AT, Place(1, 20)) == {}
    assert len(kept) == 0


def test_heads_are_read_again_after_a_while() -> None:
    """A head that an audit repaired is not overwritten forever by what follows from the wrong one."""
    now_s = [0.0]
    kept = KeptHeads(kept_for_s=60, now_s=lambda: now_s[0])
    kept.keep(AT, Place(0, 0), Place(0, 10), heads("a"), gone=())
    now_s[0] = 60.0
    kept.keep(AT, Place(0, 10), Place(0, 20), heads("b"), gone=())
    assert kept.after(AT, Place(0, 20)) == heads("a", "b")
    now_s[0] = 60.1
    assert kept.after(AT, Place(0, 20)) == {}


def test_the_partition_and_the_journals_that_rest_longest_are_forgotten_first() -> None:
    """The bound is on the heads of all partitions of the process."""
    kept = KeptHeads(most=3)
    kept.keep(OTHER, Place(0, 0), Place(0, 10), heads("x", "y"), gone=())
    kept.keep(AT, Place(0, 0), Place(0, 10), heads("a", "b"), gone=())
    assert (kept.after(OTHER, Place(0, 10)), kept.after(AT, Place(0, 10))) == (heads("y"), heads("a", "b"))
    kept.keep(AT, Place(0, 10), Place(0, 20), heads("a", "c", "d", offset=20), gone=())
    assert kept.after(AT, Place(0, 20)) == heads("a", "c", "d", offset=20)
    assert len(kept) == 3
