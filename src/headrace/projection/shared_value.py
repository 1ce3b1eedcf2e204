"""A JSON value in the store's settings that several processes change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec

from headrace.store import Settings

__all__ = ["SharedValue"]

T = TypeVar("T", bound=msgspec.Struct)


class SharedValue(Generic[T]):
    """A struct under one key. Changes are atomic: each is made to what is there, whoever was quicker."""

    def __init__(self, settings: Settings, key: str, empty: T) -> None:
        self._settings = settings
        self._key = key
        self._empty = empty
        self._decode = msgspec.json.Decoder(type(empty)).decode

    async def get(self) -> T:
        """Return the value."""
        text = await self._settings.get(self._key)
        return self._empty if text is None else self._decode(text)

    async def change(self, edit: Callable[[T], T]) -> T:
        """Change the value. `edit` is called again when another process was quicker; what it raises ends the change."""
        while True:
            text = await self._settings.get(self._key)
            old = self._empty if text is None else self._decode(text)
            new = edit(old)
            if new == old and text is not None:
                return new
            if await self._settings.put(self._key, msgspec.json.encode(new).decode(), expected=text):
                return new
