"""Refusing what no store could answer."""

from __future__ import annotations

from headrace.errors import BadArgument

__all__ = ["check_paging"]


def check_paging(*, segment_size: int, page_size: int) -> None:
    """Refuse pages and segments that hold nothing."""
    if segment_size < 1:
        raise BadArgument("segment_size", segment_size, "a segment holds at least 1 seq_nr")
    if page_size < 1:
        raise BadArgument("page_size", page_size, "a page holds at least 1 row")
