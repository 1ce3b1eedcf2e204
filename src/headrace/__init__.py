"""Headrace turns a log into something an application can stand on.

    async with headrace.connect("embedded:./data") as hr:
        accounts = hr.journal("accounts")
        await accounts.append("acc-1", [Event(1, {"opened": 100})])

Names are loaded when they are first used: importing a room imports the drivers of no other.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.app import Headrace as Headrace
    from headrace.app import connect as connect
    from headrace.errors import HeadraceError as HeadraceError
    from headrace.model import Event as Event
    from headrace.model import NewRecord as NewRecord
    from headrace.model import Record as Record
    from headrace.model import TopicConfig as TopicConfig
    from headrace.model import TopicPartition as TopicPartition

__version__ = "0.1.0"

_HOMES = {
    "Event": "headrace.model",
    "Headrace": "headrace.app",
    "HeadraceError": "headrace.errors",
    "NewRecord": "headrace.model",
    "Record": "headrace.model",
    "TopicConfig": "headrace.model",
    "TopicPartition": "headrace.model",
    "connect": "headrace.app",
}

__all__ = [
    "Event",
    "Headrace",
    "HeadraceError",
    "NewRecord",
    "Record",
    "TopicConfig",
    "TopicPartition",
    "__version__",
    "connect",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'headrace' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
