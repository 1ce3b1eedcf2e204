"""The shell of `headrace sql`, its plots, and a start of Spark that prints nothing; without Spark."""

from __future__ import annotations

import io
import subprocess
import sys
import time
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from headrace.cli.spark_sessions import quiet_jvm
from headrace.cli.sql import PlotColumns, plot_columns, plot_of
from headrace.cli.sql_shell import SqlShell, completer_of, piped_lines, statements, typed_lines
from headrace.errors import BadArgument, OperationFailed
from headrace.pipeline import Endpoints, query
from headrace.pipeline.replication.display import plot


class Asked:
    """A shell that keeps what it was asked."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.statements: list[str] = []
        self.stops = 0
        self._error = error
        self.shell = SqlShell(self._answer, lambda: ["journal", "topic_prices"], self._stop)

    def run(self, *lines: str, is_interactive: bool = True) -> list[str]:
        self.shell.run(iter(lines), is_interactive=is_interactive)
        return self.statements

    def _answer(self, statement: str) -> None:
        self.statements.append(statement)
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _stop(self) -> None:
        self.stops += 1


def test_a_semicolon_ends_a_statement_unless_it_is_quoted() -> None:
    """Semicolons in texts, names and comments do not end a statement; a text that is not closed goes on."""
    assert statements("select 1; select ';' -- a;b\n; x") == (["select 1", "select ';' -- a;b"], " x")
    assert statements("select 'it\\'s; so', `a;b` /* ; */;") == (["select 'it\\'s; so', `a;b` /* ; */"], "")
    assert statements("select 'open; ") == ([], "select 'open; ")
    assert statements(";;") == ([], "")
    assert statements("-- of sales;\n; select 1 /* one */; /* two */;") == (["select 1 /* one */"], "")


def test_backslashes_of_raw_texts_and_comments_within_comments_are_read_as_spark_reads_them() -> None:
    """A raw text ends with its quote, whatever is before that; a comment ends when the comments in it have ended."""
    assert statements("select r'C:\\'; select R\"a;\\\"; x") == (["select r'C:\\'", 'select R"a;\\"'], " x")
    assert statements("select for'\\';'; x") == (["select for'\\';'"], " x")  # the end of a word is no prefix
    assert statements("/* a /* b; */ c; */ select 1; x") == (["/* a /* b; */ c; */ select 1"], " x")
    assert statements("/* a /* b */; select 1;") == ([], "/* a /* b */; select 1;")


def test_a_statement_of_many_lines_is_read_in_one_pass() -> None:
    """The time to read a statement grows with its length and not with its square."""
    lines = ["select * from journal where key in (", *(f"  'key-{n:08}'," for n in range(20_000)), "  'last');"]
    started_s = time.process_time()
    assert Asked().run(*lines, is_interactive=False) == ["\n".join(lines)[:-1]]
    assert time.process_time() - started_s < 5


def test_the_shell_answers_statements_over_several_lines(capsys: pytest.CaptureFixture[str]) -> None:
    """A statement may take several lines; commands are answered between statements, and quit ends the shell."""
    asked = Asked()
    assert asked.run("select key", "from journal;", "tables", "help;", "select 2;", "quit", "select 3;") == [
        "select key\nfrom journal",
        "select 2",
    ]
    printed = capsys.readouterr().out
    assert "journal\ntopic_prices\n" in printed
    assert "Ctrl-D" in printed


def test_comments_are_no_statements() -> None:
    """A file may end with a comment, and a comment at the terminal begins nothing."""
    assert Asked().run("select 1;", "-- the end", "/* really */", is_interactive=False) == ["select 1"]
    assert Asked().run("-- which tables are there?", "tables", "select 2;") == ["select 2"]


def test_a_file_may_begin_with_the_mark_of_utf_8(monkeypatch: pytest.MonkeyPatch) -> None:
    """Editors of Windows put the mark before the text; with it the first statement was no SQL."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xef\xbb\xbfselect 1;\r\nselect 2;"), "utf-8"))
    assert list(piped_lines()) == ["select 1;", "select 2;"]


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_a_statement_that_is_no_text_is_refused_by_its_line(monkeypatch: pytest.MonkeyPatch, encoding: str) -> None:
    """A file in another encoding than the terminal's gave a traceback, or Spark's error about nothing."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"select\n'caf\xe9';"), encoding))
    (asked,) = Asked().run(*piped_lines(), is_interactive=False)
    with pytest.raises(BadArgument, match="line 2 has bytes that are no text; write it in UTF-8"):
        query(None, Endpoints.of("embedded:./nowhere"), asked)  # type: ignore[arg-type] - refused before Spark is asked


def test_an_error_of_a_command_ends_the_command_and_not_the_shell(capsys: pytest.CaptureFixture[str]) -> None:
    """A log that does not answer `tables` may answer the next statement."""
    asked = Asked()

    def unavailable() -> list[str]:
        raise OperationFailed("listing the topics", "connection refused")

    asked.shell = SqlShell(asked._answer, unavailable, asked._stop)
    assert asked.run("tables", "select 1;") == ["select 1"]
    assert "connection refused" in capsys.readouterr().err


def test_an_error_ends_the_statement_and_not_the_shell(capsys: pytest.CaptureFixture[str]) -> None:
    """At a terminal an error is printed, and Ctrl-C stops what runs; from a file the first error is raised."""
    wrong = BadArgument("the statement", "select x", "there is no column x")
    asked = Asked(wrong)
    assert asked.run("select x; select 1;") == ["select x", "select 1"]
    assert "there is no column x" in capsys.readouterr().err
    stopped = Asked(KeyboardInterrupt())
    assert stopped.run("select 1;", "select 2;") == ["select 1", "select 2"]
    assert stopped.stops == 1
    with pytest.raises(BadArgument):
        Asked(wrong).run("select x;", is_interactive=False)
    assert Asked().run("select 1;", "select 2", is_interactive=False) == ["select 1", "select 2"]


def test_lines_are_typed_with_history_and_completion(tmp_path: Path) -> None:
    """What is typed is kept for the next shell, for its user only; names of tables and columns are completed."""
    history = tmp_path / "new" / "history"
    with create_pipe_input() as keyboard, create_app_session(input=keyboard, output=DummyOutput()):
        keyboard.send_text("select 1;\rtables\r\x04")
        assert list(typed_lines(Asked().shell, lambda: ["topic_prices"], history)) == ["select 1;", "tables"]
    assert list(FileHistory(str(history)).load_history_strings()) == ["tables", "select 1;"]
    assert history.stat().st_mode & 0o077 == 0
    completer = completer_of(lambda: ["topic_prices"])
    for typed, word in (
        ("select * from topic_p", "topic_prices"),
        ("SELECT payload_te", "payload_text"),
        ("ta", "tables"),
    ):
        found = completer.get_completions(Document(typed), CompleteEvent())
        assert word in [each.text for each in found]


def test_a_time_and_numbers_make_a_plot() -> None:
    """A plot needs one time and some numbers; a text says which line a number belongs to; anything else is a table."""
    when, number, text = ("at", "timestamp"), ("n", "bigint"), ("kind", "string")
    assert plot_columns([when, number]) == PlotColumns("at", ("n",))
    assert plot_columns([when, text, ("x", "decimal(10,2)")]) == PlotColumns("at", ("x",), "kind")
    assert plot_columns([("day", "date"), number, ("m", "double")]) == PlotColumns("day", ("n", "m"))
    for columns in (
        [when],
        [number],
        [when, when, number],
        [when, number, text, text],
        [when, number, ("b", "binary")],
    ):
        assert plot_columns(columns) is None
    assert plot_columns([when, *((f"n{n}", "int") for n in range(5))]) is None


def test_a_plot_shows_lines_over_time() -> None:
    """The plot has the names, the times and the values; a single point, or five lines, are no plot."""
    start = datetime(2024, 5, 1, tzinfo=UTC)
    rows: list[dict[str, Any]] = [
        {"at": start + timedelta(hours=n), "n": n * n, "kind": "in" if n % 2 else "out"} for n in range(12)
    ]
    drawn = plot_of(PlotColumns("at", ("n",)), rows) or ""
    assert all(part in drawn for part in ("05-01 00:00", "05-01 11:00", "at (UTC)", "121", "⠊"))
    lines = plot_of(PlotColumns("at", ("n",), "kind"), rows) or ""
    assert all(part in lines for part in (" in ", " out ", "•", "×"))
    assert plot_of(PlotColumns("at", ("n",)), rows[:1]) is None
    assert plot_of(PlotColumns("at", ("n",), "kind"), [{**row, "kind": str(row["n"])} for row in rows]) is None
    days = [{"at": date(2024, 1, 1) + timedelta(days=n), "n": None if n == 1 else n} for n in range(40)]
    assert "2024-02-09" in (plot_of(PlotColumns("at", ("n",)), days) or "")
    assert "records/s" in plot([(0.0, 1.0), (1.0, 5.0)])


def test_a_quiet_start_hides_what_other_processes_print(capfd: pytest.CaptureFixture[str]) -> None:
    """The lines of a process that starts in the block are hidden, Python's own are shown; after a failure, all are."""
    with quiet_jvm():
        child = subprocess.Popen(
            [sys.executable, "-c", "import sys; input(); print('noise', file=sys.stderr)"], stdin=-1
        )
        sys.stderr.write("fetching\n")
    child.communicate(b"\n")
    assert "noise" not in capfd.readouterr().err

    def start() -> None:
        with quiet_jvm():
            subprocess.run(["sh", "-c", "echo no memory >&2"], check=True)
            raise BadArgument("x", 1, "it failed")

    with pytest.raises(BadArgument):
        start()
    assert "no memory" in capfd.readouterr().err
