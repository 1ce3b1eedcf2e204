"""Consistency tokens of states: what a copy has, what only the owner has, and what nobody has."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from tests.state.conftest import Setting

from headrace.errors import BadToken, StateStale, TimedOut, TokenAhead, TokenOfOtherTopic
from headrace.model import ConsistencyToken, NewRecord, Position, TokenPlace
from headrace.state import ProducerWriter, StatePartition, place_of


def token_of(partition: StatePartition, name: str = "things") -> ConsistencyToken:
    """Return the token of all that a copy has."""
    place = place_of(partition.replica(name))
    assert place is not None
    return ConsistencyToken((place,))


async def test_a_standby_that_lacks_the_record_leaves_the_read_to_the_owner(embedded: Setting) -> None:
    """The token is the lower bound of what a standby may show; a token of another key's partition or state is not."""
    spec, other = embedded.spec(), embedded.spec("others")
    owner = await embedded.owned(spec, other)
    standby = await embedded.open(spec, other, node="b")
    assert place_of(standby.replica("things")) is None
    await owner.state(spec).put("k", "v")
    token = token_of(owner)
    await owner.check_token("things", token, timeout_s=1)
    with pytest.raises(StateStale, match="names offset 0, it is whole below 0"):
        await standby.check_token("things", token, timeout_s=1)
    await standby.check_token("others", token, timeout_s=1)
    await standby.catch_up()
    await standby.check_token("things", token, timeout_s=1)
    assert token_of(standby).places >= token.places


async def test_the_owner_has_what_a_standby_has_shown(embedded: Setting) -> None:
    """A standby has also passed the end of the last transaction: its offset and its token hold at the owner."""
    spec = embedded.spec()
    owner = await embedded.owned(spec)
    standby = await embedded.open(spec, node="b")
    await owner.state(spec).put("k", "v")
    await standby.catch_up()
    (place,) = token_of(standby).places
    assert place.offset >= (owner.replica("things").complete_offset or 0), "the test is about this"
    await owner.check_token("things", token_of(standby), timeout_s=1)
    await owner.check_fresh("things", max_staleness_s=None, at_least=place.offset)
    shown = await standby.state(spec).read("k")
    assert (await owner.state(spec).read("k", at_least=shown.offset)).value == shown.value
    async with owner.unit_of_work() as unit:
        assert await owner.state(spec, unit).get("k", at_least=shown.offset) == "v"
    with pytest.raises(StateStale):
        await owner.check_fresh("things", max_staleness_s=None, at_least=place.offset + 1)
    with pytest.raises(StateStale):
        await owner.state(spec).get("k", at_least=place.offset + 1)


async def test_tokens_that_the_owner_can_never_reach_are_refused(embedded: Setting) -> None:
    """Another topic of the name, a partition and an offset that do not exist: errors of the owner, at once.

    A standby does not judge: it may not know yet that its topic was replaced.
    """
    spec = embedded.spec()
    owner = await embedded.owned(spec)
    standby = await embedded.open(spec, node="b")
    await owner.state(spec).put("k", "v")
    await standby.catch_up()
    (place,) = token_of(owner).places
    for wrong, error in (
        (place._replace(topic_id="another"), TokenOfOtherTopic),
        (place._replace(partition=1), BadToken),
        (place._replace(offset=place.offset + 1000), TokenAhead),
    ):
        token = ConsistencyToken((wrong,))
        with pytest.raises(error):
            await owner.check_token("things", token, timeout_s=1)
        with pytest.raises(StateStale):
            await standby.check_token("things", token, timeout_s=1)


async def test_a_token_from_before_a_resize_is_for_the_owner(embedded: Setting) -> None:
    """The owner of the new topics has all that the old ones held; a standby may be amid reading it."""
    spec = embedded.spec()
    owner = await embedded.owned(spec)
    standby = await embedded.open(spec, node="b")
    before = ConsistencyToken((TokenPlace(f"{spec.topic}.2", "another", 7, 100),))
    await owner.check_token("things", before, timeout_s=1)
    with pytest.raises(StateStale):
        await standby.check_token("things", before, timeout_s=1)


class HeldWriter(ProducerWriter):
    """A writer whose commits are in the log, and answered when the test says so."""

    def __init__(self, inner: ProducerWriter) -> None:
        super().__init__(inner._producer)
        self.written = asyncio.Event()
        self.answered = asyncio.Event()

    async def commit(self, records: Sequence[NewRecord]) -> Sequence[Position]:
        """Commit, and wait."""
        positions = await super().commit(records)
        self.written.set()
        await self.answered.wait()
        return positions


async def test_the_owner_waits_for_a_commit_that_a_standby_has_seen_before_it(embedded: Setting) -> None:
    """A standby can read a record before its owner hears of the commit; the token of that read holds at both."""
    spec = embedded.spec()
    owner = await embedded.open(spec)
    writer = HeldWriter(await embedded.writer(spec))
    owner.own(writer)
    standby = await embedded.open(spec, node="b")
    putting = asyncio.create_task(owner.state(spec).put("k", "v"))
    await writer.written.wait()
    await standby.catch_up()
    token = token_of(standby)
    with pytest.raises(TimedOut):
        await owner.check_token("things", token, timeout_s=0.02)
    checking = asyncio.create_task(owner.check_token("things", token, timeout_s=20))
    await asyncio.sleep(0)
    assert not checking.done()
    writer.answered.set()
    await checking
    assert await owner.state(spec).get("k") == "v"
    await putting
