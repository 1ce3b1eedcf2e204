"""The page about journals is run: its Python as it stands, one block after another in one folder."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from headrace.protocol.limits import MAX_ID_BYTES, MAX_TAG_BYTES

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "journals.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)


def test_the_python_of_the_page_runs(tmp_path: Path) -> None:
    """FN6: each block is a program that ends well and prints what its comments say, also after those before it."""
    printed = []
    for code in BLOCKS:
        done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        assert not done.stderr
        printed.append(done.stdout.splitlines())
    accounts, orders, parcels, carts = printed
    assert "expected seq_nr 2, journal is at 3" in accounts[-1]
    assert [line.split()[0] for line in orders[-2:]] == ["2", "3"]
    assert [line.split()[0] for line in parcels] == ["1", "2", "3"]
    assert carts[-2:] == ["[6]", "None None"]


def test_the_limits_that_the_pages_name_are_those_of_the_code() -> None:
    """FT2: the numbers of bytes in journals.md and formats.md."""
    for page in (PAGE, (DOCS / "formats.md").read_text()):
        for limit in (MAX_ID_BYTES, MAX_TAG_BYTES):
            assert f"{limit:,}".replace(",", " ") in page
