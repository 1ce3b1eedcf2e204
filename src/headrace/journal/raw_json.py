"""JSON that is carried, not looked at."""

from __future__ import annotations

import msgspec

__all__ = ["raw_json"]


def raw_json(written: msgspec.Raw | msgspec.UnsetType) -> bytes | None:
    """Return the bytes of a JSON value; None for one that is absent or null."""
    if isinstance(written, msgspec.UnsetType):
        return None
    data = bytes(written)
    return None if data == b"null" else data
