"""Settings with all their secrets, in a file that only its owner reads."""

from __future__ import annotations

import json
from pathlib import Path

from tests.secured.servers import Secured


def settings_file(secured: Secured, folder: Path, *, pipeline: dict[str, object], spark: dict[str, str]) -> Path:
    """Write them as docs/cluster.md says."""
    file = folder / "headrace.toml"
    file.touch(mode=0o600)
    file.write_text(_toml(secured, pipeline, spark))
    return file


def _toml(secured: Secured, pipeline: dict[str, object], spark: dict[str, str]) -> str:
    tables = {
        "log": {"address": secured.log},
        "log.kafka.client": secured.kafka_client(),
        "store": {"address": secured.store()},
        "store.cassandra": secured.cassandra_login(),
        "pipeline": pipeline,
        "pipeline.spark": spark,
    }
    lines = []
    for name, table in tables.items():
        lines += [f"[{name}]", *(f"{json.dumps(key)} = {json.dumps(value)}" for key, value in table.items())]
    return "\n".join(lines)
