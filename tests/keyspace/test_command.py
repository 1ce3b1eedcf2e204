"""`headrace node run`: a node as a process of its own."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headrace.cli.main import app
from headrace.cli.nodes import watch_health
from headrace.observe import Health, HealthState
from headrace.testing.conformance.log_setting import eventually

ROOT = Path(__file__).parents[2]


def test_a_node_serves_keyspaces_and_engines_until_it_is_stopped(tmp_path: Path) -> None:
    """C4: it says when every partition has an owner, and where it takes commands, and ends well on SIGTERM."""
    served = ["examples.market.keyspaces:app", "examples.bank.accounts:bank", "--grpc", "127.0.0.1:0"]
    command = [sys.executable, "-m", "headrace", "node", "run", *served, "--node-id", "n1", "--json"]
    node = subprocess.Popen(
        [*command, "--log", f"embedded:{tmp_path}"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert node.stdout is not None
        line = node.stdout.readline()
        assert line, node.communicate()[1]
        said = json.loads(line)
        assert (said["node"], said["ready"]) == ("n1", True)
        assert said["owned"] > 8
        assert said["health"]["name"] == "node n1"
        assert "background" in {each["name"] for each in said["health"]["children"]}
        assert said["grpc_address"].startswith("127.0.0.1:")
        node.send_signal(signal.SIGTERM)
        _, errors = node.communicate(timeout=30)
        assert node.returncode == 0, errors
    finally:
        node.kill()
        node.wait()


@pytest.mark.parametrize("where", ["examples.market.keyspaces", "json:loads", "no.such:thing"])
def test_what_no_node_can_serve_is_refused(where: str) -> None:
    """The message says how an application is named."""
    done = CliRunner().invoke(app, ["node", "run", where])
    assert done.exit_code != 0
    assert "name an App, a Keyspace or an Engine as module:name" in f"{done.output}{done.exception}"


async def test_what_is_wrong_with_a_node_is_logged_when_it_changes(caplog: pytest.LogCaptureFixture) -> None:
    """N26: one line when a part goes down, none while it stays so, one when everything works again."""
    tree, looks = Health("node n1"), 0
    part = tree.child("bank", state=HealthState.UP).child("0", state=HealthState.UP)

    def look() -> Health:
        nonlocal looks
        looks += 1
        if looks == 2:
            part.down("the disk is full")
        elif looks == 5:
            part.up()
        return tree

    async def has_looked() -> bool:
        return looks > 6

    caplog.set_level("INFO", logger="headrace.cli.nodes")
    watching = asyncio.create_task(watch_health(look, every_s=0.001))
    await eventually(has_looked, every_s=0.001, what="some looks")
    watching.cancel()
    lines = [each.getMessage() for each in caplog.records if each.name == "headrace.cli.nodes"]
    assert ["not everything works" in lines[0], "everything works again" in lines[-1], len(lines)] == [True, True, 2]
    assert "node n1/bank/0 is down: the disk is full" in lines[0]
