"""The bench of Avro runs through, at a tiny size."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_avro_bench_runs_through(tmp_path: Path) -> None:
    """Each figure it promises comes out, above nothing."""
    command = [
        sys.executable,
        "-m",
        "benchmarks",
        "avro",
        "--scale",
        "0.002",
        "--rounds",
        "1",
        "--scratch",
        str(tmp_path),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    figures = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert done.returncode == 0, done.stderr
    kinds, parts = ("dataclass", "struct", "model"), ("", "encode_", "decode_")
    assert [figure["metric"] for figure in figures] == [f"{kind}_{part}per_s" for kind in kinds for part in parts]
    assert all(figure["value"] > 0 and figure["bound"] > 0 for figure in figures)
