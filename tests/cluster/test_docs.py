"""The code in docs/nodes.md runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

DOCUMENT = Path(__file__).parents[2] / "docs" / "nodes.md"


def test_the_python_of_the_document_runs(tmp_path: Path) -> None:
    """The block is a program that ends well and prints what the page says."""
    (code,) = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert f"`{done.stdout.strip()}`" in DOCUMENT.read_text()
    assert not done.stderr
