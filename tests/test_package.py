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


def test_rooms_are_entered_by_their_front_doors() -> None:
    """No module of a room imports from behind the front door of another one: what others need is exported there."""
    source = Path(headrace.__file__).parent
    rooms = {folder.name for folder in source.iterdir() if (folder / "__init__.py").exists()}
    past = []
    for file in source.rglob("*.py"):
        own = file.relative_to(source).parts[0]
        for node in ast.walk(ast.parse(file.read_text())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [each.name for each in node.names] if isinstance(node, ast.Import) else []
            for name in names:
                package, _, rest = name.removeprefix("headrace.").partition(".")
                if name.startswith("headrace.") and package in rooms - {own} and rest and own != "testing":
                    past.append(f"{file.relative_to(source)} imports {name}")
    assert past == []


def test_no_public_class_has_the_name_of_another() -> None:
    """A name means one thing, whichever room it is met in; the exams of ports may repeat one another."""
    source = Path(headrace.__file__).parent
    homes: dict[str, list[str]] = {}
    for file in source.rglob("*.py"):
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and "testing" not in file.parts:
                homes.setdefault(node.name, []).append(str(file.relative_to(source)))
    assert {name: files for name, files in homes.items() if len(files) > 1} == {}
