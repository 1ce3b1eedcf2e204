"""Versions as ETags: what If-Match and If-None-Match say (RFC 9110), and what that means for a read or a write."""

from __future__ import annotations

import re

from starlette.datastructures import Headers

from headrace.errors import BadArgument

__all__ = ["ANY_VERSION", "etag_of", "has_version", "versions_in"]

ANY_VERSION = "*"

_TAGS = re.compile(r'\s*(?:W/)?"[^"]*"\s*(?:,\s*(?:W/)?"[^"]*"\s*)*')
_TAG = re.compile(r'(W/)?"([^"]*)"')
_MOST_DIGITS = 19


def etag_of(version: int) -> str:
    """Return the ETag of a version."""
    return f'"{version}"'


def has_version(headers: Headers, version: int) -> bool:
    """Return True if If-None-Match says that the caller has this version, so that 304 is the answer.

    A proxy that has compressed an answer marks its ETag as weak, and sends it so. What is no list of ETags names none.
    """
    given = headers.getlist("if-none-match")
    if not given:
        return False
    sent = ", ".join(given).strip()
    if sent == ANY_VERSION:
        return True
    return bool(_TAGS.fullmatch(sent)) and str(version) in {text for _, text in _TAG.findall(sent)}


def versions_in(headers: Headers) -> frozenset[int] | str | None:
    """Return the versions that If-Match names, or `ANY_VERSION`; None without that header. Raises BadArgument.

    A weak ETag, and one that no version has, never fits a write.
    """
    given = headers.getlist("if-match")
    if not given:
        return None
    sent = ", ".join(given).strip()
    if sent == ANY_VERSION:
        return ANY_VERSION
    if not _TAGS.fullmatch(sent):
        raise BadArgument("If-Match", sent[:60], 'it is the ETag of a value, as in "7", or *')
    return frozenset(
        int(text)
        for weak, text in _TAG.findall(sent)
        if not weak and text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS
    )
