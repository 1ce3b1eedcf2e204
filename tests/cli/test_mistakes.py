"""What people see when something is missing on their machine, or when they press Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from tests.cli.conftest import Command
from typer.testing import CliRunner

from headrace.cli.main import app
from headrace.errors import BadArgument, MissingExtra

BIN = Path(sys.executable).parent
SPARK_COMMANDS = (["sql", "select 1"], ["pipeline", "replicate", "--once"], ["pipeline", "audit"])


def running(folder: Path, *arguments: str, **variables: str) -> subprocess.Popen[str]:
    """Start the command beside an empty log, in a process group of its own, as a shell does."""
    (folder / "data").mkdir(exist_ok=True)
    (folder / "data" / "log.db").touch()
    return subprocess.Popen(
        [str(BIN / "headrace"), *arguments, "--log", f"embedded:{folder / 'data'}"],
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.mark.parametrize("command", SPARK_COMMANDS, ids=lambda command: "-".join(command[:2]))
def test_no_java_is_one_sentence(command: list[str], tmp_path: Path) -> None:
    """FN4: without Java a command says what to install, with no traceback."""
    done = running(tmp_path, *command, PATH=str(tmp_path), JAVA_HOME="")
    _, stderr = done.communicate(timeout=60)
    assert done.returncode == 1
    assert "install a Java 17 runtime" in stderr
    assert "Traceback" not in stderr


@pytest.mark.parametrize("command", SPARK_COMMANDS, ids=lambda command: "-".join(command[:2]))
def test_no_pyspark_names_the_extra(command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FN4: without pyspark a command says which extra to install."""
    for name in [name for name in sys.modules if name == "pyspark" or name.startswith("pyspark.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyspark", None)
    (tmp_path / "log.db").touch()
    done = CliRunner().invoke(app, [*command, "--log", f"embedded:{tmp_path}"])
    assert isinstance(done.exception, MissingExtra)
    assert "headrace[pipeline]" in str(done.exception)


def test_an_interrupt_while_it_is_imported_is_no_traceback(tmp_path: Path) -> None:
    """FN4: Ctrl-C at any moment ends a command with 130 and nothing on the screen."""
    program = "import headrace.__main__, signal, sys; signal.setitimer(signal.ITIMER_REAL, 0.05)\n"
    program += "signal.signal(signal.SIGALRM, signal.default_int_handler); headrace.__main__.main()"
    done = subprocess.run([sys.executable, "-c", program, "journal", "ids", "x"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "")


@pytest.mark.spark
def test_an_interrupt_while_spark_starts_leaves_nothing_behind(tmp_path: Path) -> None:
    """FN4: Ctrl-C while Spark starts ends the command and the JVM, with no traceback."""
    command = running(tmp_path, "sql", "select 1")
    parent = psutil.Process(command.pid)
    children: list[psutil.Process] = []

    def is_started() -> bool:
        children[:] = parent.children(recursive=True)
        return any(child.name() == "java" for child in children)

    deadline_s = time.monotonic() + 60
    while not is_started():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    os.killpg(command.pid, signal.SIGINT)
    _, stderr = command.communicate(timeout=60)
    assert command.returncode == 130
    assert "Traceback" not in stderr
    _, alive = psutil.wait_procs(children, timeout=30)
    assert alive == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("journal", "append", "t", "a", "1", "--log", "embedded:./file"),
            "the folder file can't be created: File exists",
        ),
        (("services", "up", "kafka", "--data", "file/x"), "file/x/kafka can't be created: Not a directory"),
        (("pipeline", "package", "file/x"), "cannot use "),
    ],
    ids=["folder", "data", "package"],
)
def test_a_folder_that_can_not_be_made_is_one_sentence(
    tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    """The message names the folder and the system's reason, and does not ask whether a server is up."""
    (tmp_path / "file").touch()
    done = subprocess.run([str(BIN / "headrace"), *arguments], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    assert message in done.stderr
    assert "server" not in done.stderr
    assert "Traceback" not in done.stderr


def test_a_question_that_nobody_can_answer_names_the_option(command: Command) -> None:
    """Without a terminal a command that asks says that --yes is needed, and changes nothing."""
    command("journal", "append", "t", "a", "1")
    refused = command("journal", "purge", "t", "a")
    assert isinstance(refused.exception, BadArgument)
    assert "there is no terminal to ask at; give --yes" in str(refused.exception)
    assert command("journal", "purge", "t", "a", stdin="n\n").exit_code == 1
    assert command("journal", "pointer", "t", "a").stdout == "1\n"


def test_output_that_is_cut_off_is_no_traceback(tmp_path: Path) -> None:
    """A reader that ends first, as `head -1` does, ends the command without a word."""
    lines = "".join(f"{n}\n" for n in range(8_000))
    headrace, log = str(BIN / "headrace"), ("--log", f"embedded:{tmp_path}")
    subprocess.run([headrace, "journal", "append", "t", "a", *log], input=lines, text=True, check=True)
    with (tmp_path / "told").open("w") as stderr:
        reading = subprocess.Popen([headrace, "journal", "read", "t", "a", *log], stdout=subprocess.PIPE, stderr=stderr)
        assert reading.stdout is not None
        assert reading.stdout.readline()
        reading.stdout.close()
        assert reading.wait(60) == 1
    assert (tmp_path / "told").read_text() == ""


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"key": 1', "expecting ',' delimiter at column 10"),
        ("[1]", "a line is a JSON object"),
        ('{"keys": 1}', "unknown: keys"),
        ('{"key": "a", "headers": ["b"]}', "headers are an object too"),
    ],
)
def test_a_line_that_is_no_record_is_named(command: Command, line: str, message: str) -> None:
    """`topic put` names the line and what is wrong with it, and writes none of the lines."""
    command("topic", "create", "t")
    refused = command("topic", "put", "t", "--text", stdin=f'{{"key": "k"}}\n{line}\n')
    assert isinstance(refused.exception, BadArgument)
    assert refused.exception.name == "line 2"
    assert message in str(refused.exception)
    assert command("topic", "cat", "t").stdout == ""
