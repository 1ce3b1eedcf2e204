"""What people see when something is missing on their machine, or when they press Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from pyspark import java_gateway
from tests.cli.conftest import Command
from typer.testing import CliRunner

from headrace.cli import spark_sessions
from headrace.cli.main import app
from headrace.errors import BadArgument, IncompatibleData, MissingExtra, NotGiven
from headrace.pipeline import query_error
from headrace.pipeline.spark import session
from headrace.services import cache_folder
from headrace.services.detached import services_folder

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


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_terminal_without_unicode_shows_what_it_can(tmp_path: Path, options: list[str]) -> None:
    """A payload with a character that the terminal lacks, as one of Latin-1 does, ended a command with a traceback."""
    address = f"embedded:{tmp_path}"
    CliRunner().invoke(app, ["journal", "append", "notes", "k", '{"t":"é✓"}', "--log", address], catch_exceptions=False)
    done = subprocess.run(
        [str(BIN / "headrace"), "journal", "read", "notes", "k", "--log", address, *options],
        env={**os.environ, "PYTHONIOENCODING": "latin-1"},
        capture_output=True,
        check=False,
    )
    assert (done.returncode, b"\xe9\\u2713" in done.stdout, done.stderr) == (0, True, b"")


def test_an_interrupt_while_it_is_imported_is_no_traceback(tmp_path: Path) -> None:
    """FN4: Ctrl-C at any moment ends a command with 130 and nothing on the screen."""
    program = "import headrace.__main__, signal, sys; signal.setitimer(signal.ITIMER_REAL, 0.05)\n"
    program += "signal.signal(signal.SIGALRM, signal.default_int_handler); headrace.__main__.main()"
    done = subprocess.run([sys.executable, "-c", program, "journal", "ids", "x"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "")


def test_an_interrupt_that_python_wraps_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    """FN4: one that comes while a class is made is the cause of a RuntimeError; other errors stay as they are."""
    from headrace import __main__, cli

    def end(cause: BaseException) -> None:
        raise RuntimeError from cause

    monkeypatch.setattr(cli, "main", lambda: end(KeyboardInterrupt()))
    with pytest.raises(SystemExit) as ended:
        __main__.main()
    assert ended.value.code == 130
    monkeypatch.setattr(cli, "main", lambda: end(ValueError()))
    with pytest.raises(RuntimeError):
        __main__.main()


def test_an_interrupt_that_is_swallowed_while_spark_starts_counts() -> None:
    """FN4: it is noted, so that the command ends when Spark has started; also if Spark has set its own handler."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # Spark sessions of other tests set their own
    try:
        with spark_sessions._noting_interrupts() as has_come:
            assert not has_come()
            signal.signal(signal.SIGINT, lambda *_: None)
            signal.raise_signal(signal.SIGINT)
            assert has_come()
        assert signal.set_wakeup_fd(-1) == -1
    finally:
        signal.signal(signal.SIGINT, before)


def test_an_interrupt_while_the_jvm_is_being_started_counts_when_it_is_known() -> None:
    """FN4: it comes when the process has begun and Popen has not returned: the process ends, and no other JVM does."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    begun: list[subprocess.Popen[bytes]] = []

    class Interrupted(subprocess.Popen[bytes]):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            begun.append(self)
            signal.raise_signal(signal.SIGINT)

    earlier = subprocess.Popen(["sleep", "60"])  # as the JVM of a session that this process has already
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(session, "_started", [earlier])
            patch.setattr(session.subprocess, "Popen", Interrupted)
            with pytest.raises(KeyboardInterrupt), session._jvm_ends_with_failure():
                java_gateway.Popen(["sleep", "60"])
    finally:
        signal.signal(signal.SIGINT, before)
        ended = earlier.poll()
        earlier.kill()
        earlier.wait()
    assert [process.returncode for process in begun] == [-signal.SIGKILL]
    assert ended is None


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
    assert isinstance(refused.exception, NotGiven)
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


BROKEN_MODULES = {
    "unclosed": ("open(", "unclosed.py:1: SyntaxError: '(' was never closed"),
    "raising": ("\nraise ValueError('no such rate')", "raising.py:2: ValueError: no such rate"),
    "importing": ("import no_such_library", "importing.py:1: ModuleNotFoundError: No module named 'no_such_library'"),
}
LOADING_COMMANDS = (
    ("projection", "status"),
    ("gateway", "run", "--app"),
    ("node", "run"),
    ("keyspace", "resize", "--partitions", "2"),
    ("engine", "audit", "--id", "a"),
    ("tags", "backfill", "big"),
)


@pytest.mark.parametrize("loading", LOADING_COMMANDS, ids=lambda words: "-".join(words[:2]))
def test_a_module_that_can_not_be_imported_is_one_sentence(command: Command, loading: tuple[str, ...]) -> None:
    """FN4: a mistake in the application's own module is named with its file and line, not shown as our traceback."""
    Path("data").mkdir()
    Path("data", "log.db").touch()
    for module, (text, place) in BROKEN_MODULES.items():
        Path(f"{module}.py").write_text(text)
        done = command(*loading, f"{module}:x")
        assert isinstance(done.exception, BadArgument), done.exception
        assert place in str(done.exception)
    done = command(*loading, "nowhere:x")
    assert isinstance(done.exception, BadArgument)
    assert "(No module named 'nowhere')" in str(done.exception)


def test_what_is_no_application_is_not_served(command: Command) -> None:
    """FN4: --app names something that can be called; a number was served, and every request of it failed."""
    Path("numbers_only.py").write_text("five = 5")
    done = command("gateway", "run", "--app", "numbers_only:five")
    assert isinstance(done.exception, BadArgument)
    assert "this is of type int" in str(done.exception)


@pytest.mark.parametrize("option", ["--listen", "--http", "--grpc"])
def test_a_node_with_a_wrong_address_does_not_start(command: Command, option: str) -> None:
    """FN4: an address is looked at before the node takes partitions, which others would then wait for."""
    engine = "from headrace.engine import Engine\nbank = Engine('bank', state=dict)\n"
    Path("small_bank.py").write_text(engine + "@bank.command\ndef add(state, command: dict) -> None: ...\n")
    done = command("node", "run", "small_bank:bank", option, "rubbish")
    assert str(done.exception) == f"{option} is 'rubbish', but it must be HOST:PORT, as in 127.0.0.1:8080"
    assert not Path("data").exists()


def test_a_size_that_no_keyspace_has_is_refused_before_the_question(command: Command) -> None:
    """FN4: nobody is asked about a resize that can't be done."""
    Path("shelves.py").write_text("from headrace.keyspace import Keyspace\nclass Shelf(Keyspace): ...\n")
    done = command("keyspace", "resize", "shelves:Shelf", "--partitions", "0")
    assert done.exit_code != 0
    assert "?" not in done.output


@pytest.mark.parametrize("reading", [("read", "acounts", "a"), ("pointer", "acounts", "a"), ("ids", "acounts")])
def test_a_misspelt_topic_is_named_with_the_nearest_one(command: Command, reading: tuple[str, ...]) -> None:
    """FN4: a topic that is not there looked like one whose journals are empty."""
    assert command("topic", "create", "accounts", "--journal").exit_code == 0
    done = command("journal", *reading)
    assert "there is no topic acounts; did you mean accounts?" in done.stderr
    assert "there is no topic" not in command("journal", "read", "accounts", "a").stderr


def test_a_tag_without_events_is_named(command: Command) -> None:
    """FN4: a misspelt tag prints a sentence and not nothing."""
    assert command("topic", "create", "accounts", "--journal").exit_code == 0
    assert "no events under viip" in command("tags", "follow", "viip", "--current").stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("journal delete accounts a", "--to is not given: give the last seq_nr to delete, or --all"),
        ("outbox migrate", "--database is not given: name the database, here or as outbox.database in the settings"),
        ("outbox dead replay", "ID is not given: name some ids, --topic, or --all"),
        ("services env", "no server is up here; run: headrace services up kafka"),
        ("services logs kafka", "no server was started from here; run: headrace services up kafka"),
    ],
)
def test_what_is_missing_is_said_in_words(command: Command, words: str, message: str) -> None:
    """FN4: no message speaks of None, or lists what was not asked for."""
    done = command(*words.split())
    assert message in (str(done.exception) if done.exception else done.output)


def test_the_place_to_continue_from_is_named_as_it_was_given(command: Command) -> None:
    """FN4: OFFSET is an argument of `offset set`, and not the option of another command."""
    lines = "from headrace.projection import Projection\ntotals = Projection('totals', 'vip', print)\n"
    Path("totals_of.py").write_text(lines)
    done = command("projection", "offset", "set", "totals_of:totals", "rubbish", "--yes")
    assert str(done.exception).startswith("OFFSET is 'rubbish'")


def test_a_journal_topic_has_as_many_partitions_as_the_first_append_makes(command: Command) -> None:
    """FN1: `create --journal` and an append that comes first agree on the setting; other topics have one partition."""
    for how, expected in (("--journal", 8), ("--shared", 8), ("--cleanup=compact", 1)):
        made = command("topic", "create", how.strip("-").partition("=")[0], how, "--json")
        assert json.loads(made.stdout)["partitions"] == expected, how
    assert (
        json.loads(command("topic", "create", "two", "--journal", "--partitions", "2", "--json").stdout)["partitions"]
        == 2
    )


@pytest.mark.parametrize("declared", ["--journal", "--shared"])
def test_a_journal_topic_that_would_be_compacted_is_not_created(command: Command, declared: str) -> None:
    """FN4: --cleanup compact is refused beside --journal, which left it out silently, and beside --shared."""
    done = command("topic", "create", "t", declared, "--cleanup", "compact")
    assert isinstance(done.exception, BadArgument)
    assert "leave --cleanup out" in str(done.exception)


def test_a_missing_option_of_the_tag_commands_is_named(command: Command) -> None:
    """FN4: the message names the option, and shows no tuple."""
    command("topic", "create", "t", "--journal")
    command("journal", "append", "t", "a", "1")
    for arguments, missing in (
        (("list", "--id", "a"), "--topic is not given"),
        (("list", "--topic", "t"), "--id is not given"),
        (("rebuild",), "TAG is not given"),
        (("rebuild", "vip", "--id", "a"), "--topic is not given"),
        (("rebuild", "vip", "--topic", "t"), "--id is not given"),
    ):
        done = command("tags", *arguments)
        assert isinstance(done.exception, NotGiven), arguments
        assert missing in str(done.exception)


def test_the_folders_of_servers_can_be_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FN4: services.data_dir and services.cache_dir are used by the command; they were accepted and did nothing."""
    monkeypatch.setenv("HEADRACE_SERVICES_DIR", str(tmp_path / "other"))  # both are restored after the test
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "other"))
    monkeypatch.setenv("HEADRACE__SERVICES__DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("HEADRACE__SERVICES__CACHE_DIR", str(tmp_path / "cache"))
    assert CliRunner().invoke(app, ["services", "status"]).exit_code == 0
    assert (services_folder(), cache_folder()) == (tmp_path / "data", tmp_path / "cache")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("outbox", "relay", "--database", "sqlite:///s.db", "--delivery", "maybe"),
            "'at_least_once' or 'exactly_once'",
        ),
        (("outbox", "status", "--database", "sqlite://s.db"), "as in sqlite:///shop.db"),
        (("schema", "show"), "SUBJECT is not given"),
        (("schema", "show", "s", "--id", "1"), "one of the two"),
        (("services", "up", "mariadb", "--port", "kafka=9092"), "or name kafka too"),
    ],
    ids=lambda value: "-".join(value[:2]) if isinstance(value, tuple) else "",
)
def test_a_wrong_argument_is_one_sentence(command: Command, arguments: tuple[str, ...], message: str) -> None:
    """FN4: the message names what was given and what can be given; no error of a library reaches the user."""
    error = command(*arguments).exception
    assert isinstance(error, BadArgument | NotGiven)
    assert message in str(error)


def test_an_unknown_version_of_the_outbox_is_answered_with_those_that_are_known(command: Command) -> None:
    """FN4: the message names the versions of the migrations; it repeated the one that was asked for."""
    error = command("outbox", "migrate", "--database", "sqlite:///s.db", "--to", "99").exception
    assert isinstance(error, IncompatibleData)
    assert "this version reads the versions 0001, " in str(error)


@pytest.mark.spark
@pytest.mark.timeout(240)
def test_a_failure_inside_the_jvm_is_one_sentence(tmp_path: Path) -> None:
    """FN4: a file that is no Parquet is named with Spark's reason; the text was asked of a JVM that had ended."""
    file = tmp_path / "events.parquet"
    file.write_text("no Parquet\n")
    _, stderr = (done := running(tmp_path, "import", "journals", str(file), "--topic", "t")).communicate(timeout=230)
    assert done.returncode == 1
    assert "Traceback" not in stderr
    assert "error: headrace import on Spark" in stderr


def test_an_error_whose_text_is_gone_with_the_jvm_is_still_named() -> None:
    """FN4: a Java exception asks the JVM for its text; if that has ended, what Python knows is said."""

    class Lost(Exception):
        errmsg = "an error of Java"

        def __str__(self) -> str:
            raise ConnectionRefusedError

    assert "an error of Java" in str(query_error(Lost()))
