"""What is said when no broker is there: one line by a command, little by the library, something when it lasts."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time

import pytest

from headrace.log.kafka.client import DriverLog, warn_aloud

FORM = "%s [%s] %s"
REFUSED = "b:9/bootstrap: Connect to ipv4#127.0.0.1:9 failed: Connection refused (after 0ms in state CONNECT)"


class Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.shown: list[tuple[str, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.INFO:
            self.shown.append((record.levelname, record.getMessage()))


@pytest.fixture
def lines() -> Lines:
    return Lines()


@pytest.fixture
def logger(lines: Lines, request: pytest.FixtureRequest) -> logging.Logger:
    logger = logging.getLogger(f"test.{request.node.name}")
    logger.propagate = False
    logger.setLevel(logging.DEBUG)
    logger.addHandler(lines)
    return logger


def test_an_outage_is_told_when_it_lasts_and_once_a_minute(logger: logging.Logger, lines: Lines) -> None:
    """FN3: ten attempts a second of all clients become a line a minute, after ten seconds; short ones none."""
    now_s = 0.0
    log = DriverLog(logger, now_s=lambda: now_s)
    for tick in range(1_000):
        now_s = tick / 10
        log.log(logging.ERROR, FORM, "FAIL", "rdkafka#producer-1", REFUSED)
    assert [level for level, _ in lines.shown] == ["WARNING", "WARNING"]
    assert lines.shown[0][1].startswith("connections to Kafka brokers have been failing for 10 s (101 times)")
    lines.shown.clear()
    now_s += 60  # it was over, and a new one begins
    log.log(logging.ERROR, FORM, "FAIL", "rdkafka#producer-1", REFUSED)
    now_s += 5
    log.log(logging.ERROR, FORM, "ERROR", "rdkafka#producer-1", "1/1 brokers are down")
    assert lines.shown == []


def test_other_lines_are_told_as_they_are_but_not_again_and_again(logger: logging.Logger, lines: Lines) -> None:
    """FN3: a line that differs in its numbers only is the same line."""
    now_s = 0.0
    log = DriverLog(logger, now_s=lambda: now_s)
    for tick in range(400):
        now_s = tick / 10
        log.log(logging.WARNING, FORM, "GETPID", "rdkafka#producer-1", f"Failed to acquire PID from broker {tick}")
    log.log(logging.CRITICAL, FORM, "FATAL", "rdkafka#producer-1", "Fatal error: fenced")
    assert [level for level, _ in lines.shown] == ["WARNING", "WARNING", "CRITICAL"]


def test_a_program_without_logging_hears_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    """FN3: by the standard library's last resort; whoever has configured logging decides by himself."""
    silent = logging.getLogger("test.unconfigured")
    silent.propagate = False
    silent.addHandler(logging.NullHandler())
    warn_aloud(silent, "no broker for %d s", 12)
    assert capsys.readouterr().err == "no broker for 12 s\n"
    silent.addHandler(Lines())
    warn_aloud(silent, "no broker for %d s", 12)
    assert capsys.readouterr().err == ""


def test_a_command_gives_up_soon_and_says_one_line() -> None:
    """FN3: a wrong address is a sentence with the address in it, not the driver's log."""
    began_s = time.monotonic()
    ran = subprocess.run(
        [sys.executable, "-m", "headrace.cli", "topic", "list", "--log", "kafka://127.0.0.1:9"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "HEADRACE__LOG__KAFKA__CONNECT_TIMEOUT_S": "1"},
    )
    assert ran.returncode != 0
    assert len(ran.stderr.splitlines()) == 1
    assert "kafka://127.0.0.1:9" in ran.stderr
    assert time.monotonic() - began_s < 20
