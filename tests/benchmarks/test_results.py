"""Figures are stored by bench and metric; the table and the plot are made from what is stored."""

from __future__ import annotations

import platform
from pathlib import Path

import msgspec
import pytest
from benchmarks.harness.figures import BenchFailed, Figure
from benchmarks.harness.machine import Environment, Machine, Run, environment, this_run
from benchmarks.harness.plots import histogram, plot, rank_of
from benchmarks.harness.report import store
from benchmarks.harness.results import Result, load_results, merge, save_results
from benchmarks.harness.table import render

HERE = Environment(Machine(2, 24, "Model 1", "Linux x86_64"), {"Python": "3.11.7", "Kafka": "4.3.1"})
FIGURE = Figure("append", "events_per_s", 41000, "raw producer", 82000, 0.5, "events/s", "≥ 0.25", True, 5)


RUN = Run("2024-05-01", "abc1234", 0.2)


def result(figure: Figure = FIGURE, *, run: Run = RUN, at: Environment = HERE) -> Result:
    return Result(figure, run, at)


def test_the_table_shows_machine_versions_and_verdict() -> None:
    """A reader sees where a figure comes from, what it stands beside, and whether that is enough."""
    missed = msgspec.structs.replace(
        FIGURE, bench="read", value=12.5, bound=5, ratio=2.5, target="≤ 1.5", reached=False
    )
    text = render([result(), result(missed)])
    assert "## 2 cores, 24 GiB, Model 1" in text
    assert "Linux x86_64; Python 3.11.7, Kafka 4.3.1." in text
    assert (
        "| append | events_per_s | 41 000 events/s | raw producer | 82 000 events/s | 0.5 | ≥ 0.25 | yes | 5 |" in text
    )
    assert "| 2.5 | ≤ 1.5 | **no** | 5 | 2024-05-01 | abc1234 | 0.2 |" in text


def test_figures_of_different_machines_stand_apart() -> None:
    """A table never mixes what was taken in two environments."""
    other = msgspec.structs.replace(HERE, machine=Machine(8, 64, "Model 2", "Linux x86_64"))
    later = result(msgspec.structs.replace(FIGURE, bench="read"))
    text = render([result(), result(at=other), later])
    assert text.count("| bench | metric |") == 2


def test_a_bound_alone_shows_neither_bound_nor_plot() -> None:
    """Repeating the value as its own bound would say nothing."""
    alone = msgspec.structs.replace(FIGURE, ratio=None, target=None, reached=None, against="itself", bound=41000)
    text = render([result(alone)])
    assert "| 41 000 events/s | itself |  |  |  |  | 5 |" in text
    assert "ratios.svg" not in text


def test_the_latest_run_of_a_bench_replaces_the_one_before() -> None:
    """All metrics of a bench come from one run; other benches keep theirs."""
    gone = result(msgspec.structs.replace(FIGURE, metric="old"))
    other = result(msgspec.structs.replace(FIGURE, bench="read"))
    fresh = result(run=Run("2024-06-01", "def5678", 0.1))
    assert merge([result(), gone, other], [fresh]) == [fresh, other]


def test_what_is_stored_is_read_back(tmp_path: Path) -> None:
    """The file holds all there is to know about a figure."""
    save_results(tmp_path, [result()])
    assert load_results(tmp_path) == [result()]


def test_a_damaged_file_is_named_and_left_alone(tmp_path: Path) -> None:
    """Figures that can't be read are not overwritten."""
    damaged = tmp_path / "results.json"
    damaged.write_text("[{")
    with pytest.raises(BenchFailed, match=r"results\.json can't be read .* run the benches again"):
        store([FIGURE], tmp_path, RUN)
    assert damaged.read_text() == "[{"


def test_storing_writes_the_table_and_the_plot(tmp_path: Path) -> None:
    """One run leaves all three files, which agree."""
    store([FIGURE], tmp_path, RUN)
    assert (tmp_path / "RESULTS.md").read_text() == render(load_results(tmp_path))
    assert "<svg" in (tmp_path / "plots" / "ratios.svg").read_text()


def test_equal_figures_make_equal_plots(tmp_path: Path) -> None:
    """A run that changes nothing changes no file of the checkout."""
    for name in ("one.svg", "two.svg"):
        assert plot([FIGURE], tmp_path / name)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()


def test_a_histogram_shows_every_kind_and_stands_in_the_table(tmp_path: Path) -> None:
    """A reader sees how samples are spread, and finds the plot beside the figures."""
    samples = {"kill": [700.0, 800.0, 900.0], "freeze": [750.0]}
    histogram(samples, tmp_path / "plots" / "failover-x.svg", title="fail-overs", unit="ms", limit=2000.0)
    assert "<svg" in (tmp_path / "plots" / "failover-x.svg").read_text()
    store([FIGURE], tmp_path, RUN)
    assert "![failover-x](plots/failover-x.svg)" in (tmp_path / "RESULTS.md").read_text()


@pytest.mark.parametrize(
    ("count", "share", "rank"), [(1, 0.99, 0), (100, 0.5, 49), (100, 0.99, 98), (200, 0.99, 197), (10, 0.99, 9)]
)
def test_a_percentile_is_a_sample_that_so_many_do_not_exceed(count: int, share: float, rank: int) -> None:
    """With few samples the 99th percentile is the worst of them, never one that was not seen."""
    assert rank_of(count, share) == rank


def test_nothing_is_plotted_without_ratios(tmp_path: Path) -> None:
    """An empty plot would look like a fault."""
    assert not plot([msgspec.structs.replace(FIGURE, ratio=None)], tmp_path / "none.svg")
    assert not (tmp_path / "none.svg").exists()


def test_the_machine_is_described_without_its_name() -> None:
    """Results are public; host names are not."""
    here = environment()
    assert here.machine.cores >= 1
    assert here.machine.memory_gib >= 1
    assert "Python" in here.versions
    name = platform.node()
    assert len(name) < 4 or name not in render([result(at=here)])


def test_a_run_says_which_code_it_measured_and_on_how_busy_a_machine() -> None:
    """Without the commit a figure can't be repeated; with a high load it should be."""
    run = this_run()
    assert run.commit
    assert run.load >= 0
