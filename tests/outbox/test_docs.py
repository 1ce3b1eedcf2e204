"""The how-to is run: its Python as it stands."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCUMENT = Path(__file__).parents[2] / "docs" / "outbox.md"
BLOCKS = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), flags=re.DOTALL)


@pytest.mark.parametrize("code", BLOCKS)
def test_the_python_of_the_how_to_runs(code: str, tmp_path: Path) -> None:
    """Each block is a program that ends well and prints something."""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout
