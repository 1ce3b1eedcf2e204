"""How queries that are merged wait for one another: each can be asked to say when it has passed a place."""

from __future__ import annotations

from collections.abc import Callable

from headrace.store import TagTime
from headrace.store.tag_rows import FIRST_TAG_TIME

__all__ = ["NOBODY", "PlaceWatch"]


def _nothing() -> None:
    """Do nothing."""


class PlaceWatch:
    """A place that another query waits for, and what the query that is asked says about it.

    The place counts as an event of the asked query: Marks are written for it, topics are looked for, and a query that
    ends gives what lies below it first. A query that has given all it should stays, so that it can still be asked.
    """

    def __init__(self) -> None:
        self.wanted: TagTime | None = None
        self.passed: TagTime = FIRST_TAG_TIME
        self.is_spent = False
        self.on_want: Callable[[], None] = _nothing
        self.on_news: Callable[[], None] = _nothing

    @property
    def keeps_query(self) -> bool:
        """Whether a query that has given all it should waits for questions instead of ending."""
        return True

    def want(self, place: TagTime) -> None:
        """Ask for a place, unless another one is still asked for."""
        if self.wanted is None:
            self.wanted = place
            self.on_want()

    def tell_passed(self, place: TagTime) -> None:
        """Say that all events at or below the place have been given."""
        self.wanted, self.passed = None, max(self.passed, place)
        self.on_news()

    def tell_spent(self) -> None:
        """Say that a query that ends has given all that was there when it began."""
        if not self.is_spent:
            self.is_spent = True
            self.on_news()


class _Nobody(PlaceWatch):
    """The watch of a query that is not merged with others."""

    @property
    def keeps_query(self) -> bool:
        """False: it ends when it has given all it should."""
        return False

    def want(self, place: TagTime) -> None:
        """Refuse: all queries without a watch share this one."""
        raise AssertionError(f"nobody can wait for {place} here")

    def tell_spent(self) -> None:
        """Say nothing, to nobody."""


NOBODY = _Nobody()
