"""Makes the example's entry point known, as `pip install -e .` would. An installed package needs no such file."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.fixture(scope="module", autouse=True)
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Write the metadata that an installation writes, and put it and the module where Python looks."""
    folder = tmp_path_factory.mktemp("site-packages")
    _install(folder)
    added = [str(folder), str(HERE)]
    sys.path[:0] = added
    yield
    for path in added:
        sys.path.remove(path)
    sys.modules.pop("sqlite_registry", None)


def _install(folder: Path) -> None:
    project = tomllib.loads((HERE / "pyproject.toml").read_text())["project"]
    metadata = folder / f"sqlite_registry-{project['version']}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 0.1.0\n")
    groups = project["entry-points"]
    lines = [f"[{group}]\n{name} = {target}\n" for group in groups for name, target in groups[group].items()]
    (metadata / "entry_points.txt").write_text("\n".join(lines))
