"""Queries by tag with a consistency token: they do not end before what it names."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import cast

import pytest
from tests.suites.tags_setting import Scene, TagSetting, ids

from headrace.errors import BadToken, TimedOut, TokenAhead, TokenOfOtherTopic
from headrace.log import Log
from headrace.model import Bounds, ConsistencyToken, Position, TokenPlace, TopicPartition, WrittenPosition
from headrace.tags import query
from headrace.testing.conformance.log_setting import eventually


class HidingLog:
    """A log in which an open transaction hides what was written to one partition after its begin."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.hidden: tuple[TopicPartition, int] | None = None
        self.looks = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._log, name)

    async def bounds(self, at: TopicPartition) -> Bounds:
        """Return the bounds as a reader of committed records gets them."""
        self.looks += 1
        bounds = await self._log.bounds(at)
        return bounds if self.hidden is None or self.hidden[0] != at else bounds._replace(end=self.hidden[1])


async def token_of(log: Log, position: Position) -> str:
    """Return the token of a record that was written without a journal."""
    return WrittenPosition.at(position, (await log.admin.describe(position.topic)).topic_id).token


class TestTokens(TagSetting):
    """The embedded tier; what the log hides is told by hand."""

    @pytest.fixture
    def log_address(self, tmp_path: Path) -> str:
        """Return a fresh folder."""
        return f"embedded:{tmp_path}"

    @pytest.fixture
    def store_address(self, log_address: str) -> str:
        """Return the same folder."""
        return log_address

    async def test_a_query_waits_for_a_record_that_a_transaction_hides(
        self, scene: Scene, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A query without the token ends before the event, one with it gives the event, and never waits forever."""
        log = HidingLog(scene.log)
        scene.queries = query.TagQueries(cast("Log", log), scene.store, scene.settings)
        written = await scene.append("a", 1)
        token = await token_of(scene.log, written)
        log.hidden = (TopicPartition(*written[:2]), written.offset)
        assert ids(await scene.read()) == []
        with monkeypatch.context() as patch:
            patch.setattr(query, "_TOKEN_TIMEOUT_S", 0.05)
            with pytest.raises(TimedOut, match="open transactions"):
                await scene.read(at_least=token)
        waiting = asyncio.create_task(scene.read(at_least=token))
        looks = log.looks

        async def has_looked() -> bool:
            return log.looks >= looks + 3

        await eventually(has_looked, every_s=0.001, what="a second look")
        assert not waiting.done()
        log.hidden = None
        assert ids(await waiting) == ["a1"]

    async def test_a_query_refuses_tokens_that_the_log_can_never_reach(self, scene: Scene) -> None:
        """Garbage, other topics and offsets beyond the end are errors, for queries that end and for live ones."""
        written = await scene.append("a", 1)
        token = await token_of(scene.log, written)
        (place,) = ConsistencyToken.parse(token).places
        assert ids(await scene.read(at_least=token)) == ["a1"]
        for wrong, error in (
            (place._replace(offset=written.offset + 1), TokenAhead),
            (place._replace(partition=4), BadToken),
            (TokenPlace("of-another-cluster", "0b5f9d2e", 0, 0), TokenOfOtherTopic),
        ):
            for is_live in (False, True):
                with pytest.raises(error):
                    await scene.read(at_least=str(ConsistencyToken.of([wrong])), live=is_live)
        with pytest.raises(BadToken):
            await scene.read(at_least="garbage")
