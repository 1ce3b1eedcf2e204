"""What a batch of records does to the rows of a state."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.state.changelog import ChangelogRecord, StateWrite
from headrace.state.ports import StoreWrite
from headrace.state.table import FoldedChanges, Indexer, decode_entry, entry_row, fold_changes, fold_rows

KEYS = st.sampled_from([b"a", b"b", b"c", b""])
TTLS = st.one_of(st.none(), st.integers(min_value=1, max_value=5))
WRITES = st.builds(StateWrite, st.one_of(st.none(), st.binary(max_size=3)), TTLS)
BATCHES = st.lists(st.lists(st.tuples(KEYS, WRITES), max_size=8), max_size=6)


class Rows:
    """A store that is a dictionary."""

    def __init__(self) -> None:
        self.rows: dict[bytes, bytes] = {}
        self.keys = 0

    def take(self, folded: FoldedChanges) -> None:
        self.keys += folded.keys
        for row, value in folded.writes:
            self._write((row, value))

    def _write(self, write: StoreWrite) -> None:
        row, value = write
        if value is None:
            self.rows.pop(row, None)
        else:
            self.rows[row] = value


def _index(value: bytes) -> list[bytes]:
    """Index each byte of a value but the last: many values have no row, some have two."""
    return [b"by\x00" + value[at : at + 1] for at in range(len(value) - 1)]


@given(batches=BATCHES, default_ttl_ms=TTLS, index=st.sampled_from([None, _index]))
def test_rows_alone_are_those_that_changes_lead_to(
    batches: list[list[tuple[bytes, StateWrite]]], default_ttl_ms: int | None, index: Indexer | None
) -> None:
    """S5: a copy that nobody follows has the rows, and the count of keys, of one whose changes are published."""
    followed, built, offset = Rows(), Rows(), 0
    for batch in batches:
        records = [ChangelogRecord(key, offset + n, 100 + n, write) for n, (key, write) in enumerate(batch)]
        offset += len(records)

        def find_entry(key: bytes) -> object:
            data = followed.rows.get(entry_row(key))
            return None if data is None else decode_entry(data)

        changes = fold_changes(records, find_entry, default_ttl_ms=default_ttl_ms, index=index)  # type: ignore[arg-type]
        followed.take(changes)
        built.take(fold_rows(records, built.rows.get, default_ttl_ms=default_ttl_ms, index=index))
    assert built.rows == followed.rows
    assert built.keys == followed.keys == sum(row.startswith(b"d") for row in built.rows)
