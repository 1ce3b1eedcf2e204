"""The README is run: its Python as it stands, its commands on real servers."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

import pytest

README = Path(__file__).parent.parent / "README.md"
BIN = Path(sys.executable).parent


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README.read_text(), flags=re.DOTALL)


def test_the_python_of_the_readme_runs(tmp_path: Path) -> None:
    """FN2: the blocks are programs that end well and print something, one after the other in one folder, twice."""
    for code in [*blocks("python"), *reversed(blocks("python"))]:
        done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        assert done.stdout
        assert not done.stderr


@pytest.mark.servers
@pytest.mark.timeout(300)
def test_the_commands_of_the_readme_run() -> None:
    """The block about servers: up, status, down; nothing stays behind."""
    (commands,) = [block for block in blocks("sh") if "services up" in block]
    with tempfile.TemporaryDirectory(prefix="headrace-readme-") as folder:
        Path(folder).chmod(0o755)  # PostgreSQL, started by root, runs as another user
        for line in commands.replace(".venv/bin/", f"{BIN}/").splitlines():
            done = subprocess.run(line, shell=True, cwd=folder, capture_output=True, text=True, timeout=280)
            assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"


def test_the_links_of_the_readme_lead_somewhere() -> None:
    """Every relative link names a file of the project."""
    for target in re.findall(r"\]\((?!http)([^)#]+)", README.read_text()):
        assert (README.parent / target).exists(), target


def test_the_readme_names_every_extra() -> None:
    """Each extra of pyproject.toml stands in the table under "Installing the package"."""
    project = tomllib.loads((README.parent / "pyproject.toml").read_text())["project"]
    table = README.read_text().partition("## Installing the package")[2].partition("\n## ")[0]
    assert set(re.findall(r"`(\w+)`", table)) == set(project["optional-dependencies"])


def test_the_makefile_explains_every_target() -> None:
    """`make help` lists all targets that people call."""
    text = (README.parent / "Makefile").read_text()
    targets = set(re.findall(r"^\.PHONY: (\S+)$", text, flags=re.MULTILINE))
    assert targets == set(re.findall(r"^([a-z-]+):.*## ", text, flags=re.MULTILINE))
