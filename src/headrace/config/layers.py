"""Layers of settings: the values of one TOML file or of the environment, with the source of each, down to the line."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

from headrace.errors import SettingsProblem

__all__ = [
    "DEFAULTS",
    "KeyPath",
    "Layer",
    "Tree",
    "leaves",
    "lines_of",
    "merge",
    "read_toml",
    "read_toml_file",
    "without",
]

KeyPath: TypeAlias = tuple[str, ...]
Tree: TypeAlias = Mapping[str, Any]

DEFAULTS = "defaults"


@dataclass(frozen=True)
class Layer:
    """Values from one source; `text` is kept, where there is one, to find a key's line."""

    source: str
    tree: Tree
    text: str | None = field(default=None, repr=False)

    def source_of(self, path: KeyPath) -> str:
        """Return the source of one key: `app.toml:12`, `environment SHOP__DB__URL`, `defaults`."""
        if self.text is None:
            return self.source
        lines = lines_of(self.text)
        known = [path[:depth] for depth in range(len(path), 0, -1) if path[:depth] in lines]
        return f"{self.source}:{lines[known[0]]}" if known else self.source


def read_toml_file(path: Path) -> Layer | SettingsProblem:
    """Read a file; a file that can't be read or is not TOML is reported as a problem."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        return SettingsProblem(str(path), "file", f"can't be read: {error.strerror or error}")
    except UnicodeDecodeError as error:
        return SettingsProblem(str(path), "file", f"is not TOML: not UTF-8 at byte {error.start}")
    return read_toml(text, str(path))


def read_toml(text: str, source: str) -> Layer | SettingsProblem:
    """Read TOML that came from `source`."""
    try:
        return Layer(source, tomllib.loads(text), text)
    except tomllib.TOMLDecodeError as error:
        return SettingsProblem(source, "file", f"is not TOML: {error}")


def leaves(tree: Tree, above: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:
    """Yield each value with its path; tables are entered unless they are empty. A list is one value."""
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, (*above, key))
        else:
            yield (*above, key), value


def merge(below: Tree, above: Tree) -> Tree:
    """Merge one tree over another: tables are joined, everything else is replaced."""
    merged = dict(below)
    for key, value in above.items():
        under = merged.get(key)
        merged[key] = merge(under, value) if isinstance(under, Mapping) and isinstance(value, Mapping) else value
    return merged


def without(tree: Tree, path: KeyPath) -> Tree:
    """Return the tree without the value at `path`."""
    head, *rest = path
    if head not in tree:
        return tree
    if not rest:
        return {key: value for key, value in tree.items() if key != head}
    return {**tree, head: without(tree[head], tuple(rest))} if isinstance(tree[head], Mapping) else tree


@lru_cache(maxsize=16)
def lines_of(text: str) -> Mapping[tuple[str, ...], int]:
    """Return the line of each table and key of a valid TOML text, counted from 1; Python's own parser gives none."""
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
