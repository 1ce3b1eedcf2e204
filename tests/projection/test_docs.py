"""The code in docs/projections.md runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCUMENT = Path(__file__).parents[2] / "docs" / "projections.md"
BLOCKS = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
PRINTED = ["[('acc-1', 150)]", "acc-1 {'refunded': 100}", "('payment', 'refund')", "dead-letter", ""]


@pytest.mark.parametrize(("code", "printed"), list(zip(BLOCKS, PRINTED, strict=True)))
def test_the_python_of_the_document_runs(code: str, printed: str, tmp_path: Path) -> None:
    """FN6: each block is a program that ends well and prints what the page says."""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == printed
    assert not done.stderr
