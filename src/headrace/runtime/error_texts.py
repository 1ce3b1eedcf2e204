"""The text of any error, also of an application's own whose text can't be made."""

from __future__ import annotations

from headrace.errors import HeadraceError

__all__ = ["EXITS", "error_text", "own_text"]

# What ends the program. Whatever else an application's code raises is its own failure, also if it is no Exception, as
# the panics of extensions in Rust and the outcomes of pytest.
EXITS = (KeyboardInterrupt, SystemExit)


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
