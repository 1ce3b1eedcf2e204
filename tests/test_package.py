"""The package's shape: public names, docstrings, rooms, files that must not be there."""

from __future__ import annotations

import ast
import importlib
import pkgutil
from pathlib import Path

import pytest

import headrace

ROOT = Path(headrace.__file__).parent
MODULES = sorted(module.name for module in pkgutil.walk_packages([str(ROOT)], "headrace."))


@pytest.mark.parametrize("name", MODULES)
def test_a_module_says_what_it_is_and_what_is_public(name: str) -> None:
    """A docstring, and an `__all__` whose names are there, sorted or grouped but never doubled."""
    if name.endswith("__main__"):
        return
    if name.startswith("headrace.outbox.django"):
        pytest.importorskip("django", reason="needs the extra django")
    module = importlib.import_module(name)
    assert module.__doc__, f"{name} has no docstring"
    assert hasattr(module, "__all__"), f"{name} has no __all__"
    assert len(set(module.__all__)) == len(module.__all__)
    for public in module.__all__:
        assert hasattr(module, public), f"{name}.__all__ names {public}, which is not there"


def test_the_front_door_is_lazy_and_complete() -> None:
    """Every name of `headrace.__all__` can be had; an unknown one is an AttributeError."""
    for name in headrace.__all__:
        assert getattr(headrace, name) is not None
    with pytest.raises(AttributeError, match="no_such_name"):
        headrace.no_such_name  # noqa: B018
    assert dir(headrace) == sorted(headrace.__all__)


def test_ports_are_small() -> None:
    """A protocol has at most six methods: more is two ports."""
    for path in ROOT.rglob("ports.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                is_property = lambda f: any(getattr(d, "id", "") == "property" for d in f.decorator_list)  # noqa: E731
                functions = [f for f in node.body if isinstance(f, ast.FunctionDef | ast.AsyncFunctionDef)]
                methods = [f.name for f in functions if not is_property(f)]
                assert len(methods) <= 6, f"{path.name}: {node.name} has {len(methods)} methods"
