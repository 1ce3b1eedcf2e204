"""Answers to commands that were done, when a part of the result can't be told: over HTTP and over gRPC."""

from __future__ import annotations

from typing import Any

import pytest
from tests.engine.models import Deposited, bank_engine

from headrace.engine import EngineClient, Success
from headrace.errors import ReplyNotReadable
from headrace.gateway.engines import _as_json
from headrace.rpc.service import _success_reply


def bank_client() -> EngineClient[Any]:
    def nowhere() -> Any:
        raise AssertionError("nothing is sent")

    return EngineClient(bank_engine(), nowhere)


def test_a_state_that_json_can_not_carry_is_left_out() -> None:
    """The command was done all the same, and the answer has its version."""
    answer = _as_json(bank_client(), Success(state=1j, version=3))
    assert (answer["state"], answer["version"]) == (None, 3)


def test_an_event_that_can_not_be_told_does_not_make_the_command_seem_undone() -> None:
    """N12: an upcaster may make an event with wrong fields; the answer says that the outcome is not known."""
    wrong: Success[Any] = Success(state=None, version=3, events=(Deposited("many"),), token="")  # type: ignore[arg-type]
    with pytest.raises(ReplyNotReadable) as caught:
        _as_json(bank_client(), wrong)
    assert not caught.value.outcome_known
    failed = _success_reply(bank_client(), wrong).failed
    assert (failed.kind, failed.outcome_known) == ("ReplyNotReadable", False)
