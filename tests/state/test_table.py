"""What a batch of records does to the rows of a state."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from headrace.state.changelog import ChangelogRecord, StateWrite
from headrace.state.table import Indexer, StateEntry, decode_entry, entry_row, fold_changes

KEYS = st.sampled_from([b"a", b"b", b"c", b""])
TTLS = st.one_of(st.none(), st.integers(min_value=1, max_value=5))
WRITES = st.builds(StateWrite, st.one_of(st.none(), st.binary(max_size=3)), TTLS)
BATCHES = st.lists(st.lists(st.tuples(KEYS, WRITES), max_size=8), max_size=6)


def _index(value: bytes) -> list[bytes]:
    """Index each byte of a value but the last: many values have no row, some have two."""
    return [b"by\x00" + value[at : at + 1] for at in range(len(value) - 1)]


def _rows_of(entries: Mapping[bytes, StateEntry]) -> dict[bytes, bytes]:
    """Return the rows that stand for these entries, made of nothing else."""
    rows = {entry_row(key): entry.encode() for key, entry in entries.items()}
    for key, entry in entries.items():
        rows |= {b"i" + row + key: key for row in entry.index_rows}
        if entry.expires_ms:
            rows[b"x" + entry.expires_ms.to_bytes(8, "big") + key] = key
    return rows


def _entry(record: ChangelogRecord, value: bytes, default_ttl_ms: int | None, index: Indexer | None) -> StateEntry:
    ttl_ms = default_ttl_ms if record.write.ttl_ms is None else record.write.ttl_ms
    expires_ms = 0 if ttl_ms is None else record.timestamp_ms + ttl_ms
    index_rows = () if index is None else tuple(index(value))
    return StateEntry(value, record.offset, record.timestamp_ms, expires_ms, index_rows)


@given(batches=BATCHES, default_ttl_ms=TTLS, index=st.sampled_from([None, _index]))
def test_a_batch_leaves_the_rows_of_the_entries_that_it_leads_to(
    batches: list[list[tuple[bytes, StateWrite]]], default_ttl_ms: int | None, index: Indexer | None
) -> None:
    """S5: after any batches the rows are those of the last values, and a deletion of what is not there is no change."""
    entries, stored, keys, offset = dict[bytes, StateEntry](), dict[bytes, bytes](), 0, 0
    for batch in batches:
        records = [ChangelogRecord(key, offset + n, 100 + n, write) for n, (key, write) in enumerate(batch)]
        offset += len(records)
        folded = fold_changes(records, stored.get, default_ttl_ms=default_ttl_ms, index=index)
        keys += folded.keys
        effective = []
        for record in records:
            had = entries.pop(record.key, None)
            if record.write.value is not None:
                entries[record.key] = _entry(record, record.write.value, default_ttl_ms, index)
            if had is not None or record.write.value is not None:
                effective.append(record)
        assert folded.changes == effective
        for row, value in folded.writes:
            stored.pop(row, None)
            if value is not None:
                stored[row] = value
        assert stored == _rows_of(entries)
        assert keys == len(entries)
        assert {key: decode_entry(stored[entry_row(key)]) for key in entries} == entries
