"""What docs/gateway.md shows runs: its program, its commands and its settings."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headrace.access import GrantBook
from headrace.cli.main import app
from headrace.config import HeadraceSettings

DOCUMENT = (Path(__file__).parents[2] / "docs" / "gateway.md").read_text()
HEADRACE = [sys.executable, "-m", "headrace"]


def block(language: str) -> str:
    (found,) = re.findall(rf"```{language}\n(.*?)```", DOCUMENT, re.DOTALL)
    return str(found)


def test_the_program_of_the_document_runs(tmp_path: Path) -> None:
    """G4: the program ends well and prints what the page says."""
    done = subprocess.run(
        [sys.executable, "-c", block("python")], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["201 2", "201 2", "[{'opened': 100}, {'deposited': 20}]", "hello"]


@pytest.mark.skipif(shutil.which("curl") is None, reason="the page uses curl")
def test_the_commands_of_the_document_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """G4: `headrace gateway run` serves what the lines below it ask for, and ends when it is told to."""
    create, run, *asked = block("sh").splitlines()
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(app, create.split()[1:]).exit_code == 0  # in this process: starting one takes a second
    command = [*HEADRACE, *run.removesuffix(" &").split()[1:], "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as gateway:
        try:
            assert gateway.stdout is not None
            (url,) = re.findall(r"http://(\S+);", gateway.stdout.readline())
            answers = [
                subprocess.run(
                    line.replace("localhost:8080", url), shell=True, capture_output=True, text=True, timeout=30
                )
                for line in asked
            ]
        finally:
            gateway.terminate()
    assert gateway.returncode == 0
    posted, read, tagged, pointer, ready = [answer.stdout for answer in answers]
    assert '"last":1' in posted
    assert '"opened":100' in read
    assert '"is_end":true' in tagged
    assert (pointer, ready) == ('{"pointer":1}', '{"state":"up"}')


def test_the_settings_of_the_document_are_valid(tmp_path: Path) -> None:
    """G10: the example of grants and keys is read as it stands."""
    (tmp_path / "app.toml").write_text(block("toml"))
    settings = HeadraceSettings.load([tmp_path / "app.toml"], environ={}).gateway
    grants = GrantBook(settings.grants, has_authentication=settings.has_authentication)
    assert grants.caller("orders-service").may("append", "topic", "orders-eu")
    assert grants.caller("ann", ["support"]).may("read", "tag", "vip")
    assert not grants.anonymous().grants
