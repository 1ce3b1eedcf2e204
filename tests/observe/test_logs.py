"""Logs: nothing global until a program asks for it, no secrets ever."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
from collections.abc import Iterator

import pytest
import structlog

from headrace.errors import BadArgument
from headrace.observe import configure, get_logger

NOTHING: dict[str, str] = {}


@pytest.fixture
def root_as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:], root.level = handlers, level
    logging.getLogger("headrace").setLevel(logging.NOTSET)
    root.setLevel(level)


def test_an_unconfigured_library_prints_nothing() -> None:
    """Warnings, errors with tracebacks, anything: neither stdout nor stderr sees it, and nothing is configured."""
    code = """
import logging, structlog
from headrace.observe import get_logger
log = get_logger("headrace.test")
log.info("hello", topic="a")
log.error("bad", topic="a")
try:
    1 / 0
except ZeroDivisionError:
    log.exception("worse")
assert not structlog.is_configured()
assert not logging.getLogger().handlers
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


def test_an_application_with_plain_logging_gets_readable_lines(caplog: pytest.LogCaptureFixture) -> None:
    """The line has event and fields, the record has them apart, the traceback is the standard one."""
    log = get_logger("headrace.test", room="log")
    with caplog.at_level(logging.INFO, "headrace"):
        log.bind(topic="a").info("topic created", partitions=3, name="not the logger's")
        log.debug("not shown")
    [record] = caplog.records
    assert record.getMessage() == "topic created room='log' topic='a' partitions=3 name=\"not the logger's\""
    assert (record.name, record.levelname) == ("headrace.test", "INFO")
    assert record.headrace == {  # type: ignore[attr-defined]
        "event": "topic created",
        "room": "log",
        "topic": "a",
        "partitions": 3,
        "name": "not the logger's",
    }


def test_percent_signs_and_braces_are_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    """Whatever stands in an event is not taken for a format."""
    get_logger("headrace.test").warning("100 % {of} it", share="5%s")
    assert caplog.messages == ["100 % {of} it share='5%s'"]


def test_an_exception_keeps_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    """exc_info may be True, or the exception itself."""
    try:
        NOTHING["lost"]
    except KeyError as error:
        get_logger("headrace.test").error("one", exc_info=True)
        lost = error
    get_logger("headrace.test").error("two", exc_info=lost)
    assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [KeyError, KeyError]


def test_secrets_are_hidden(caplog: pytest.LogCaptureFixture) -> None:
    """Fields named like secrets never reach a handler, at any depth."""
    client = {"sasl.password": "hunter2", "client.id": "x"}
    get_logger("headrace.test").warning("connecting", password="hunter2", client=client, to="kafka://u:hunter2@h")
    [record] = caplog.records
    assert "hunter2" not in record.getMessage() + str(record.__dict__)
    assert "'client.id': 'x'" in record.getMessage()


@pytest.mark.usefixtures("root_as_it_was")
def test_json_lines_carry_every_field() -> None:
    """One JSON object a line, of our events and other libraries' alike, tracebacks included."""
    stream = io.StringIO()
    configure("debug", "json", stream=stream)
    get_logger("headrace.test").debug("appended", records=3, where={"topic": "a"})
    logging.getLogger("other.library").warning("%s happened", "something")
    try:
        NOTHING["lost"]
    except KeyError:
        get_logger("headrace.test").exception("failed")
    ours, other, failed = map(json.loads, stream.getvalue().splitlines())
    assert {key: ours[key] for key in ours if key != "timestamp"} == {
        "level": "debug",
        "logger": "headrace.test",
        "event": "appended",
        "records": 3,
        "where": {"topic": "a"},
    }
    assert (other["logger"], other["event"]) == ("other.library", "something happened")
    assert "KeyError: 'lost'" in failed["exception"]


@pytest.mark.usefixtures("root_as_it_was")
def test_console_lines_are_for_people() -> None:
    """Event and fields in one line, without colour codes when nobody looks."""
    stream = io.StringIO()
    configure("INFO", "console", stream=stream)
    get_logger("headrace.test").info("appended", records=3)
    get_logger("headrace.test").debug("not shown")
    [line] = stream.getvalue().splitlines()
    assert "appended" in line
    assert "records=3" in line
    assert "\x1b" not in line


@pytest.mark.usefixtures("root_as_it_was")
def test_configuring_twice_does_not_log_twice() -> None:
    """The second call replaces the first and leaves other handlers alone."""
    theirs = logging.NullHandler()
    logging.getLogger().addHandler(theirs)
    first, second = io.StringIO(), io.StringIO()
    configure(stream=first)
    configure(stream=second)
    get_logger("headrace.test").info("once")
    assert first.getvalue() == ""
    assert second.getvalue().count("once") == 1
    assert theirs in logging.getLogger().handlers
    assert not structlog.is_configured()


@pytest.mark.parametrize(("level", "format_"), [("LOUD", "json"), ("INFO", "xml")])
def test_unknown_levels_and_formats_are_refused(level: str, format_: str) -> None:
    """A mistake in the program is told before anything is set up."""
    before = list(logging.getLogger().handlers)
    with pytest.raises(BadArgument):
        configure(level, format_)  # type: ignore[arg-type]
    assert logging.getLogger().handlers == before
