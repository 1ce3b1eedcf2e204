"""The dashboard for Grafana: it asks Prometheus for what the job serves."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from prometheus_client import REGISTRY

from headrace.pipeline import Replication

FILE = Path(__file__).parent.parent.parent / "docs" / "grafana" / "replication.json"
# Values of a metric that Prometheus gives names of their own.
OF_A_HISTOGRAM = ("_bucket", "_count", "_sum")


def served() -> dict[str, tuple[str, ...]]:
    """Return the metrics of the pipeline by the name that Prometheus has for them, with their labels."""
    assert Replication is not None  # its modules are imported, and their metrics made
    found: dict[str, tuple[str, ...]] = {}
    for collector in REGISTRY._collector_to_names:
        labels = getattr(collector, "_labelnames", ())
        names = REGISTRY._collector_to_names[collector]
        found |= dict.fromkeys((name for name in names if name.startswith("headrace_pipeline_")), labels)
    return found


def queries() -> list[tuple[str, str, str]]:
    """Return title, expression and legend of each line of each panel."""
    board: dict[str, Any] = json.loads(FILE.read_text())
    lines = [(panel, target) for panel in board["panels"] for target in panel["targets"]]
    return [(panel["title"], target["expr"], target["legendFormat"]) for panel, target in lines]


def test_each_panel_asks_for_metrics_that_are_served() -> None:
    """K10: the metrics of every panel exist, with the labels that its query and its legend name."""
    known = served()
    for title, expression, legend in queries():
        names = re.findall(r"headrace_\w+", expression)
        assert names, title
        for name in names:
            assert name in known, (title, name)
            wanted = {*re.findall(r"by \((\w+)\)", expression), *re.findall(r"{{(\w+)}}", legend)} - {"le"}
            assert wanted <= set(known[name]), (title, wanted)


def test_what_an_operator_must_know_is_on_the_dashboard() -> None:
    """K10: every metric of the pipeline but the raw parts of a histogram is in a panel."""
    shown = {name for _, expression, _ in queries() for name in re.findall(r"headrace_\w+", expression)}
    whole = {name.removesuffix("_bucket") for name in shown}
    names = {name for name in served() if not name.endswith((*OF_A_HISTOGRAM, "_created"))}
    assert {name for name in names if name not in whole and f"{name}_total" not in whole} == set()
