"""Fewer collections of garbage while a process serves."""

from __future__ import annotations

import gc

from headrace.runtime import rare_collections


def test_what_was_there_is_left_out_and_everything_is_as_before_afterwards() -> None:
    """The thresholds rise for the block only, and what was set aside is collected again later."""
    before = gc.get_threshold()
    frozen = gc.get_freeze_count()
    with rare_collections():
        assert gc.get_freeze_count() > frozen
        assert gc.get_threshold() > before
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0
