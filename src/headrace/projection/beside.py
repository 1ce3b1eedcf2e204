"""Offsets beside the handler, in the store's settings: at least once, for handlers that have no SQL transaction."""

from __future__ import annotations

import inspect
from collections.abc import Sequence

import msgspec

from headrace.errors import BadArgument, Fenced
from headrace.projection.definitions import Projection
from headrace.projection.ports import Offsets
from headrace.projection.slots import below
from headrace.store import Settings
from headrace.tags import TaggedEvent, TagOffset

__all__ = ["BesideTarget", "setting_of"]


class _Stored(msgspec.Struct, frozen=True):
    tag: str
    offsets: tuple[str | None, ...]


_decode = msgspec.json.Decoder(_Stored).decode


def setting_of(name: str) -> str:
    """Return the name of the setting that holds a projection's offsets."""
    return f"projection/{name}"


class BesideTarget:
    """Calls the handler, then moves the offsets: who dies in between handles the last batch again."""

    def __init__(self, settings: Settings, projection: Projection) -> None:
        self._settings = settings
        self._projection = projection
        self._key = setting_of(projection.name)

    async def load(self) -> Offsets:
        """Return how far each slot is."""
        _, stored = await self._read()
        return {slot: TagOffset.parse(text) if text else None for slot, text in enumerate(stored.offsets)}

    async def handle(self, events: Sequence[TaggedEvent], known: Offsets, to: TagOffset) -> None:
        """Handle events one by one, then move on."""
        for event in events:
            await _call(self._projection.handler, event)
        while True:
            text, stored = await self._read()
            offsets = list(stored.offsets)
            for slot, place in below(known, to).items():
                if offsets[slot] != (str(place) if place is not None else None):
                    raise Fenced(f"projection {self._projection.name}")
                offsets[slot] = str(to)
            if await self._settings.put(self._key, self._encode(offsets), expected=text):
                return

    async def begin_again(self, at: TagOffset | None) -> None:
        """Reset the handler's work, then the offsets."""
        if self._projection.reset is not None:
            await _call(self._projection.reset)
        place = str(at) if at is not None else None
        while True:
            text, _ = await self._read()
            if await self._settings.put(self._key, self._encode([place] * self._projection.slots), expected=text):
                return

    async def close(self) -> None:
        """Nothing was opened."""

    async def _read(self) -> tuple[str | None, _Stored]:
        text = await self._settings.get(self._key)
        stored = _decode(text) if text is not None else _Stored(self._projection.tag, (None,) * self._projection.slots)
        if len(stored.offsets) != self._projection.slots:
            rule = f"projection {self._projection.name!r} has run with {len(stored.offsets)}; keep that, or rename it"
            raise BadArgument("slots", self._projection.slots, rule)
        return text, stored

    def _encode(self, offsets: Sequence[str | None]) -> str:
        return msgspec.json.encode(_Stored(self._projection.tag, tuple(offsets))).decode()


async def _call(function: object, *arguments: object) -> None:
    done = function(*arguments)  # type: ignore[operator]
    if inspect.isawaitable(done):
        await done
