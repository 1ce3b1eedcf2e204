"""The code in docs/state.md runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

DOCUMENT = Path(__file__).parents[2] / "docs" / "state.md"


def test_the_python_of_the_document_runs(tmp_path: Path) -> None:
    """S1: the program ends well and prints what it says."""
    (code,) = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "Account(owner='ann', balance=15)",
        "[('acc-1', Account(owner='ann', balance=15))]",
        "[(('acc-1', 1), 5)]",
    ]
