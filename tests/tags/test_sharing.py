"""What queries of a process share: the budget of Marks, questions, and what records mean."""

from __future__ import annotations

import asyncio

import pytest
from tests.suites.journal_script import Script

from headrace.model import Record
from headrace.protocol.actions import Append, Poison
from headrace.tags.marks import MarkBudget
from headrace.tags.partitions import Decoded
from headrace.tags.seams import SharedRequest


@pytest.mark.parametrize("events_per_s", [600, 2000, 10_000])
def test_steady_events_get_less_than_one_mark_each(events_per_s: int) -> None:
    """FT8: 47 partitions that always want to be marked: the budget lets one Mark pass for an event, at most."""
    budget, written, events = MarkBudget(0.0, most=1.0), 0, 0
    for tick in range(1, 10_001):
        more = tick * events_per_s // 1000 - (tick - 1) * events_per_s // 1000
        for _ in range(more):
            events += 1
            budget.earn(1)
            while budget.allows(1, tick / 1000):
                budget.spend(1)
                written += 1
    assert written <= events


def test_a_lone_event_is_marked_at_once() -> None:
    """FT8: what was not used is there when it is needed, up to a bound."""
    budget = MarkBudget(0.0)
    assert budget.allows(47, 0.0)
    for _ in range(10):
        budget.spend(47)
    assert not budget.allows(47, 0.0)
    assert budget.allows(47, 1.0)
    budget.spend(10_000)
    assert not budget.allows(1, 1.5)
    assert budget.allows(1, 60.0)


def test_more_partitions_than_the_budget_holds_are_marked_all_the_same() -> None:
    """FT8: a full budget allows any number, and has to be earned again then."""
    budget = MarkBudget(0.0)
    assert budget.allows(5000, 0.0)
    budget.spend(5000)
    assert not budget.allows(1, 0.0)


class Question:
    """Something to ask that counts, and is answered when the test says so."""

    def __init__(self) -> None:
        self.asked = 0
        self.answers: list[asyncio.Future[int]] = []

    async def put(self) -> int:
        self.asked += 1
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.answers.append(answer)
        return await answer


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_who_comes_later_gets_the_answer_to_a_later_question() -> None:
    """FT8: those who wait at the same time share one question, put after all of them came."""
    question = Question()
    look = SharedRequest(question.put)
    first = [asyncio.create_task(look.now()) for _ in range(3)]
    await settle()
    later = [asyncio.create_task(look.now()) for _ in range(3)]
    await settle()
    assert question.asked == 1
    question.answers[0].set_result(1)
    await settle()
    question.answers[1].set_result(2)
    assert [await each for each in (*first, *later)] == [1, 1, 1, 2, 2, 2]
    assert await look.recent(60.0) == 2
    assert question.asked == 2


async def test_a_question_that_fails_is_put_again() -> None:
    """All who shared it hear of it; who was cancelled takes nothing from the others."""
    question = Question()
    look = SharedRequest(question.put)
    one, two = asyncio.create_task(look.now()), asyncio.create_task(look.now())
    await settle()
    one.cancel()
    question.answers[0].set_exception(ValueError("no"))
    with pytest.raises(ValueError, match="no"):
        await two
    again = asyncio.create_task(look.recent(60.0))
    await settle()
    question.answers[1].set_result(3)
    assert await again == 3


def test_a_record_is_decoded_once_where_it_means_the_same() -> None:
    """FT8: the same record under another generation or log time, or another record of that place, is another thing."""
    script = Script()
    script.append("k", 1)
    (record,) = script.records
    decoded = Decoded()
    first = decoded.find(record, 0, 5)
    assert first.entry is not None
    assert isinstance(first.entry.action, Append)
    assert decoded.find(record, 0, 5) is first
    assert decoded.find(record, 1, 5) is not first
    assert decoded.find(record, 0, 6).entry != first.entry
    broken = Record(record.topic, record.partition, record.offset, 1, record.key, b"\xff", record.headers)
    poison = decoded.find(broken, 0, 5)
    assert poison.entry is not None
    assert isinstance(poison.entry.action, Poison)
