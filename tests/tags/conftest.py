"""Which of the simulations `make test` runs: on servers one seed of each, as they take half a minute there."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the other seeds to `make test-full`."""
    if config.getoption("--full"):
        return
    left_out = [item for item in items if _is_left_out(item)]
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=left_out)


def _is_left_out(item: pytest.Item) -> bool:
    call = getattr(item, "callspec", None)
    seed = call.params.get("seed") if call is not None else None
    return item.path.name == "test_servers.py" and "tags" in item.path.parts and seed is not None and seed > 1
