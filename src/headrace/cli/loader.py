"""Loading of an application's objects by `module:name`, from the current folder or Python's path."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from headrace.errors import BadArgument

__all__ = ["load"]


def load(what: str, where: str, rule: str) -> Any:  # noqa: ANN401 - the caller looks at what it is
    """Return the object that `module:name` names. Raises BadArgument, with the rule, if there is none."""
    module, found, name = where.partition(":")
    if not found:
        raise BadArgument(what, where, rule)
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        return getattr(importlib.import_module(module), name)
    except (ModuleNotFoundError, AttributeError) as error:
        raise BadArgument(what, where, f"{rule} ({error})") from error
