"""Errors: fields first, a message made of them, families by what the caller can do."""

from __future__ import annotations

import dataclasses
import pickle
from typing import Any

import pytest

from headrace import errors
from headrace.errors import HeadraceError, Misconfigured, Refused, SettingsProblem, Unavailable

SAMPLES: dict[str, Any] = {
    "str": "x",
    "int": 1,
    "int | None": 1,
    "float": 1.5,
    "bool": True,
    "object": None,
    "tuple[str, ...]": ("a", "b"),
    "tuple[SettingsProblem, ...]": (SettingsProblem("app.toml", "log.address", "is wrong"),),
}
LEAVES = [
    error
    for name in errors.__all__
    if dataclasses.is_dataclass(error := getattr(errors, name)) and issubclass(error, Exception)
]


def sample(kind: Any) -> HeadraceError:
    return kind(**{field.name: SAMPLES[field.type] for field in dataclasses.fields(kind)})


@pytest.mark.parametrize("kind", LEAVES)
def test_every_error_belongs_to_a_family_and_says_something(kind: type[HeadraceError]) -> None:
    """One of three families, a message without holes, and a place in the drawing."""
    assert sum(issubclass(kind, family) for family in (Refused, Unavailable, Misconfigured)) == 1
    message = str(sample(kind))
    assert message
    assert "{" not in message
    assert f"── {kind.__name__}" in (errors.__doc__ or "")


@pytest.mark.parametrize("kind", LEAVES)
def test_errors_survive_pickling(kind: type[HeadraceError]) -> None:
    """Spark workers and child processes send them home."""
    error = sample(kind)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert vars(again) == vars(error)
    assert str(again) == str(error)


def test_an_unknown_outcome_is_said() -> None:
    """The caller must know whether a retry may do it twice."""
    assert "may or may not have happened" in str(errors.TimedOut("append", 3, outcome_known=False))
    assert "nothing was done" in str(errors.TimedOut("append", 3))


def test_lost_offsets_are_named_as_a_range() -> None:
    """Below the start: which records are gone; above the end: where to start."""
    assert "3 records from 4 to 6 are gone" in str(errors.OffsetOutOfRange("t", 0, 4, 7, 9))
    assert "start at 9 or lower" in str(errors.OffsetOutOfRange("t", 0, 12, 7, 9))
