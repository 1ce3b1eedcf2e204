"""A keyspace whose declaration changes from release to release: what goes on, what is built again, what is refused."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.keyspace.setting import Place, serving

from headrace.errors import BadArgument, NotUnique, StateRedeclared
from headrace.keyspace import Keyspace, State, resize_keyspace, state
from headrace.log import open_log
from headrace.state import JsonValues
from headrace.testing.conformance.log_setting import eventually


@dataclass
class Person:
    """Somebody."""

    name: str
    mail: str


class Texts(Keyspace, name="people", partitions=1, store="rocksdb"):
    notes: State[str, str] = state()


class Numbers(Keyspace, name="people", partitions=1, store="rocksdb"):
    notes: State[str, int] = state()


class Pairs(Keyspace, name="people", partitions=1, store="rocksdb"):
    notes: State[tuple[str, int], str] = state()


class More(Keyspace, name="people", partitions=1, store="rocksdb"):
    notes: State[str, str] = state(ttl="30d")
    others: State[str, int] = state()


class NumberedMore(Keyspace, name="people", partitions=1, store="rocksdb"):
    notes: State[str, int] = state()
    others: State[str, int] = state()


class LikeText(JsonValues[Any]):
    """A codec of the application that writes what the former declaration did, and says so."""

    kind = "text"

    def encode(self, value: Any) -> bytes:
        return str(value).encode()

    def decode(self, data: bytes) -> Any:
        return data.decode()


class Compatible(Keyspace, name="people", partitions=1, store="rocksdb"):
    notes: State[str, str] = state(codec=LikeText())


class Plain(Keyspace, name="people", partitions=1, store="rocksdb"):
    persons: State[str, Person] = state()


class Found(Keyspace, name="people", partitions=1, store="rocksdb"):
    persons: State[str, Person] = state(index={"by": lambda person: person.name})


class FoundElsewise(Keyspace, name="people", partitions=1, store="rocksdb"):
    persons: State[str, Person] = state(index={"by": lambda person: person.mail})


class Unique(Keyspace, name="people", partitions=1, store="rocksdb"):
    persons: State[str, Person] = state(unique={"mail": lambda person: (person.mail, "x")})


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(f"embedded:{tmp_path / 'log'}", str(tmp_path / "state"))


async def test_a_state_that_is_declared_with_another_type_is_refused(place: Place) -> None:
    """The node does not start, and says what the state was and is; the release before goes on with all that it had."""
    async with serving(place, "a", Texts) as served:
        await served.client.put("notes", "x", "text")
    for kind, words in ((Numbers, "values of kind text.*with int"), (Pairs, r"keys of kind str.*tuple\[str, int\]")):
        with pytest.raises(StateRedeclared, match=words):
            async with serving(place, "a", kind):
                pass
    for fitting in (More, Compatible):
        async with serving(place, "a", fitting) as served:
            assert await served.client.get("notes", "x") == "text"


async def test_a_state_that_was_copied_is_still_what_it_was(place: Place) -> None:
    """A resize copies bytes: they are what they were in the topics of before."""
    async with serving(place, "a", Texts) as served:
        await served.client.put("notes", "x", "text")
        await resize_keyspace(served.headrace.log, served.headrace.settings, Texts, 2)
        with pytest.raises(StateRedeclared, match="values of kind text"):
            async with serving(place, "b", Numbers):
                pass
        assert await served.client.get("notes", "x") == "text"
        with pytest.raises(StateRedeclared, match="values of kind text"):
            async with serving(place, "b", Numbers):
                pass


async def test_a_topic_that_was_made_again_is_a_new_state(place: Place) -> None:
    """Whoever deletes a state's topic may declare it anew."""
    async with serving(place, "a", Texts) as served:
        await served.client.put("notes", "x", "text")
    log = await open_log(place.address)
    await log.admin.delete("people-notes")
    await log.close()
    async with serving(place, "a", Numbers) as served:
        await served.client.put("notes", "x", 1)
    with pytest.raises(StateRedeclared, match="values of kind int"):
        async with serving(place, "a", Texts):
            pass


async def test_an_index_that_is_new_or_another_one_is_built_from_the_values(place: Place) -> None:
    """By its name, and by the code of its function."""
    async with serving(place, "a", Plain) as served:
        await served.client.put("persons", "1", Person("ann", "a@x"))
    for kind, by in ((Found, "ann"), (FoundElsewise, "a@x")):
        async with serving(place, "a", kind) as served:
            assert [key for key, _ in await served.client.find("persons", "by", by)] == ["1"]


async def test_values_that_must_be_unique_and_are_not_are_reported(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    """An owner names the keys that have a value in common. It serves them, and refuses to write the value again."""
    async with serving(place, "a", Plain) as served:
        for key, mail in (("1", "a@x"), ("2", "b@x"), ("3", "a@x")):
            await served.client.put("persons", key, Person("ann", mail))
    async with serving(place, "a", Unique) as served:
        await eventually(lambda: _is_logged(caplog, "unique"))
        with pytest.raises(NotUnique):
            await served.client.put("persons", "1", Person("bob", "a@x"))
        await served.client.put("persons", "1", Person("ann", "c@x"))
        await served.client.put("persons", "3", Person("bob", "a@x"))
    (record,) = [each for each in caplog.records if "unique" in each.getMessage()]
    assert "'1'" in record.getMessage()
    assert "'3'" in record.getMessage()
    assert "a@x" in record.getMessage()
    assert "b@x" not in record.getMessage()


async def _is_logged(caplog: pytest.LogCaptureFixture, text: str) -> bool:
    return text in caplog.text


async def test_a_release_that_resizes_may_have_new_states(tmp_path: Path) -> None:
    """They have no changelogs yet: the keyspace must not stay closed because of that."""
    place = Place(f"embedded:{tmp_path / 'log'}", str(tmp_path / "state"))
    async with serving(place, "a", Texts) as served:
        await served.client.put("notes", "k", "v")
        report = await resize_keyspace(served.headrace.log, place.settings("tool"), More, 2)
        assert report.records == 1
        assert await served.client.get("notes", "k") == "v"
    async with serving(place, "a", More) as served:
        await served.client.put("others", "k", 1)
        assert (await served.client.get("notes", "k"), await served.client.get("others", "k")) == ("v", 1)


async def test_a_release_that_would_lose_states_does_not_resize(tmp_path: Path) -> None:
    """One that does not know a state would not copy it; it is named, and the keyspace is served all the time."""
    place = Place(f"embedded:{tmp_path / 'log'}", str(tmp_path / "state"))
    async with serving(place, "a", More) as served:
        await served.client.put("others", "k", 1)
        log = served.headrace.log
        with pytest.raises(BadArgument, match=r"it has states \['others'\].* delete people-others first"):
            await resize_keyspace(log, place.settings("tool"), Texts, 2)
        with pytest.raises(StateRedeclared):
            await resize_keyspace(log, place.settings("tool"), NumberedMore, 2)
        assert await served.client.get("others", "k", timeout_s=1) == 1
    await log_without(place, "people-others")
    async with serving(place, "a", Texts) as served:
        await resize_keyspace(served.headrace.log, place.settings("tool"), Texts, 2)


async def log_without(place: Place, topic: str) -> None:
    """Delete a topic."""
    log = await open_log(place.address)
    await log.admin.delete(topic)
    await log.close()
