"""The limit of open files of a process that serves."""

from __future__ import annotations

import resource
from collections.abc import Iterator

import pytest

from headrace.runtime import raise_open_files


@pytest.fixture(autouse=True)
def _limits() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_shells_low_limit_is_raised_to_what_the_system_allows() -> None:
    """A soft limit of 256 becomes the hard one, or about a million; calling it again changes nothing."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    limit = raise_open_files()
    assert limit == resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 256
    assert raise_open_files() == limit


def test_a_system_that_refuses_leaves_the_limit_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hard limit that is shown and can't be used is no error."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))

    def refuse(*_: object) -> None:
        raise ValueError("current limit exceeds maximum limit")

    with monkeypatch.context() as patch:
        patch.setattr(resource, "setrlimit", refuse)
        assert raise_open_files() == 256
