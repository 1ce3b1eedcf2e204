"""Line numbers of keys in a TOML file, which Python's own parser does not give."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any

__all__ = ["lines_of"]


@lru_cache(maxsize=16)
def lines_of(text: str) -> Mapping[tuple[str, ...], int]:
    """Return the line of each table and key of a valid TOML text, counted from 1."""
    found: dict[tuple[str, ...], int] = {}
    table: tuple[str, ...] = ()
    for line, statement in _statements(text):
        paths = list(_paths(tomllib.loads(statement)))
        if statement.lstrip().startswith("["):
            table = max(paths, key=len)
        else:
            paths = [(*table, *path) for path in paths]
        for path in paths:
            found.setdefault(path, line)
    return MappingProxyType(found)


def _statements(text: str) -> Iterator[tuple[int, str]]:
    """Split into headers and assignments: lines are gathered until they are valid TOML."""
    gathered, began = "", 1
    for number, line in enumerate(text.split("\n"), start=1):
        if not gathered and (not line.strip() or line.lstrip().startswith("#")):
            continue
        began = began if gathered else number
        gathered += f"{line}\n"
        if _is_complete(gathered):
            yield began, gathered
            gathered = ""


def _is_complete(statement: str) -> bool:
    try:
        tomllib.loads(statement)
    except tomllib.TOMLDecodeError:
        return False
    return True


def _paths(tree: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, value in tree.items():
        yield (*above, key)
        if isinstance(value, dict):
            yield from _paths(value, (*above, key))
