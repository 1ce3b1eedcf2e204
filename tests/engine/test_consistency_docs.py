"""The program in docs/consistency.md runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "consistency.md"


def test_the_program_about_tokens_runs(tmp_path: Path) -> None:
    """Every read shows what was written, and a token that was cut is refused in plain words."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    *lines, refusal = done.stdout.splitlines()
    assert lines == ["40", "Ann", "['hello']", "['savings', 'notes']", "['acc-1', 'acc-1']"]
    assert refusal.startswith("the consistency token can't be used: ")
