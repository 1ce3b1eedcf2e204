"""The command runs each bench in turn with its bound and prints the figures last."""

from __future__ import annotations

import json
import sys
from itertools import count
from pathlib import Path
from textwrap import dedent
from typing import Any, NamedTuple

import pytest
from benchmarks.harness.command import main
from benchmarks.harness.options import HOME, parse
from benchmarks.harness.results import load_results

TOY = """
    from contextlib import asynccontextmanager
    from benchmarks.harness import Bench, Contest, Measure, at_least, at_most

    CALLS = []
    FOLDERS = []

    @asynccontextmanager
    async def setup(stage):
        FOLDERS.append(stage.folder)
        readings = {{"work": iter({work}), "bound": iter({bound})}}

        def side(name):
            async def take():
                CALLS.append(name)
                return {{"speed": next(readings[name])}}
            return take

        yield Contest(side("work"), {side})
        CALLS.append("down")

    BENCH = Bench(name="{name}", work="counts", measures=(Measure("speed", "1/s", {against}),), setup=setup)
"""
BROKEN = """
    from contextlib import asynccontextmanager
    from benchmarks.harness import Bench

    @asynccontextmanager
    async def setup(stage):
        raise ConnectionError("no broker at 127.0.0.1:1")
        yield

    BENCH = Bench(name="broken", work="never", measures=(), setup=setup)
"""
HANGING = """
    import asyncio
    from contextlib import asynccontextmanager
    from benchmarks.harness import Bench, Contest

    @asynccontextmanager
    async def setup(stage):
        yield Contest(asyncio.Event().wait)

    BENCH = Bench(name="hanging", work="waits for ever", measures=(), setup=setup)
"""
PACKAGES = (f"toys{nr}" for nr in count())


class Outcome(NamedTuple):
    """What a run returned and printed, its figures apart."""

    code: int
    lines: list[str]
    figures: list[dict[str, Any]]


class Toys:
    """A package of benches in a folder of the test, and the command to run them."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._scratch = folder / "scratch"
        self._package = next(PACKAGES)
        self._folder = folder / self._package
        self._folder.mkdir()
        (self._folder / "__init__.py").touch()
        self._capsys = capsys

    def write(self, name: str, text: str) -> None:
        """Add a module."""
        (self._folder / f"{name.replace('-', '_')}.py").write_text(dedent(text))

    def source(self, name: str) -> str:
        """Return what a module holds."""
        return (self._folder / f"{name}.py").read_text()

    def add(self, name: str, *, work: list[float], bound: list[float] | None, target: str = "at_least(0.5)") -> None:
        """Add a bench that reads these values; the first of each list is the warm-up's."""
        against, side = (f'"raw", {target}', 'side("bound")') if bound else ("None", "None")
        self.write(name, TOY.format(name=name, work=work, bound=bound or [], against=against, side=side))

    def run(self, *arguments: str) -> Outcome:
        """Run the command with its data in the test's folder; at half the size, so that nothing is stored."""
        small = ("--scratch", str(self._scratch), "--scale", "0.5")
        code = main([*small, *arguments], package=self._package)
        lines = self._capsys.readouterr().out.splitlines()
        return Outcome(code, lines, [json.loads(line) for line in lines if line.startswith("{")])

    def seen(self, name: str, what: str) -> Any:
        """Return what a bench remembered."""
        return getattr(sys.modules[f"{self._package}.{name}"], what)


@pytest.fixture
def toys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Toys:
    monkeypatch.syspath_prepend(str(tmp_path))
    return Toys(tmp_path, capsys)


def test_work_and_bound_take_turns_after_a_warm_up(toys: Toys) -> None:
    """Work and bound alternate, once to warm up and then once a round, and are taken down at the end."""
    toys.add("toy", work=[1.0] * 4, bound=[1.0] * 4)
    toys.run("toy", "--rounds", "3")
    assert toys.seen("toy", "CALLS") == ["work", "bound"] * 4 + ["down"]


def test_a_bench_of_one_round_has_no_warm_up(toys: Toys) -> None:
    """What repeats its happenings by itself, as often as the option says, is played once."""
    toys.add("toy", work=[1.0], bound=[1.0])
    source = toys.source("toy").replace("setup=setup)", "setup=setup, is_one_round=True)")
    toys.write("toy", source.replace("FOLDERS.append(stage.folder)", "FOLDERS.append(stage.repeats)"))
    toys.run("toy", "--rounds", "3", "--repeats", "7")
    assert toys.seen("toy", "CALLS") == ["work", "bound", "down"]
    assert toys.seen("toy", "FOLDERS") == [7]


def test_a_bench_of_minutes_has_few_rounds_and_huge_figures_only_when_asked(toys: Toys) -> None:
    """A bench may limit its rounds. What takes an hour is measured with --huge, and has no figure without."""
    toys.add("toy", work=[1.0] * 3, bound=[1.0] * 3)
    source = toys.source("toy").replace("setup=setup)", "setup=setup, most_rounds=2)")
    huge = source.replace("measures=(", 'measures=(Measure("size", "1", is_huge=True), ')
    toys.write("toy", huge.replace('return {"speed"', 'return {**({"size": 7} if stage.is_huge else {}), "speed"'))
    assert [figure["metric"] for figure in toys.run("toy", "--rounds", "5").figures] == ["speed"]
    assert toys.seen("toy", "CALLS") == ["work", "bound"] * 3 + ["down"]
    assert [figure["metric"] for figure in toys.run("toy", "--huge").figures] == ["size", "speed"]


def test_figures_are_medians_without_the_warm_up(toys: Toys) -> None:
    """The warm-up is left out and an outlier moves nothing."""
    toys.add("toy", work=[9999, 40, 42, 7000], bound=[0.1, 80, 84, 1])
    figure = toys.run("toy", "--rounds", "3").figures[0]
    assert (figure["value"], figure["bound"], figure["ratio"]) == (42, 80, 0.525)


def test_the_last_lines_are_the_figures_in_the_documented_shape(toys: Toys) -> None:
    """After all progress comes one JSON object a figure, with the keys of the contract first and in order."""
    toys.add("one", work=[2, 41000], bound=[2, 82000])
    toys.add("two", work=[2, 3], bound=None)
    outcome = toys.run("--rounds", "1")
    assert [json.loads(line)["bench"] for line in outcome.lines[-2:]] == ["one", "two"]
    assert len(outcome.figures) == 2
    assert outcome.lines[-2] == (
        '{"bench":"one","metric":"speed","value":41000,"against":"raw","bound":82000,"ratio":0.5,'
        '"unit":"1/s","target":"≥ 0.5","reached":true,"rounds":1}'
    )
    assert outcome.code == 0


def test_a_bound_alone_has_no_ratio(toys: Toys) -> None:
    """What is measured against nothing is its own bound and is not judged."""
    toys.add("toy", work=[1, 12.5], bound=None)
    figure = toys.run("toy", "--rounds", "1").figures[0]
    assert (figure["value"], figure["bound"], figure["ratio"], figure["reached"]) == (12.5, 12.5, None, None)


@pytest.mark.parametrize(
    ("target", "work", "is_reached"),
    [
        ("at_least(0.5)", 5, True),
        ("at_least(0.5)", 4.9, False),
        ("at_most(1.5)", 15, True),
        ("at_most(1.5)", 16, False),
    ],
)
def test_a_ratio_is_judged_from_its_own_direction(toys: Toys, target: str, work: float, is_reached: bool) -> None:
    """Rates must not fall below their target, latencies must not rise above theirs; the edge counts as reached."""
    toys.add("toy", work=[1, work], bound=[1, 10], target=target)
    outcome = toys.run("toy", "--rounds", "1")
    assert outcome.figures[0]["reached"] is is_reached
    assert outcome.code == 0


def test_a_wrong_name_lists_the_right_ones(toys: Toys) -> None:
    """Nothing runs, and the reader learns what could have been asked for."""
    toys.add("speed-of-toys", work=[1, 1], bound=[1, 1])
    outcome = toys.run("sped-of-toys")
    assert outcome.code == 2
    assert outcome.lines == ["no bench is called 'sped-of-toys'; there are:", "  speed-of-toys"]


def test_a_failing_bench_says_why_and_the_others_run(toys: Toys) -> None:
    """The reason stands in one line before the figures of the rest; the exit code is 1."""
    toys.write("broken", BROKEN)
    toys.add("toy", work=[1, 1], bound=[1, 1])
    outcome = toys.run("--rounds", "1")
    assert outcome.code == 1
    assert outcome.lines[-2] == "broken failed: ConnectionError: no broker at 127.0.0.1:1"
    assert outcome.figures[0]["bench"] == "toy"


def test_a_bench_that_hangs_is_given_up(toys: Toys) -> None:
    """The others get their turn after --timeout-s."""
    toys.write("hanging", HANGING)
    outcome = toys.run("--timeout-s", "0.05")
    assert outcome.code == 1
    assert outcome.lines[-1] == "hanging failed: BenchFailed: hanging took longer than 0.05 s; see --timeout-s"


@pytest.mark.parametrize("reading", [0.0, -1.0, float("nan"), float("inf")])
def test_a_reading_of_nothing_fails_the_bench(toys: Toys, reading: float) -> None:
    """A ratio of what was never measured would look like a result."""
    work = f"[1, float('{reading}')]"
    toys.write("empty", TOY.format(name="empty", work=work, bound=[], against="None", side="None"))
    outcome = toys.run("empty", "--rounds", "1")
    assert outcome.code == 1
    assert "empty read speed as" in outcome.lines[-1]


def test_a_missing_reading_fails_the_bench(toys: Toys) -> None:
    """A bench that promised a metric must read it in every round."""
    text = TOY.format(name="toy", work=[1, 1], bound=[], against="None", side="None")
    toys.write("toy", text.replace('Measure("speed"', 'Measure("weight"'))
    outcome = toys.run("toy", "--rounds", "1")
    assert outcome.lines[-1] == "toy failed: BenchFailed: toy has 0 readings of weight from 1 rounds"


def test_a_module_without_a_bench_is_named(toys: Toys) -> None:
    """A module that holds no bench of its own name fails by itself, in the run and in the list."""
    toys.write("stray", "BENCH = None\n")
    assert toys.run().lines[-1].startswith("stray failed: BenchFailed: ")
    listed = toys.run("--list")
    assert listed.code == 1
    assert "must hold BENCH, a Bench named 'stray'" in listed.lines[0]


def test_the_list_says_what_each_bench_measures(toys: Toys) -> None:
    """--list runs nothing and names work, bound and target."""
    toys.add("toy", work=[], bound=[1.0], target="at_most(1.5)")
    outcome = toys.run("--list")
    assert outcome.lines == ["toy: counts", "    speed: against raw, ≤ 1.5"]
    assert outcome.code == 0


def test_nothing_stays_in_the_scratch_folder(toys: Toys) -> None:
    """A bench's folder is there while it runs and gone afterwards, failures included."""
    toys.add("toy", work=[1], bound=[1])
    outcome = toys.run("toy", "--rounds", "1")
    folder = toys.seen("toy", "FOLDERS")[0]
    assert outcome.code == 1
    assert not folder.exists()
    assert list(folder.parent.iterdir()) == []


def test_results_are_stored_where_told(toys: Toys, tmp_path: Path) -> None:
    """A folder named on the command line gets the figures at any scale, those of the sound benches included."""
    toys.write("broken", BROKEN)
    toys.add("toy", work=[1, 1], bound=[1, 1])
    toys.run("--rounds", "1", "--results", str(tmp_path / "results"))
    assert [stored.figure.bench for stored in load_results(tmp_path / "results")] == ["toy"]


def test_a_smaller_scale_does_not_replace_the_real_figures(toys: Toys, tmp_path: Path) -> None:
    """Without --results, only a run at full size is stored."""
    assert parse([]).stored_in == HOME
    assert parse(["--scale", "0.1"]).stored_in is None
    assert parse(["--scale", "0.1", "--results", str(tmp_path)]).stored_in == tmp_path


@pytest.mark.parametrize("arguments", [["--rounds", "0"], ["--scale", "0"], ["--scale", "-1"], ["--scale", "nan"]])
def test_a_senseless_size_is_refused(toys: Toys, arguments: list[str]) -> None:
    """Rounds and scale must be above nothing."""
    with pytest.raises(SystemExit) as refusal:
        toys.run(*arguments)
    assert refusal.value.code == 2
