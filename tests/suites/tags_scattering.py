"""A store whose rows by tag appear piece by piece, in any order, as they do where a server writes them side by side."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from headrace.store import Place, Store, TagNumbers, TagRow, TagViews

__all__ = ["ScatteredStore", "WriteTimedOut", "last_rows", "shuffled"]

# How the rows of a write are cut into pieces, which appear one after the other; None is a piece that fails.
Cut: TypeAlias = Callable[[Sequence[TagRow]], Iterable[Sequence[TagRow] | None]]


class WriteTimedOut(Exception):
    """A piece of a write was not answered: those before it are there, it and those after it are not."""


def shuffled(dice: random.Random, *, fails_every: int) -> Cut:
    """Cut rows into pieces of up to three, in any order; one write in a number of writes fails, at any piece."""
    writes = itertools.count(1)

    def cut(rows: Sequence[TagRow]) -> Iterable[Sequence[TagRow] | None]:
        left = dice.sample(list(rows), len(rows))
        pieces: list[Sequence[TagRow] | None] = []
        while left:
            size = dice.randint(1, 3)
            pieces.append(left[:size])
            left = left[size:]
        if pieces and next(writes) % fails_every == 1:
            pieces[dice.randrange(len(pieces))] = None
        return pieces

    return cut


def last_rows(many: int) -> Cut:
    """Write the last rows only, then fail."""
    return lambda rows: (rows[-many:], None)


class ScatteredStore:
    """Writes the rows by tag of each call piece by piece, with pauses of up to `pause_s` between them.

    All else goes to the store as it is.
    """

    def __init__(self, store: Store, cut: Cut, *, pause_s: float = 0.0) -> None:
        self.reader, self.settings, self.snapshots, self.writer = (
            store.reader, store.settings, store.snapshots, store.writer,
        )  # fmt: skip
        self.tags = _ScatteredTags(store, _ScatteredViews(store.tags.views, cut, pause_s))


class _ScatteredTags:
    def __init__(self, store: Store, views: _ScatteredViews) -> None:
        self.views = views
        self._tags = store.tags

    @property
    def numbers(self) -> TagNumbers:
        return self._tags.numbers

    async def prepare(self) -> None:
        await self._tags.prepare()

    async def epochs(self) -> Mapping[str, str | None]:
        return await self._tags.epochs()

    async def put_epoch(self, epoch: str) -> None:
        await self._tags.put_epoch(epoch)


class _ScatteredViews:
    def __init__(self, views: TagViews, cut: Cut, pause_s: float) -> None:
        self._views = views
        self._cut = cut
        self._pause_s = pause_s

    def __getattr__(self, name: str) -> Any:
        return getattr(self._views, name)

    async def write(self, rows: Sequence[TagRow], *, at: Place | None = None) -> None:
        for piece in self._cut(rows):
            if piece is None:
                raise WriteTimedOut
            await self._views.write(piece, at=at)
            await asyncio.sleep(self._pause_s)
