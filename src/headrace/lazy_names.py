"""Front doors that load nothing until a name is asked for: importing a room imports the drivers of no other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module

__all__ = ["lazy_names"]

Door = tuple[Callable[[str], object], Callable[[], list[str]], list[str]]


def lazy_names(package: str, homes: Mapping[str, str], *, extras: Mapping[str, str] | None = None) -> Door:
    """Return `__getattr__`, `__dir__` and `__all__` of a package: `homes` has the names of each module.

    A module that needs a package of `extras` which is not installed raises MissingExtra, with the extra's name.
    """
    home_of = {name: module for module, names in homes.items() for name in names.split()}

    def load(name: str) -> object:
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            module = import_module(home_of[name])
        except ModuleNotFoundError as missing:
            package_name = (missing.name or "").partition(".")[0]
            extra = (extras or {}).get(package_name)
            if extra is None:
                raise
            from headrace.errors import MissingExtra  # here: `headrace --help` imports this module, and needs no errors

            raise MissingExtra(package_name, extra) from missing
        return getattr(module, name)

    names = sorted(home_of)
    return load, lambda: names, names
