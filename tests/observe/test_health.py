"""The health tree."""

from __future__ import annotations

import asyncio
import json

from headrace.observe import Health, HealthState


async def fine() -> None:
    return


async def broken() -> None:
    raise ConnectionError("refused")


async def hanging() -> None:
    await asyncio.Event().wait()


async def slow_inside() -> None:
    raise TimeoutError("the server said so")


def test_a_child_that_is_down_takes_its_parents_down() -> None:
    """Down goes all the way up, and back up when it is mended."""
    root = Health("app")
    leaf = root.child("log", state=HealthState.UP).child("kafka", state=HealthState.UP)
    assert root.is_up
    leaf.down("broker gone")
    assert (root.state, root.reason) == (HealthState.DOWN, "")
    leaf.up()
    assert root.is_up


def test_starting_is_between_up_and_down() -> None:
    """Starting shows unless something is down."""
    root = Health("app")
    root.child("a", state=HealthState.UP)
    root.child("b").starting("reading the changelog")
    before = root.state
    root.child("a").down("gone")
    assert (before, root.state) == (HealthState.STARTING, HealthState.DOWN)


def test_complaints_name_each_culprit_once() -> None:
    """One line for each node that is itself not up, with its path."""
    root = Health("app")
    root.child("log").child("kafka").down("broker gone")
    root.child("log").up()
    root.child("store")
    assert list(root.complaints()) == ["app/log/kafka is down: broker gone", "app/store is starting"]


def test_the_tree_is_json() -> None:
    """A gateway can send it as it is."""
    root = Health("app")
    root.child("log").down("gone")
    assert json.loads(json.dumps(root.to_dict())) == {
        "name": "app",
        "state": "down",
        "children": [{"name": "log", "state": "down", "reason": "gone"}],
    }


def test_a_removed_child_does_not_count() -> None:
    """What is no longer wanted can't be down."""
    root = Health("app")
    root.child("old").down("stopped")
    root.remove("old")
    root.remove("old")
    assert root.is_up


async def test_checks_find_out_the_state() -> None:
    """A probe that returns is up, one that raises is down with its error, one that hangs is cut off."""
    root = Health("app")
    root.check("fine", fine)
    root.check("broken", broken)
    root.child("deep", state=HealthState.UP).check("hanging", hanging, timeout_s=0.05)
    root.check("told", slow_inside)
    assert await asyncio.wait_for(root.refresh(), 5) is HealthState.DOWN
    assert list(root.complaints()) == [
        "app/broken is down: ConnectionError: refused",
        "app/deep/hanging is down: no answer within 0.05 s",
        "app/told is down: TimeoutError: the server said so",
    ]


async def test_checks_run_at_the_same_time() -> None:
    """Two probes that wait for each other both return."""
    both = asyncio.Barrier(2)

    async def meet() -> None:
        await both.wait()

    root = Health("app")
    root.check("one", meet)
    root.check("two", meet)
    assert await asyncio.wait_for(root.refresh(), 5) is HealthState.UP


async def test_a_mended_check_comes_back_up() -> None:
    """The next refresh asks again."""
    answers = [broken, fine]
    root = Health("app")
    root.check("flaky", lambda: answers.pop(0)())
    assert await root.refresh() is HealthState.DOWN
    assert await root.refresh() is HealthState.UP


def test_an_included_tree_is_looked_at_each_time() -> None:
    """It comes and goes, and what is down in it goes all the way up."""
    root, trees = Health("gateway"), [Health("node")]
    root.include(lambda: trees[0] if trees else None)
    trees[0].child("engine", state=HealthState.UP).child("0").down("disk full")
    assert (root.state, root.readiness) == (HealthState.DOWN, HealthState.DOWN)
    assert list(root.complaints()) == ["gateway/node/engine/0 is down: disk full"]
    assert root.to_dict()["children"][0]["name"] == "node"
    trees.clear()
    assert root.is_up
    assert root.children == ()


def test_requests_can_be_sent_while_an_included_part_is_starting() -> None:
    """Requests wait for a partition that is between two owners; they can't be answered before the log was asked."""
    root, node = Health("gateway"), Health("node")
    root.include(lambda: node)
    node.child("0").starting("nobody owns it")
    assert (root.state, root.readiness) == (HealthState.STARTING, HealthState.UP)
    log = root.child("log")
    assert root.readiness is HealthState.STARTING
    log.up()
    assert root.readiness is HealthState.UP


def test_an_adopted_tree_goes_on_to_change() -> None:
    """What is said about it later is seen from above."""
    root, work = Health("node"), Health("background")
    root.adopt(work)
    work.child("keyspaces").down("crashed")
    assert root.state is HealthState.DOWN
