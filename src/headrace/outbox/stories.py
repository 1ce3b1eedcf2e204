"""What an error says, as every database stores it."""

from __future__ import annotations

__all__ = ["storable"]

_MOST_CHARACTERS = 2000


def storable(story: str) -> str:
    """Return the story, cut, with characters that a database refuses written as escapes.

    Errors quote the data they are about: PostgreSQL takes no NUL, and half of a surrogate pair has no UTF-8.
    """
    return story[:_MOST_CHARACTERS].encode(errors="backslashreplace").decode().replace("\0", "\\x00")
