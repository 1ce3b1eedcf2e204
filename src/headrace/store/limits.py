"""The limits of every store: values beyond them are refused.

A row beyond them is refused for good, so its journal is held; other journals are not.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from headrace.errors import BadArgument

__all__ = [
    "MAX_ID_BYTES",
    "MAX_PAYLOAD_BYTES",
    "MAX_TAG_BYTES",
    "check_paging",
    "check_share",
    "why_id_is_refused",
    "why_tags_are_refused",
]

_KEY_BYTES: Final = 65_535
_PART_BYTES: Final = 3
_NUMBER_BYTES: Final = 8
_TOPIC_BYTES: Final = 256  # Kafka's 249, and what names the side table of held records

MAX_ID_BYTES: Final = _KEY_BYTES - (_PART_BYTES + _TOPIC_BYTES) - (_PART_BYTES + _NUMBER_BYTES) - _PART_BYTES
MAX_TAG_BYTES: Final = _KEY_BYTES - (_PART_BYTES + _NUMBER_BYTES) - _PART_BYTES
MAX_PAYLOAD_BYTES: Final = 12 * 1024 * 1024


def why_id_is_refused(id_: str) -> str | None:
    """Return why no store can keep a journal of that id; None if all can."""
    if not id_:
        return "its id is empty"
    size_bytes = len(id_.encode(errors="surrogateescape"))
    return f"its id has {size_bytes} bytes, a store takes {MAX_ID_BYTES}" if size_bytes > MAX_ID_BYTES else None


def why_tags_are_refused(tags: Iterable[str]) -> str | None:
    """Return why no store can keep an event with these tags; None if all can."""
    for tag in tags:
        if not tag:
            return "a tag is empty"
        if tag[0] == "\0":
            return "a tag begins with a NUL, as only the store's own do"
        if (size_bytes := len(tag.encode())) > MAX_TAG_BYTES:
            return f"a tag has {size_bytes} bytes, a store takes {MAX_TAG_BYTES}"
    return None


def check_paging(*, segment_size: int, page_size: int) -> None:
    """Refuse pages and segments of size 0."""
    if segment_size < 1:
        raise BadArgument("segment_size", segment_size, "a segment holds at least 1 seq_nr")
    if page_size < 1:
        raise BadArgument("page_size", page_size, "a page holds at least 1 row")


def check_share(share: tuple[int, int] | None) -> None:
    """Refuse a share that is not one of its number of shares."""
    if share is not None and not 0 <= share[0] < share[1]:
        raise BadArgument("share", share, "shares are numbered from 0, up to one less than there are")
