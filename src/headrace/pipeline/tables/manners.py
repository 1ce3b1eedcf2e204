"""How journals are read as a table."""

from __future__ import annotations

from typing import Literal

import msgspec

__all__ = ["Manners"]


class Manners(msgspec.Struct, frozen=True):
    """How journals are read. `held`: what to do with a quarantined one.

    `skew_ms`: how far the clocks of producers may be apart; None: by any time. Journals whose first and last record
    lie further than that from the times that are wanted are not looked at.
    """

    held: Literal["raise", "skip"] = "raise"
    skew_ms: int | None = 3_600_000
