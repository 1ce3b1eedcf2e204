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
from typer.testing import CliRunner

from headrace.cli.main import app
from headrace.errors import MissingExtra

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
    _, told = done.communicate(timeout=60)
    assert done.returncode == 1
    assert "install a Java 17 runtime" in told
    assert "Traceback" not in told


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
    _, told = command.communicate(timeout=60)
    assert command.returncode == 130
    assert "Traceback" not in told
    _, alive = psutil.wait_procs(children, timeout=30)
    assert alive == []
