"""The shell of `headrace sql`: statements one after another in one Spark session, with history and completion."""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from headrace.errors import HeadraceError, MissingExtra

if TYPE_CHECKING:
    from prompt_toolkit.completion import Completer

__all__ = ["SqlShell", "completer_of", "piped_lines", "statements", "typed_lines"]

_HELP = """\
A statement ends with a semicolon. Commands:
  tables    list the tables; topics are topic_NAME, compact_NAME and state_NAME
  help      show this text
  quit      leave the shell, as Ctrl-D does
Ctrl-C stops a statement that runs."""
_WORDS = (
    "select from where group by order limit join left on as and or not in is null like between case when then else end "
    "having distinct union all with count sum avg min max date_trunc current_timestamp interval explode desc asc "
    "key seq_nr payload payload_text payload_type tags metadata headers timestamp partition offset generation origin "
    "version log_time record_id value key_bytes value_bytes expires event event_type delete_to is_purged lag topic"
)
_COMMANDS = ("tables", "help", "quit", "exit")
# Texts, quoted names and comments may hold semicolons; a text that is not closed yet reaches to the end. In a raw text
# a backslash is a letter like others, and a comment may hold comments.
_PIECE = re.compile(
    r"""(?<!\w)[rR](?:'[^']*(?:'|$)|"[^"]*(?:"|$))"""
    r"""|'(?:[^'\\]|\\.)*(?:'|$)|"(?:[^"\\]|\\.)*(?:"|$)|`[^`]*(?:`|$)"""
    r"""|--[^\n]*|/\*(?:/\*.*?\*/|.)*?(?:\*/|$)|;|\w+|[^\w'"`;/-]+|.""",
    re.DOTALL,
)


def statements(text: str) -> tuple[list[str], str]:
    """Return the statements in the text that a semicolon ends, and the rest."""
    done: list[str] = []
    rest: list[str] = []
    for piece in _PIECE.findall(text):
        if piece == ";":
            done.append("".join(rest).strip())
            rest = []
        else:
            rest.append(piece)
    return [each for each in done if has_words(each)], "".join(rest)


def has_words(text: str) -> bool:
    """Return True unless the text is empty but for comments."""
    return any(not piece.isspace() and not piece.startswith(("--", "/*")) for piece in _PIECE.findall(text))


class SqlShell:
    """Takes lines, and answers each statement when its semicolon has come. An error ends the statement, not the shell.

    `answer` runs a statement and prints its rows, `tables` returns the names of the tables, `stop` ends what runs.
    """

    def __init__(
        self, answer: Callable[[str], None], tables: Callable[[], Sequence[str]], stop: Callable[[], None]
    ) -> None:
        self._answer = answer
        self._tables = tables
        self._stop = stop
        self._rest: list[str] = []  # lines, and what is left of one

    @property
    def is_within_statement(self) -> bool:
        """True if the lines so far begin a statement that no semicolon has ended."""
        return has_words("".join(self._rest))

    def drop(self) -> None:
        """Forget the statement that was begun."""
        self._rest = []

    def run(self, lines: Iterator[str], *, is_interactive: bool) -> None:
        """Answer statements until the lines end or one says quit.

        At a terminal errors are printed. From a file the first one is raised, and a last statement needs no semicolon.
        """
        for line in lines:
            command = line.strip().rstrip(";").lower()
            if command in _COMMANDS and not self.is_within_statement:
                self.drop()  # comments
                if command in ("quit", "exit"):
                    return
                self._run_guarded(partial(self._command, command), is_interactive=is_interactive)
                continue
            self._rest.append(f"{line}\n")
            if ";" not in line:  # it ends nothing, and to look at all lines again would take the square of their number
                continue
            done, rest = statements("".join(self._rest))
            self._rest = [rest]
            for statement in done:
                self._run_guarded(partial(self._answer, statement), is_interactive=is_interactive)
        last, self._rest = "".join(self._rest).strip(), []
        if has_words(last) and not is_interactive:
            self._run_guarded(partial(self._answer, last), is_interactive=False)

    def _command(self, command: str) -> None:
        typer.echo(_HELP if command == "help" else "\n".join(self._tables()))

    def _run_guarded(self, work: Callable[[], None], *, is_interactive: bool) -> None:
        """Answer a statement or a command. At a terminal an error, and Ctrl-C, end only that."""
        try:
            work()
        except KeyboardInterrupt:
            self._stop()
            if not is_interactive:
                raise
            typer.echo("stopped", err=True)
        except HeadraceError as error:
            if not is_interactive:
                raise
            typer.secho("error: ", fg="red", bold=True, nl=False, err=True)
            typer.echo(error, err=True)


def typed_lines(shell: SqlShell, tables: Callable[[], Sequence[str]], history: Path | None = None) -> Iterator[str]:
    """Yield the lines that a person types, with history and completion, until Ctrl-D. Raises MissingExtra."""
    try:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.history import FileHistory
    except ImportError as error:
        raise MissingExtra("prompt-toolkit", "pipeline") from error
    kept = history or _history_file()
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.touch(mode=0o600)  # statements may name what others should not read
    session: PromptSession[str] = PromptSession(history=FileHistory(str(kept)), completer=completer_of(tables))
    while True:
        try:
            yield session.prompt("     > " if shell.is_within_statement else "sql  > ")
        except KeyboardInterrupt:
            shell.drop()
        except EOFError:
            return


def completer_of(tables: Callable[[], Sequence[str]]) -> Completer:
    """Return the completion of the words of a statement: tables, columns, SQL's own, and the shell's commands."""
    from prompt_toolkit.completion import WordCompleter

    return WordCompleter(lambda: [*tables(), *_WORDS.split(), *_COMMANDS], ignore_case=True, pattern=re.compile(r"\w+"))


def piped_lines() -> Iterator[str]:
    """Yield the lines of standard input, without the mark that some editors put before UTF-8.

    Bytes that are no text in the encoding of the terminal stay in the lines: `query` refuses a statement with them.
    """
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")
    for number, line in enumerate(sys.stdin):
        yield (line if number else line.removeprefix("\ufeff")).rstrip("\n")


def _history_file() -> Path:
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(state).expanduser() / "headrace" / "sql_history"
