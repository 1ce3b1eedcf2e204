"""Failures of code that is not ours: the text of any error, and work that may end its process.

Owners count in the log, before they begin such work, that they do; whoever gets past the work sets the count back. So
the count is that of the owners that ended, or lost their partition, while they were at it.
"""

from __future__ import annotations

from headrace.errors import HeadraceError

__all__ = ["EXITS", "OWNERS_TRIED", "error_text", "is_suspect", "is_tried_alone", "own_text", "suspect_text"]

# What ends the program. Whatever else an application's code raises is its own failure, also if it is no Exception, as
# the panics of extensions in Rust and the outcomes of pytest.
EXITS = (KeyboardInterrupt, SystemExit)
OWNERS_TRIED = 3
"""How many owners try what may end its process."""


def error_text(error: BaseException) -> str:
    """Return the message of an error of ours, and the class and the text of any other."""
    name, text = type(error).__name__, own_text(error)
    if isinstance(error, HeadraceError):
        return text
    return f"{name}: {text}" if text else name


def own_text(error: BaseException) -> str:
    """Return what the error says, in characters that UTF-8 can carry."""
    try:
        return str(error).encode("utf-8", "backslashreplace").decode()
    except Exception:  # an application's error may fail at that, too
        return "its text can't be made"


def is_tried_alone(owners: int) -> bool:
    """Return True if an owner that is the n-th to begin tries one thing at a time, to find the one that is wrong."""
    return owners > 1


def is_suspect(owners: int) -> bool:
    """Return True if the n-th owner to begin must not try the first thing: it ended those before."""
    return owners > OWNERS_TRIED


def suspect_text(owners: int = OWNERS_TRIED) -> str:
    """Return the reason to give for work that is suspect."""
    return f"its process ended {owners} times while it was handled"
