"""The console's decisions: what is wrong with a cluster, who has left, and charts that stay bounded."""

from __future__ import annotations

import pytest

from headrace.cluster import AnnouncedOwner, ClusterView, GroupSpec, Holding, MemberFacts, Placement
from headrace.gateway.console.cluster_facts import Departures, cluster_as_json, cluster_problems
from headrace.gateway.console.recorder import ChartBook, ChartPoint, grown_by, quantile_of

GROUP = GroupSpec(name="accounts", partitions=2, replicas=2)


def member(name: str, *, epochs: tuple[int, int] = (0, 0), is_online: bool = True) -> MemberFacts:
    holdings = [
        Holding(group="accounts", partition=n, is_online=is_online, epoch=epoch) for n, epoch in enumerate(epochs)
    ]
    return MemberFacts(id=name, incarnation="1", address=f"{name}:1", groups=(GROUP,), holdings=tuple(holdings))


def view_of(*members: MemberFacts, owner: str = "n1", **more: object) -> ClusterView:
    given: dict[str, object] = {
        "members": {each.id: each for each in members},
        "groups": {"accounts": GROUP},
        "placements": {"accounts": (Placement(replicas=("n1", "n2")), Placement(replicas=("n1", "n2")))},
        "owners": {"accounts": {n: AnnouncedOwner(owner, 3) for n in range(2)}},
        **more,
    }
    return ClusterView(**given)  # type: ignore[arg-type]


BOTH = view_of(member("n1", epochs=(3, 3)), member("n2"))


def texts(view: ClusterView, departures: Departures | None = None) -> list[str]:
    return [each["text"] for each in cluster_problems(view, departures or Departures())]


def test_a_healthy_cluster_has_no_problems() -> None:
    """All partitions are served, and every copy is there."""
    assert texts(BOTH) == []
    shown = cluster_as_json(BOTH, Departures(), node_id="n2")
    assert [(each["id"], each["owns"], each["is_here"]) for each in shown["nodes"]] == [
        ("n1", 2, False),
        ("n2", 0, True),
    ]
    assert shown["groups"][0]["partitions"][0]["standbys"] == [{"id": "n2", "state": "online"}]


def test_an_owner_that_is_gone_is_not_shown_as_one() -> None:
    """The announced owner is not there any more: nobody serves its partitions, whoever is proposed next."""
    departures, gone = Departures(), view_of(member("n2"), owners={})
    departures.look(BOTH, 1000)
    departures.look(gone, 2000)
    assert texts(view_of(member("n2")))[0] == texts(gone)[0] == "Nobody serves 2 of 2 partitions (0, 1) of accounts."
    first = cluster_as_json(gone, departures, node_id=None)["groups"][0]["partitions"][0]
    assert (first["owner"], first["former_owner"]) == (None, "n1")


def test_a_view_that_is_old_is_said_to_be_so_and_nobody_leaves_in_it() -> None:
    """While the coordinator is away, nothing is known: neither that all is well, nor that somebody left."""
    departures = Departures()
    departures.look(BOTH, 1000)
    departures.look(view_of(is_old=True), 2000)
    assert departures.gone == []
    old = view_of(member("n1", epochs=(3, 3)), member("n2"), is_old=True)
    assert texts(old, departures) == [
        "The coordinator does not answer: what is shown of nodes is old, and nothing moves."
    ]


def test_a_copy_that_is_not_there_yet_is_a_warning() -> None:
    """A standby that catches up, or whose place is kept for it, is missing for now."""
    behind = view_of(member("n1", epochs=(3, 3)), member("n2", is_online=False))
    assert texts(behind) == ["Copies are missing or catching up for 2 of 2 partitions (0, 1) of accounts."]
    awaited = (Placement(replicas=("n1",), awaited=("n2",)),) * 2
    assert len(texts(view_of(member("n1", epochs=(3, 3)), placements={"accounts": awaited}))) == 1


def test_who_left_is_remembered_until_it_returns_or_an_hour_passed() -> None:
    """A node that served something and is gone is a problem; one that was drained, and one that only calls, is not."""
    caller = MemberFacts(id="c", incarnation="1", address="c:1")
    without = view_of(member("n1", epochs=(3, 3)))
    departures = Departures()
    departures.look(view_of(member("n1", epochs=(3, 3)), member("n2"), caller), 1000)
    departures.look(without, 2000)
    assert [(each.id, each.seen_ms) for each in departures.gone] == [("n2", 2000)]
    assert "Node n2 is gone." in texts(without, departures)
    departures.look(BOTH, 3000)
    assert departures.gone == []
    departures.look(view_of(member("n1"), member("n2"), draining=frozenset({"n2"})), 4000)
    departures.look(without, 5000)
    assert "Node n2 is gone." not in texts(without, departures)
    departures.look(without, 5000 + 3_600_001)
    assert departures.gone == []


def test_departures_are_bounded() -> None:
    """Nodes with ever new names don't fill the memory."""
    departures = Departures(most=3)
    for n in range(10):
        departures.look(view_of(member(f"n{n}")), n)
    assert [each.id for each in departures.gone] == ["n8", "n7", "n6"]


def test_a_chart_keeps_an_hour_of_a_few_lines() -> None:
    """Old points go, a full line loses its oldest, a line that ended is dropped, and too many lines are left out."""
    book = ChartBook(points=3, lines=2, kept_s=10)
    for n in range(5):
        book.add("rate", n * 1000, {"a": n})
    assert [point.value for point in book.lines("rate")["a"]] == [2, 3, 4]
    book.add("rate", 5000, {"b": 1.0, "c": 2.0})
    assert sorted(book.lines("rate")) == ["a", "b"]
    assert book.lines("rate")["a"][-1] == ChartPoint(5000, None)
    for n in range(6, 10):
        book.add("rate", n * 1000, {"b": 1.0})
    assert sorted(book.lines("rate")) == ["b"]
    assert (book.last("rate", "b"), book.last("rate", "a"), book.last("none", "b")) == (1.0, None, None)


@pytest.mark.parametrize(
    ("counted", "share", "expected"),
    [
        ({}, 0.5, None),
        ({1.0: 0, float("inf"): 0}, 0.5, None),
        ({1.0: 10, 2.0: 10, float("inf"): 10}, 0.5, 0.5),
        ({1.0: 0, 2.0: 10, float("inf"): 10}, 0.5, 1.5),
        ({1.0: 5, 2.0: 5, 4.0: 10, float("inf"): 10}, 0.99, 3.96),
        ({1.0: 0, 2.0: 0, float("inf"): 10}, 0.5, 2.0),
    ],
)
def test_a_quantile_lies_in_its_bucket(counted: dict[float, float], share: float, expected: float | None) -> None:
    """Within the bucket that holds it, along a line; above the last bound, that bound; without values, none."""
    found = quantile_of(counted, share)
    assert found == (None if expected is None else pytest.approx(expected))


def test_a_histogram_that_began_again_counts_nothing_negative() -> None:
    """A process that was restarted counts from 0."""
    assert grown_by({1.0: 5, 2.0: 9}, {1.0: 6, 2.0: 3, 4.0: 1}) == {1.0: 1, 2.0: 0, 4.0: 1}
