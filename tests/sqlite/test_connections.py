"""Files that several processes open and share."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from headrace.sqlite import connect

OPEN = """
import sys
from pathlib import Path
from headrace.sqlite import prepare_file
for line in sys.stdin:
    prepare_file(Path(line.strip()), "CREATE TABLE things (name)", file_format=1, fsync=False)
    print("opened", flush=True)
"""


def test_processes_that_open_a_new_file_at_once_all_can(tmp_path: Path) -> None:
    """Whoever comes while another one sets the new file up waits for it, and is not refused."""
    openers = [
        subprocess.Popen(
            [sys.executable, "-c", OPEN],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    try:
        for number in range(150):
            path = tmp_path / f"{number}.db"
            for opener in openers:
                assert opener.stdin is not None
                opener.stdin.write(f"{path}\n")
                opener.stdin.flush()
            for opener in openers:
                assert opener.stdout is not None
                assert opener.stdout.readline() == "opened\n", opener.communicate()[1]
    finally:
        for opener in openers:
            opener.kill()
            opener.communicate()
    db = connect(tmp_path / "0.db")
    assert db.execute("SELECT name FROM sqlite_master").fetchall() == [("things",)]
    db.close()
