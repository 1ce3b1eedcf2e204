"""Push hooks: every change at least once, in order, from a stored place; what can't be pushed is set aside."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
import pytest_asyncio
from tests.keyspace.setting import Place, Served, serving

from headrace.errors import OperationFailed, PushRefused
from headrace.keyspace import KeyspaceClient, PushedChange, PushHook, PushRunner
from headrace.keyspace.collections import CollectionEvent
from headrace.keyspace.pushing import PushStorage
from headrace.runtime import Backoff
from headrace.state import StateChange
from headrace.testing.conformance.log_setting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")  # all tests here share the node's loop

AT_ONCE = Backoff(first_s=0.001, limit_s=0.01)


def _load_example() -> Any:
    """Return the example's module by its path: other packages have a folder `examples`, too."""
    file = Path(__file__).parents[2] / "examples" / "push" / "devices.py"
    spec = importlib.util.spec_from_file_location("headrace_push_example", file)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


example = _load_example()
HttpPush, Inbox, Inboxes, Notify = example.HttpPush, example.Inbox, example.Inboxes, example.Notify


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    folder: Path = tmp_path_factory.mktemp("push")
    async with serving(Place(f"embedded:{folder / 'log'}", str(folder / "state")), "one", Inboxes) as served:
        yield served


class ScriptedHook:
    """Keeps what it is given; `fail` says what an attempt raises."""

    def __init__(self, fail: Callable[[PushedChange, int], Exception | None] = lambda change, attempt: None) -> None:
        self.got: list[PushedChange] = []
        self.attempts: dict[str, int] = {}
        self._fail = fail
        self.news = asyncio.Event()

    async def push(self, change: PushedChange) -> None:
        self.attempts[change.id] = attempt = self.attempts.get(change.id, 0) + 1
        if (error := self._fail(change, attempt)) is not None:
            raise error
        self.got.append(change)
        self.news.set()

    async def until(self, count: int) -> None:
        async with asyncio.timeout(20):
            while len(self.got) < count:
                self.news.clear()
                await self.news.wait()

    def texts(self, key: str) -> list[str | None]:
        return [each.value and each.value.last for each in self.got if each.key == key]


async def has_letters(runner: PushRunner, count: int) -> bool:
    return len(await runner.letters()) >= count


@contextlib.asynccontextmanager
async def running(served: Served, hook: PushHook, name: str) -> AsyncIterator[PushRunner]:
    runner = PushRunner(served.headrace.log, served.client, "inboxes", hook, name=name, attempts=3, backoff=AT_ONCE)
    task = asyncio.create_task(runner.run())
    try:
        async with asyncio.timeout(20):
            await asyncio.wait({task, asyncio.ensure_future(runner.ready.wait())}, return_when=asyncio.FIRST_COMPLETED)
        assert not task.done()
        yield runner
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_hook_goes_on_where_it_stopped(served: Served) -> None:
    """Changes from the first start on are pushed in order; those between two runs are pushed by the second."""
    await served.client.ask(Notify("a", "before"))
    first, second = ScriptedHook(), ScriptedHook()
    async with running(served, first, "goes-on"):
        for text in ("1", "2"):
            await served.client.ask(Notify("a", text))
        await served.client.delete("inboxes", "a")
        await first.until(3)
        assert first.texts("a") == ["1", "2", None]
    for text in ("3", "4"):
        await served.client.ask(Notify("a", text))
    async with running(served, second, "goes-on"):
        await served.client.ask(Notify("b", "5"))
        await second.until(3)
        async with asyncio.timeout(20):
            while "5" not in second.texts("b"):
                second.news.clear()
                await second.news.wait()
    repeats = [text for text in second.texts("a") if text in ("1", "2", None)]
    assert second.texts("a") == [*repeats, "3", "4"]  # at least once: the last ones may come again, in order
    assert len({each.id for each in second.got}) == len(second.got)


async def test_failed_pushes_are_tried_again_and_then_set_aside(served: Served) -> None:
    """A push that fails twice is done at the third attempt; one that always fails, or is refused, is a dead letter."""

    def fail(change: PushedChange, attempt: int) -> Exception | None:
        if change.key == "gone":
            return PushRefused("the service", "no such device")
        if change.key == "down" or (change.key == "shaky" and attempt < 3):
            return OperationFailed("a push", "no answer")
        return None

    hook = ScriptedHook(fail)
    async with running(served, hook, "retries") as runner:
        for key in ("gone", "down", "shaky"):
            await served.client.ask(Notify(key, "x"))
        await hook.until(1)
        await eventually(lambda: has_letters(runner, 2))
        letters = {bytes(each.key): each for each in await runner.letters()}
        assert {key: each.attempts for key, each in letters.items()} == {b'"gone"': 1, b'"down"': 3}
        hook._fail = lambda change, attempt: None
        await served.client.ask(Notify("down", "y"))
        await hook.until(2)
        assert await runner.replay(letters[b'"down"'])
        assert hook.got[-1] == PushedChange(letters[b'"down"'].id, "down", Inbox(2, "y"), is_present=True)
        await runner.discard(letters[b'"gone"'])
    again = PushRunner(served.headrace.log, served.client, "inboxes", hook, name="retries")
    assert await again.letters() == []


async def test_after_a_gap_the_present_values_are_pushed(served: Served) -> None:
    """A place whose changes are gone can't be resumed: every key is pushed as it stands, marked as present."""
    await served.client.ask(Notify("gap", "now"))
    first, second = ScriptedHook(), ScriptedHook()
    async with running(served, first, "gap") as runner:
        for partition in range(2):
            await runner.save(partition, "another-topic:7")
    async with running(served, second, "gap"):
        async with asyncio.timeout(20):
            while "now" not in second.texts("gap"):
                second.news.clear()
                await second.news.wait()
    assert first.got == []
    assert all(each.is_present for each in second.got)


class ScriptedCollection:
    """A client whose collection has these events, and then nothing more."""

    def __init__(self, *events: CollectionEvent) -> None:
        self._events = events

    async def collection(self, state: str, **given: Any) -> AsyncIterator[CollectionEvent]:
        for event in self._events:
            yield event
        await asyncio.Event().wait()


async def test_a_gap_of_the_first_run_is_filled(served: Served) -> None:
    """What is there before the first start is not pushed; a later snapshot stands for missed changes, and is."""
    hook = ScriptedHook()
    lagged = CollectionEvent("reset", 0, is_lagged=True)
    client: Any = ScriptedCollection(
        CollectionEvent("begin", partitions=(0,)),
        CollectionEvent("reset", 0),
        CollectionEvent("pairs", 0, pairs=[("old", Inbox(1, "before"))]),
        CollectionEvent("ready", 0, token="t:1"),
        lagged,
        CollectionEvent("pairs", 0, pairs=[("old", Inbox(1, "before")), ("new", Inbox(1, "missed"))]),
        CollectionEvent("ready", 0, token="t:9"),
    )
    runner = PushRunner(served.headrace.log, client, "inboxes", hook, name="first-gap")
    task = asyncio.create_task(runner.run())
    await hook.until(2)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert [(each.key, each.value.last, each.is_present) for each in hook.got] == [
        ("old", "before", True),
        ("new", "missed", True),
    ]


async def test_looking_at_letters_does_not_hide_where_a_hook_stands(served: Served) -> None:
    """While the topic is read again, the places that were known stay: a run that begins then is no first start."""
    storage = PushStorage(served.headrace.log, "push.looked-at")
    await storage.load()
    await storage.save(0, "t:1")
    looking = asyncio.create_task(storage.load())
    while not looking.done():
        assert storage.places == {0: "t:1"}
        await asyncio.sleep(0)
    assert storage.places == {0: "t:1"}


async def test_a_hook_whose_own_task_was_cancelled_has_failed(served: Served) -> None:
    """What a hook waits for may be cancelled by others: that is a failed push, and its partition goes on."""

    class Cancelled(ScriptedHook):
        async def push(self, change: PushedChange) -> None:
            if change.key == "cancelled" and not self.attempts:
                self.attempts[change.id] = 1
                waiting = asyncio.ensure_future(asyncio.Event().wait())
                asyncio.get_running_loop().call_soon(waiting.cancel)
                await waiting
            await super().push(change)

    hook = Cancelled()
    async with running(served, hook, "cancelled"):
        await served.client.ask(Notify("cancelled", "1"))
        await served.client.ask(Notify("cancelled", "2"))
        await hook.until(2)
    assert hook.texts("cancelled") == ["1", "2"]


class ResizedState:
    """A state whose keyspace is resized right after its last key was deleted."""

    async def collection(self, state: str, *, after: Any) -> AsyncIterator[CollectionEvent]:
        deleted = StateChange("a", None, 7, "old:7")
        yield CollectionEvent("begin", partitions=(0,))
        yield CollectionEvent("change", 0, change=deleted, token="old:7")
        yield CollectionEvent("begin", partitions=(0,))
        yield CollectionEvent("ready", 0, token="new:1")
        await asyncio.Event().wait()


async def test_what_waits_is_pushed_before_a_resized_state_is(served: Served) -> None:
    """A deletion is in no later value: who is slow hears of it, too."""
    hook = ScriptedHook(lambda change, attempt: OperationFailed("a push", "no answer") if attempt < 3 else None)
    client = cast("KeyspaceClient", ResizedState())
    runner = PushRunner(served.headrace.log, client, "inboxes", hook, name="resized", backoff=AT_ONCE)
    await runner._storage.load()
    await runner.save(0, "old:6")
    task = asyncio.create_task(runner.run())
    await hook.until(1)
    assert [(each.key, each.value) for each in hook.got] == [("a", None)]
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_run_ends_with_what_a_lane_fails_with(served: Served) -> None:
    """A place that can't be stored ends the run: a hook that stands still would not be seen."""
    hook = ScriptedHook()
    runner = PushRunner(served.headrace.log, served.client, "inboxes", hook, name="ends")

    async def broken(partition: int, place: str) -> None:
        raise OperationFailed("an append", "the log is away")

    runner._storage.save = broken  # type: ignore[method-assign]
    with pytest.raises(OperationFailed, match="the log is away"):
        async with asyncio.timeout(20):
            await runner.run()


async def test_the_example_posts_to_an_http_service(served: Served) -> None:
    """The hook of examples/push posts each change; a device that is gone is refused, an overloaded service is not."""
    posted: list[tuple[str, Any]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        posted.append((request.url.path, request.read().decode()))
        return httpx.Response(503 if len(posted) == 1 else 410 if request.url.path.endswith("/lost") else 204)

    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as http:
        hook = HttpPush(http, "http://push.example/devices")
        async with running(served, hook, "example") as runner:
            await served.client.ask(Notify("phone", "hello"))
            await served.client.ask(Notify("lost", "hello"))
            await eventually(lambda: has_letters(runner, 1))

            async def all_posted() -> bool:
                return len(posted) == 3

            await eventually(all_posted)
            (letter,) = await runner.letters()
    assert bytes(letter.key) == b'"lost"'
    paths = [path for path, _ in posted]
    assert sorted(paths) in (
        ["/devices/lost", "/devices/phone", "/devices/phone"],
        ["/devices/lost", "/devices/lost", "/devices/phone"],
    )
    assert any('"unread":1' in body.replace(" ", "") for _, body in posted)
