"""The coordinator in Apache ZooKeeper, through kazoo. Sessions are ZooKeeper's own: ephemeral nodes.

/headrace/<cluster>/members/<id>     ephemeral: the member's facts
/headrace/<cluster>/leader           ephemeral: the id of the member that proposes
/headrace/<cluster>/requests/<key>   what operators asked for; the '/' of a key is written as '|'
/headrace/<cluster>/plan             what the leader proposed last
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import BadVersionError, KazooException, NodeExistsError, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.retry import KazooRetry

from headrace.cluster.planning import Shared, decode_facts, has_died
from headrace.errors import DuplicateNode, HeadraceError, Unreachable

__all__ = ["ZooKeeperCoordinationStore"]

_CONNECT_S = 10.0
_ANY_VERSION = -1


class ZooKeeperCoordinationStore:
    """A `CoordinationStore` below one node of ZooKeeper."""

    def __init__(self, client: KazooClient, hosts: str, *, cluster: str, session_s: float) -> None:
        self.session_s = session_s
        self._client = client
        self._hosts = hosts
        self._root = f"/headrace/{cluster}"
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._watcher = self._watch  # one object: kazoo keeps each watcher of a path once
        self._session: tuple[str, str] | None = None

    @classmethod
    async def open(cls, hosts: str, *, cluster: str, session_s: float) -> ZooKeeperCoordinationStore:
        """Connect to `host:port[,host:port…][/path]`. Raises Unreachable."""
        # The client tries to connect again forever; what is asked meanwhile ends by our own time-outs.
        retry = KazooRetry(max_tries=-1, delay=0.05, max_delay=1.0)
        client = KazooClient(hosts, timeout=session_s, connection_retry=retry)
        store = cls(client, hosts, cluster=cluster, session_s=session_s)
        client.add_listener(store._watch)
        try:
            await asyncio.to_thread(client.start, _CONNECT_S)
            for path in ("members", "requests"):
                await store._ask("ensure_path", f"{store._root}/{path}")
        except KazooTimeoutError as error:
            await asyncio.to_thread(client.close)
            raise Unreachable(hosts, f"no answer within {_CONNECT_S:g} s") from error
        except HeadraceError:
            await store.close()
            raise
        return store

    async def enter(self, member: str, incarnation: str, facts: bytes) -> None:
        """Begin a session; that of a process that died is ended if it is known to have died, else waited for."""
        path = f"{self._root}/members/{member}"
        # Servers may have agreed on a longer session than was asked for, and look at sessions once in a tick.
        deadline = self._loop.time() + 2 * self.session_s + 1
        while True:
            try:
                await self._ask("create", path, facts, ephemeral=True, makepath=True)
                break
            except NodeExistsError:
                await self._wait_for_predecessor(path, member, incarnation, deadline)
        self._session = (member, incarnation)

    async def put_facts(self, facts: bytes) -> None:
        """Replace the facts of this session's member."""
        if self._session is not None:
            try:
                await self._ask("set", f"{self._root}/members/{self._session[0]}", facts)
            except NoNodeError:
                self._changed.set()  # the session has ended; the next read says so

    async def leave(self) -> None:
        """End the session."""
        session, self._session = self._session, None
        if session is not None:
            await self._remove_own("leader")
            await self._remove_own(f"members/{session[0]}")

    async def read(self) -> Shared:
        """Return what all nodes share, and watch all of it. Raises Unreachable, also while it is being removed."""
        try:
            return await self._read()
        except NoNodeError as error:
            reason = f"{self._root} is being removed, or the server has lost its data"
            raise Unreachable(self._hosts, reason, outcome_known=False) from error

    async def _read(self) -> Shared:
        self._changed.clear()
        members, requests = await asyncio.gather(self._children("members"), self._children("requests"))
        plan = await self._get("plan")
        is_member = self._session is not None and self._is_own(members.get(self._session[0]))
        return Shared(
            members={name: value for name, (value, _) in members.items()},
            requests={key.replace("|", "/"): value for key, (value, _) in requests.items()},
            plan=plan[0] if plan else None,
            version=plan[1].version + 1 if plan else 0,
            is_member=is_member,
            leads=is_member and await self._leads(),
        )

    async def refresh(self) -> None:
        """Let the server that this client is connected to catch up with the ensemble."""
        await self._ask("sync", self._root)

    async def put_plan(self, plan: bytes, *, expected: int) -> bool:
        """Replace the plan of version `expected`."""
        try:
            if expected:
                await self._ask("set", f"{self._root}/plan", plan, version=expected - 1)
            else:
                await self._ask("create", f"{self._root}/plan", plan, makepath=True)
        except (BadVersionError, NodeExistsError, NoNodeError):
            return False
        return True

    async def put_request(self, key: str, value: bytes | None) -> None:
        """Store a request, or remove it."""
        path = f"{self._root}/requests/{key.replace('/', '|')}"
        try:
            if value is None:
                await self._ask("delete", path)
                return
            await self._ask("create", path, value, makepath=True)
        except NodeExistsError:
            await self._ask("set", path, value)
        except NoNodeError:
            return

    async def changed(self) -> None:
        """Return when a watch fired, or the connection changed, since the last read."""
        await self._changed.wait()

    async def close(self) -> None:
        """Close the connection, and the session with it."""
        await asyncio.to_thread(self._client.stop)
        await asyncio.to_thread(self._client.close)

    async def _wait_for_predecessor(self, path: str, member: str, incarnation: str, deadline: float) -> None:
        """Return when the node in the way is gone. Raises DuplicateNode if it stays longer than any dead session."""
        found = await self._get(f"members/{member}")
        if found is None:
            return
        facts = decode_facts(found[0])
        if facts.incarnation == incarnation or has_died(found[0]):  # an earlier session of this process, or a dead one
            await self._remove(path, version=found[1].version)
            return
        if self._loop.time() > deadline:
            raise DuplicateNode(member, incarnation, f"{facts.address} ({facts.incarnation})")
        self._changed.clear()
        if await self._get(f"members/{member}") is not None:
            await asyncio.wait([wait := asyncio.ensure_future(self._changed.wait())], timeout=0.2)
            wait.cancel()

    async def _leads(self) -> bool:
        """Lead if nobody does; return True if this session does."""
        path = f"{self._root}/leader"
        stat = await self._ask("exists", path, watch=self._watcher)
        if stat is None and self._session is not None:
            try:
                await self._ask("create", path, self._session[0].encode(), ephemeral=True, makepath=True)
            except NodeExistsError:
                return False
            return True
        return stat is not None and stat.owner_session_id == self._session_id

    @property
    def _session_id(self) -> int | None:
        identity = self._client.client_id
        return None if identity is None else identity[0]

    def _is_own(self, found: tuple[bytes, Any] | None) -> bool:
        return found is not None and found[1].owner_session_id == self._session_id

    async def _remove_own(self, name: str) -> None:
        if self._is_own(await self._get(name)):
            await self._remove(f"{self._root}/{name}")

    async def _remove(self, path: str, *, version: int = _ANY_VERSION) -> None:
        """Remove a node, if it has this version; it may be that of another process by now."""
        try:
            await self._ask("delete", path, version)
        except (NoNodeError, BadVersionError):
            return

    async def _children(self, name: str) -> Mapping[str, tuple[bytes, Any]]:
        path = f"{self._root}/{name}"
        try:
            names: Sequence[str] = await self._ask("get_children", path, watch=self._watcher)
        except NoNodeError:  # the server has lost its data, or it was removed; the nodes bring all of it again
            await self._ask("ensure_path", path)
            names = await self._ask("get_children", path, watch=self._watcher)
        found = await asyncio.gather(*(self._get(f"{name}/{each}") for each in names))
        return {each: value for each, value in zip(names, found, strict=True) if value is not None}

    async def _get(self, name: str) -> tuple[bytes, Any] | None:
        try:
            value, stat = await self._ask("get", f"{self._root}/{name}", watch=self._watcher)
        except NoNodeError:
            return None
        return value, stat

    async def _ask(self, operation: str, *arguments: object, **options: object) -> Any:  # noqa: ANN401 - kazoo's
        """Call kazoo's asynchronous form; its threads hand the result to the loop. Raises Unreachable."""
        answered: asyncio.Future[Any] = self._loop.create_future()

        def hand_over(result: Any) -> None:  # noqa: ANN401 - kazoo's
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(_settle, answered, result)

        try:
            getattr(self._client, f"{operation}_async")(*arguments, **options).rawlink(hand_over)
            async with asyncio.timeout(self.session_s):
                return await answered
        except (BadVersionError, NodeExistsError, NoNodeError):
            raise
        except (KazooException, KazooTimeoutError, TimeoutError) as error:
            reason = f"{operation} failed: {type(error).__name__} {error}".rstrip()
            raise Unreachable(self._hosts, reason, outcome_known=False) from error

    def _watch(self, event: object) -> None:
        """Run in a thread of kazoo's when something that was read has changed."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._changed.set)


def _settle(answered: asyncio.Future[Any], result: Any) -> None:  # noqa: ANN401 - kazoo's
    if answered.done():
        return
    if result.exception is not None:
        answered.set_exception(result.exception)
    else:
        answered.set_result(result.value)
