"""What every store of a state must do."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterator

import pytest
import pytest_asyncio

from headrace.errors import Closed
from headrace.state import KeyValueStore, StoredPair, open_state_store

__all__ = ["KeyValueStoreConformance"]

OpenStore = Callable[[], Awaitable[KeyValueStore]]


@pytest.mark.asyncio
class KeyValueStoreConformance:
    """The exam of a `KeyValueStore`.

    A backend overrides `address`, or `open_store`; `keeps_data` is False if closing a store forgets what it holds.
    """

    keeps_data = True

    @pytest.fixture
    def address(self) -> str:
        """Return where the store is."""
        raise NotImplementedError("override the fixture `address`")

    @pytest.fixture
    def open_store(self, address: str) -> OpenStore:
        """Return what opens the store under test."""
        return lambda: open_state_store(address)

    @pytest_asyncio.fixture
    async def opened(self, open_store: OpenStore) -> list[KeyValueStore]:
        """Open the store; tests that open it again replace it here."""
        return [await open_store()]

    @pytest.fixture
    def store(self, opened: list[KeyValueStore]) -> Iterator[KeyValueStore]:
        """Return the store under test, closed at the end."""
        yield opened[0]
        opened[0].close()

    async def test_a_new_store_is_empty(self, store: KeyValueStore) -> None:
        """No key, no pair, and no checkpoint."""
        assert store.checkpoint is None
        assert store.get(b"a") is None
        assert list(store.scan(b"", None, limit=10)) == []
        assert store.count(b"", None) == 0

    async def test_a_batch_and_its_checkpoint_are_written_together(self, store: KeyValueStore) -> None:
        """S6: puts, deletes and the checkpoint; the last write of a key counts; empty values are values."""
        store.write([(b"a", b"1"), (b"b", b"2"), (b"c", b"")], checkpoint=b"one")
        store.write(
            [(b"a", None), (b"b", b"3"), (b"d", b"4"), (b"d", None), (b"e", None), (b"e", b"5")], checkpoint=b"two"
        )
        assert [store.get(key) for key in (b"a", b"b", b"c", b"d", b"e")] == [None, b"3", b"", None, b"5"]
        assert store.checkpoint == b"two"

    async def test_a_batch_without_writes_moves_the_checkpoint(self, store: KeyValueStore) -> None:
        """Records that change nothing, as reserved ones, move the checkpoint all the same."""
        store.write([], checkpoint=b"one")
        assert store.checkpoint == b"one"
        assert store.count(b"", None) == 0

    async def test_keys_are_in_the_order_of_their_bytes(self, store: KeyValueStore) -> None:
        """Unsigned bytes, a prefix before what it begins; the start is in, the end is out."""
        keys = [b"", b"\x00", b"\x00\xff", b"a", b"a\x00", b"aa", b"b", b"\x80", b"\xff", b"\xff\xff"]
        shuffled = random.Random(1).sample(keys, len(keys))
        store.write([(key, key) for key in shuffled], checkpoint=b"c")
        assert [key for key, _ in store.scan(b"", None, limit=100)] == keys
        assert [key for key, _ in store.scan(b"a", b"b", limit=100)] == [b"a", b"a\x00", b"aa"]
        assert [key for key, _ in store.scan(b"a", b"b", limit=100, reverse=True)] == [b"aa", b"a\x00", b"a"]
        assert [key for key, _ in store.scan(b"b", None, limit=2, reverse=True)] == [b"\xff\xff", b"\xff"]
        assert list(store.scan(b"b", b"a", limit=100)) == []
        assert store.count(b"a", b"b") == 3

    async def test_pages_of_a_scan_join_without_gap_or_repetition(self, store: KeyValueStore) -> None:
        """A page is full unless it is the last; the next one starts behind the last key."""
        expected = [(b"k%05d" % n, b"%d" % n) for n in range(2500)]
        store.write(random.Random(2).sample(expected, len(expected)), checkpoint=b"c")
        found: list[StoredPair] = []
        start = b""
        while page := store.scan(start, None, limit=999):
            found += page
            start = page[-1][0] + b"\x00"
        assert found == expected
        assert store.count(b"k00010", b"k02000") == 1990

    async def test_a_store_follows_a_dictionary_through_random_batches(self, store: KeyValueStore) -> None:
        """After each of many batches gets, scans in both directions and counts agree with a dictionary."""
        chance, model = random.Random(3), dict[bytes, bytes]()
        for turn in range(60):
            batch = [
                (chance.randbytes(chance.randint(0, 2)), None if chance.random() < 0.4 else b"%d" % turn)
                for _ in range(chance.randint(0, 60))
            ]
            store.write(batch, checkpoint=b"%d" % turn)
            for key, value in batch:
                if value is None:
                    model.pop(key, None)
                else:
                    model[key] = value
            start, end = sorted((chance.randbytes(1), chance.randbytes(2)))
            inside = sorted((key, value) for key, value in model.items() if start <= key < end)
            assert list(store.scan(start, end, limit=10_000)) == inside
            assert list(store.scan(start, end, limit=7, reverse=True)) == inside[::-1][:7]
            assert store.count(b"", None) == len(model)

    async def test_a_wiped_store_is_empty_and_goes_on(self, store: KeyValueStore) -> None:
        """S18: data and checkpoint go together; new batches count from there."""
        store.write([(b"a", b"1")], checkpoint=b"one")
        store.wipe()
        assert (store.checkpoint, store.get(b"a"), store.count(b"", None)) == (None, None, 0)
        store.write([(b"b", b"2")], checkpoint=b"two")
        assert (store.checkpoint, store.get(b"b")) == (b"two", b"2")

    async def test_a_store_opened_again_has_all_that_was_written(
        self, store: KeyValueStore, opened: list[KeyValueStore], open_store: OpenStore
    ) -> None:
        """What was in the last batch is there, with its checkpoint; a store that keeps nothing has neither."""
        store.write([(b"a", b"1"), (b"b", b"2")], checkpoint=b"one")
        store.write([(b"a", None)], checkpoint=b"two")
        store.close()
        opened[0] = again = await open_store()
        found = (again.checkpoint, list(again.scan(b"", None, limit=10)))
        assert found == ((b"two", [(b"b", b"2")]) if self.keeps_data else (None, []))

    async def test_a_closed_store_says_so(self, store: KeyValueStore) -> None:
        """Every call is refused; closing twice is fine."""
        store.close()
        store.close()
        for call in (
            lambda: store.checkpoint,
            lambda: store.get(b"a"),
            lambda: store.write([], checkpoint=b""),
            lambda: store.scan(b"", None, limit=1),
            lambda: store.count(b"", None),
            store.wipe,
        ):
            with pytest.raises(Closed):
                call()
