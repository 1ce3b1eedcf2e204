"""Addresses of folders: what looks like the address of a server is refused, and nothing is made in the root folder."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.cluster import coordinators
from headrace.errors import BadArgument
from headrace.log import open_log
from headrace.runtime import folder_of
from headrace.serde import open_registry
from headrace.state import open_state_store
from headrace.store import open_store

OPENERS: dict[str, Callable[[str], Awaitable[Any]]] = {
    "log": lambda place: open_log(f"embedded:{place}"),
    "store": lambda place: open_store(f"embedded:{place}"),
    "coordinator": lambda place: coordinators.open_store(f"embedded:{place}"),
    "state": lambda place: open_state_store(f"rocksdb:{place}"),
    "registry": lambda place: open_registry(f"folder:{place}"),
}


@pytest.mark.parametrize("room", OPENERS)
def test_two_slashes_are_no_folder(room: str) -> None:
    """In embedded://data the slashes would make a folder of the machine's root, which a container forgets."""

    async def opened(place: str) -> None:
        await OPENERS[room](place)

    for place in ("//headrace-nowhere/data", "//", ""):
        with pytest.raises(BadArgument, match=r":\./"):
            asyncio.run(opened(place))
    assert not Path("/headrace-nowhere").exists()


@pytest.mark.parametrize(
    ("address", "folder"),
    [("embedded:./a", "a"), ("embedded:a b/c", "a b/c"), ("embedded:/a", "/a"), ("embedded:///a/b", "/a/b")],
)
def test_paths_stay_as_they_are_written(address: str, folder: str) -> None:
    """A path is relative or absolute; three slashes begin an absolute one, as in other addresses of files."""
    assert folder_of(address, "it needs a folder, as in embedded:./data") == Path(folder)
