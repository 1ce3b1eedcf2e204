"""Slow operations are logged with what was slow."""

from __future__ import annotations

import logging

import pytest

from headrace.journal.metrics import OPERATIONS, Operations


def test_a_slow_operation_says_what_was_slow(caplog: pytest.LogCaptureFixture) -> None:
    """The log names operation, topic, id and the time of each stage; a quick one is only counted."""
    with caplog.at_level(logging.WARNING):
        with Operations("slow-topic", slow_s=0.0).begin("read", "acc-1") as operation:
            operation.lap("store")
            operation.lap("barrier")
        with Operations("slow-topic", slow_s=60.0).begin("read", "acc-2"):
            pass
    (record,) = caplog.records
    for word in ("slow operation", "read", "slow-topic", "acc-1", "store", "barrier"):
        assert word in record.getMessage()
    assert OPERATIONS.labels("slow-topic", "read")._sum.get() > 0
