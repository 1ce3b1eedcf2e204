"""Commands that serve the console, as processes: a node with its gateway, and the demo."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import cast

import httpx

from headrace.app import RunningNode
from headrace.cli.demo.console_part import is_online
from headrace.testing.processes import running


def test_a_node_serves_the_gateway_on_its_own_connection(tmp_path: Path) -> None:
    """One process is node and gateway: it says where, shows itself as the owner, and ends in order at a signal."""
    options = ("--node-id", "n1", "--log", f"embedded:{tmp_path}", "--http", "127.0.0.1:0", "--json")
    environ = {"HEADRACE__REGISTRY__ADDRESS": "memory:"}
    with running("-m", "headrace", "node", "run", "tests.gateway.market:Accounts", *options, environ=environ) as node:
        found = json.loads(node.wait_for_line(r"^(\{.*\})$", 60)[1])
        with httpx.Client(base_url=found["url"], timeout=30) as client:
            assert 'src="/console/assets/main.js"' in client.get("/console").text
            (member,) = client.get("/console/api/cluster").json()["nodes"]
            assert (member["id"], member["is_here"], member["owns"]) == ("n1", True, 2)
            value = {"owner": "ann", "balance": 7}
            where = "/keyspaces/accounts/states/balances/ann"
            assert client.put(where, json=value).status_code == 204
            assert client.get(where).json()["data"] == value
        node.terminate()
        assert node.wait(30) == 0, node.stderr


def test_the_demo_goes_on_behind_the_console_until_it_is_interrupted() -> None:
    """It says where the console is, all parts are in use there, and Ctrl-C ends it and its nodes in order."""
    with running("-m", "headrace", "demo", "--serve", "--listen", "127.0.0.1:0") as demo:
        url = demo.wait_for_line(r"the console is at (\S+)/console", 90)[1]
        with httpx.Client(base_url=f"{url}/console/api", timeout=30) as client:
            nodes = {each["id"] for each in client.get("cluster").json()["nodes"]}
            assert {"demo-a", "demo-b"} <= nodes
            assert {each["name"] for each in client.get("engines").json()["engines"]} == {"demo-tills"}
            assert client.get("outbox").json()["is_available"]
        os.killpg(demo.pid, signal.SIGINT)  # as a terminal does: all of its processes get it
        assert demo.wait(60) == 0, demo.stderr
        assert "Traceback" not in demo.stderr


def test_a_node_of_the_demo_ends_when_the_demo_is_killed(tmp_path: Path) -> None:
    """Its input is the demo's other end: when that is gone, whatever ended the demo, the node stops in order."""
    options = ("--node-id", "n1", "--log", f"embedded:{tmp_path}", "--json")
    tied = ("-m", "headrace.cli.demo.node_processes", "node", "run", "headrace.cli.demo.keyspace_part:app")
    with running(*tied, *options) as node:
        node.wait_for_line(r"^(\{.*\})$", 60)
        node.close_input()
        assert node.wait(30) == 0, node.stderr


async def test_an_interrupt_while_the_nodes_start_ends_the_wait_for_them() -> None:
    """Ctrl-C ends the nodes of the demo, too: it waited a minute for their partitions, and failed."""

    class StartingNode:
        async def online(self, group: str, *, timeout_s: float) -> None:
            await asyncio.Event().wait()

    stopping = asyncio.Event()
    asyncio.get_running_loop().call_soon(stopping.set)
    assert not await is_online(cast("RunningNode", StartingNode()), stopping)
