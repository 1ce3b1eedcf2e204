"""The deadlines of commands that are on their way."""

from __future__ import annotations

import asyncio

from headrace.engine.batches import CommandDeadlines, PendingCommand
from headrace.engine.commands import CommandRequest


def command(number: int, deadline_s: float) -> PendingCommand:
    request = CommandRequest(aggregate="a", kind="Deposit", data=b"{}")
    return PendingCommand(number, request, deadline_s, 1.0, asyncio.get_running_loop().create_future())


async def test_a_command_that_is_not_answered_is_given_up_at_its_deadline_whatever_came_before() -> None:
    """An earlier deadline that is added later is kept, too; what was answered is left alone."""
    loop, expired, given_up = asyncio.get_running_loop(), asyncio.Event(), list[int]()

    def expire(each: PendingCommand) -> None:
        given_up.append(each.number)
        expired.set()

    deadlines = CommandDeadlines(loop, expire)
    late, answered, due = command(1, loop.time() + 60), command(2, loop.time() + 0.01), command(3, loop.time() + 0.02)
    for each in (late, answered, due):
        deadlines.add(each)
    answered.done.cancel()
    await asyncio.wait_for(expired.wait(), 10)
    assert given_up == [3]
    deadlines.close()


async def test_commands_that_are_answered_are_not_held_until_their_deadlines() -> None:
    """A partition that does thousands of commands in a second must not keep them all for as long as they might take."""
    loop = asyncio.get_running_loop()
    deadlines = CommandDeadlines(loop, lambda each: None)
    for number in range(1000):
        each = command(number, loop.time() + 60)
        deadlines.add(each)
        each.done.cancel()
    assert len(deadlines._in_order) + len(deadlines._heap) == 1
    deadlines.close()
