"""The code in docs/avro.md runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCUMENT = Path(__file__).parents[2] / "docs" / "avro.md"
BLOCKS = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)


@pytest.mark.parametrize("code", BLOCKS)
def test_the_python_of_the_document_runs(code: str, tmp_path: Path) -> None:
    """V2: each block is a program that ends well and prints something."""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "Order(id='o-1'" in done.stdout
