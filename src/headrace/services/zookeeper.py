"""Apache ZooKeeper, one server or an ensemble."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path

from headrace.services.fetch import fetch
from headrace.services.java import find_java, private_tmp
from headrace.services.packages import Cache, locked
from headrace.services.ports import Command, NodePlan, ServiceLayout
from headrace.services.probes import zookeeper_says
from headrace.services.watcher import Watcher

__all__ = ["ZooKeeper"]

JVM = ("-Xms64m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-XX:-UsePerfData")


class ZooKeeper:
    """Servers with a tick of half a second, so that sessions of a second or more can be asked for."""

    name = "zookeeper"
    roles: Sequence[str] = ("client", "peers", "election")
    most_nodes = 7
    timeout_s = 60.0
    is_seeded = False
    stop_signal = signal.SIGTERM
    grace_s = 5.0

    def install(self, cache: Cache, watcher: Watcher) -> Sequence[Path]:
        """Fetch the jars."""
        find_java()
        return fetch(self.name, locked(self.name), cache=cache, watcher=watcher)

    def host(self, number: int) -> str:
        """All servers share the address and differ in their ports."""
        return "127.0.0.1"

    def prepare(self, node: NodePlan, layout: ServiceLayout, files: Sequence[Path]) -> None:
        """Write zoo.cfg and the server's number."""
        settings = zoo_cfg(node, layout)
        (node.folder / "zoo.cfg").write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        (node.data / "myid").write_text(f"{node.number}\n")

    def command(self, node: NodePlan, layout: ServiceLayout, files: Sequence[Path]) -> Command:
        """Run QuorumPeerMain."""
        java = [str(find_java()), *JVM, private_tmp(node.folder), "-Dorg.slf4j.simpleLogger.showDateTime=true"]
        java += ["-cp", ":".join(map(str, files))]
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        return Command([*java, main, str(node.folder / "zoo.cfg")])

    def is_ready(self, node: NodePlan, layout: ServiceLayout) -> bool:
        """Ask for its mode: it is ready when it is standalone, leader or follower."""
        return "Mode: " in zookeeper_says((node.host, node.ports["client"]), "srvr")

    def url(self, node: NodePlan) -> str:
        """Return the URL that Headrace's settings use."""
        return f"zookeeper://{node.at('client')}"


def zoo_cfg(node: NodePlan, layout: ServiceLayout) -> dict[str, str]:
    """Return the server's configuration; the caller's properties win."""
    peers = {f"server.{one.number}": f"{one.host}:{one.ports['peers']}:{one.ports['election']}" for one in layout.nodes}
    return {
        "tickTime": "500",
        "initLimit": "40",
        "syncLimit": "20",
        "dataDir": str(node.data),
        "clientPortAddress": node.host,
        "clientPort": str(node.ports["client"]),
        "admin.enableServer": "false",
        "4lw.commands.whitelist": "srvr,ruok,mntr",
        "maxClientCnxns": "0",
        **(peers if len(layout.nodes) > 1 else {}),
        **layout.properties,
    }
