"""Code of others: backends, found by the scheme of their address, and an application's objects, by `module:name`."""

from __future__ import annotations

import importlib
import sys
import traceback
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from headrace.errors import BadArgument, HeadraceError, UnknownBackend

__all__ = ["folder_of", "load_backend", "load_named"]


def load_backend(room: str, address: str) -> Any:  # noqa: ANN401  (each room knows what its backends are)
    """Load the entry point of the group `headrace.<room>` that is named by the address's scheme."""
    scheme = address.partition(":")[0]
    found = {entry.name: entry for entry in entry_points(group=f"headrace.{room}")}
    if scheme not in found:
        raise UnknownBackend(room, address, tuple(sorted(f"{name}:" for name in found)))
    return found[scheme].load()


def folder_of(address: str, rule: str) -> Path:
    """Return the folder of an address like `embedded:./data`. Raises BadArgument with the rule if it has none.

    `embedded://data` is refused: those who write it think of `kafka://host` and mean ./data, but the path is /data.
    """
    folder = address.partition(":")[2]
    if not folder:
        raise BadArgument("address", address, rule)
    if folder.startswith("//") and not folder.startswith("///"):
        raise BadArgument("address", address, f"{rule}; with two slashes it would lie in the machine's root folder")
    return Path(folder)


def load_named(what: str, where: str, rule: str, *, folder: str | None = "") -> Any:  # noqa: ANN401 - the caller looks at it
    """Return the object that `module:name` names, from Python's path.

    The folder is put first on that path; "" is the current one, and None puts none there.

    Raises BadArgument: with the rule if there is no such object, or with the place of the failure if the module can't
    be imported. Errors of Headrace that the module raises are passed on.
    """
    module, _, name = where.partition(":")
    if not module or not name:
        raise BadArgument(what, where, rule)
    if folder is not None and folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        return getattr(importlib.import_module(module), name)
    except HeadraceError:
        raise
    except Exception as error:
        is_not_there = isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}.")
        if is_not_there or (isinstance(error, AttributeError) and module in sys.modules):
            raise BadArgument(what, where, f"{rule} ({error})") from error
        raise BadArgument(what, where, f"{module} can't be imported; {_place_of(error)}; correct it") from error


def _place_of(error: Exception) -> str:
    """Return the file, the line and the text of an error that a module raised while it was imported."""
    if isinstance(error, SyntaxError):
        file, line, text = error.filename, error.lineno, error.msg
    else:
        last = traceback.extract_tb(error.__traceback__)[-1]
        file, line, text = last.filename, last.lineno, str(error)
        if isinstance(error, ImportError):  # raised by Python's own import: the statement is what people look for
            own = [
                each for each in traceback.extract_tb(error.__traceback__) if not each.filename.startswith("<frozen")
            ]
            file, line = own[-1].filename, own[-1].lineno
    return f"{Path(file or '?').name}:{line}: {type(error).__name__}: {text}"
