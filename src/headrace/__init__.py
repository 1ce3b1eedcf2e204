"""Headrace turns a log into something an application can stand on.

    async with headrace.connect("embedded:./data") as hr:
        accounts = hr.journal("accounts")
        await accounts.append("acc-1", [Event(1, {"opened": 100})])

Names are loaded when they are first used: importing a room imports the drivers of no other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.lazy_names import lazy_names

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

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "headrace.app": "Headrace connect",
        "headrace.errors": "HeadraceError",
        "headrace.model": "Event NewRecord Record TopicConfig TopicPartition",
    },
)
