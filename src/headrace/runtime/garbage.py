"""Garbage collection in a process that serves: what was there at its start is never looked at again."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

__all__ = ["rare_collections"]

# Python's own are 700, 10 and 10: with thousands of requests in flight it would look at all of them many times.
_COLLECTION_THRESHOLDS = (20_000, 20, 20)


@contextlib.contextmanager
def rare_collections() -> Iterator[None]:
    """Collect cyclic garbage less often while the block runs, and leave out all that exists now.

    A node's commands leave hardly any cycles, and a fifth of its time went into looking for them. It is for programs of
    their own: a library does not change this for the application that it is part of.
    """
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_COLLECTION_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
