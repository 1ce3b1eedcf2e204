"""Progress: bars for terminals, lines for files, nothing for libraries."""

from __future__ import annotations

import io
import threading

import pytest
from rich.console import Console

from headrace.observe import SILENT, BarProgress, LineProgress, Progress, progress_on


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def work(progress: Progress, amounts: list[int], *, total: float | None = None, unit: str = "") -> None:
    with progress.step("fetching kafka", total=total, unit=unit) as step:
        for amount in amounts:
            step.advance(amount)


def test_silence_is_the_default(capfd: pytest.CaptureFixture[str]) -> None:
    """The same code runs and nothing is shown."""
    work(SILENT, [1, 2], total=3)
    assert capfd.readouterr() == ("", "")


def test_lines_come_now_and_then() -> None:
    """A start, not more than one line in `every_s`, and an end with amount, share and rate."""
    stream = io.StringIO()
    work(LineProgress(stream, every_s=60), [20_000_000, 20_000_000], total=40_000_000, unit="bytes")
    first, last = stream.getvalue().splitlines()
    assert first == "fetching kafka ..."
    assert last.startswith("fetching kafka: 40.0/40.0 (100%) MB, ")
    assert "MB/s done (" in last


def test_lines_show_each_step_when_asked() -> None:
    """With every_s=0 each advance is a line."""
    stream = io.StringIO()
    work(LineProgress(stream, every_s=0), [1, 1], total=4, unit="jars")
    lines = stream.getvalue().splitlines()
    assert [line.split(",")[0] for line in lines[1:]] == [
        "fetching kafka: 1/4 (25%) jars",
        "fetching kafka: 2/4 (50%) jars",
        "fetching kafka: 2/4 (50%) jars",
    ]


def test_a_total_can_come_later_or_never() -> None:
    """Work whose size is unknown is counted without a share."""
    stream = io.StringIO()
    progress = LineProgress(stream, every_s=0)
    with progress.step("reading") as step:
        step.advance(5)
        step.expect(10)
        step.advance(5)
    _, before, after, _ = stream.getvalue().splitlines()
    assert before.startswith("reading: 5, ")
    assert after.startswith("reading: 10/10 (100%)")


def test_a_failure_is_shown_as_one() -> None:
    """The last line says failed, and the error goes on."""
    stream = io.StringIO()
    with pytest.raises(ZeroDivisionError), LineProgress(stream).step("fetching"):
        raise ZeroDivisionError
    assert "fetching: failed" in stream.getvalue()


def test_bars_are_drawn_on_a_terminal() -> None:
    """Two steps at once share the display; amounts and the rate are shown."""
    stream = Terminal()
    progress = BarProgress(Console(file=stream, force_terminal=True, width=120))
    with progress.step("kafka", total=4_000_000, unit="bytes") as kafka, progress.step("cassandra") as cassandra:
        threads = [threading.Thread(target=step.advance, args=(2_000_000,)) for step in (kafka, cassandra)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    shown = stream.getvalue()
    assert "kafka" in shown
    assert "cassandra" in shown
    assert "2.0/4.0 (50%) MB" in shown


def test_bars_can_be_used_again() -> None:
    """A second step after the first has ended is drawn too."""
    stream = Terminal()
    progress = BarProgress(Console(file=stream, force_terminal=True, width=120))
    work(progress, [1], total=1)
    with progress.step("second round", total=1) as step:
        step.advance()
    assert "second round" in stream.getvalue()


def test_the_stream_decides_what_suits() -> None:
    """Bars for terminals, lines for anything else."""
    assert isinstance(progress_on(io.StringIO()), LineProgress)
    assert isinstance(progress_on(Terminal()), BarProgress)
