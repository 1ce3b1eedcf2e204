"""The pytest plugin in a project of somebody else's."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

CONFTEST = """
    import pytest

    def pytest_addoption(parser):
        parser.addoption("--full", action="store_true")

    @pytest.fixture
    def size():
        return "mine"

    @pytest.fixture
    def kafka():
        return "mine, too"
"""

TESTS = """
    from headrace import Event

    def test_own_names(size, kafka, pytestconfig):
        assert (size, kafka, pytestconfig.getoption("--full")) == ("mine", "mine, too", True)

    async def test_of_an_application(headrace_embedded):
        accounts = headrace_embedded.journal("accounts")
        await accounts.append("a", [Event(1, {"opened": 5})])
        assert [event.payload async for event in accounts.read("a")] == [{"opened": 5}]

    def test_of_a_blocking_one(headrace_address):
        assert headrace_address.startswith("embedded:")
"""


def test_a_projects_own_names_stay_its_own(tmp_path: Path) -> None:
    """FN7: a project with its own `--full`, `size` and `kafka` is not disturbed, and gets Headrace in a folder."""
    (tmp_path / "conftest.py").write_text(textwrap.dedent(CONFTEST))
    (tmp_path / "test_mine.py").write_text(textwrap.dedent(TESTS))
    command = [sys.executable, "-m", "pytest", "-q", "--full", "-o", "asyncio_mode=auto", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout
