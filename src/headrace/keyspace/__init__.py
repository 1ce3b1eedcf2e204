"""State by key with the code that changes it: keyspaces, their handlers, and the clients that reach them.

Promises: a message is handled by the owner of its key, one at a time for a key; what a handler writes, in all states of
its partition and to other topics, is committed together before anyone can see it; a node that dies costs its callers
a moment and no error; a read shows every write that was acknowledged before it, unless it allows staleness.
Does not promise: that a handler runs once. It may be run again from its start; asks carry ids, tells wait for the
commit.
"""

from headrace.keyspace.apps import App
from headrace.keyspace.calls import REPLIES
from headrace.keyspace.client import KeyspaceClient
from headrace.keyspace.collections import CollectionEvent
from headrace.keyspace.context import Context
from headrace.keyspace.declaration import (
    EVERY_NODE,
    Keyspace,
    KeyspaceSpec,
    StateDeclaration,
    consumes,
    handles,
    state,
)
from headrace.keyspace.hosting import KeyspaceHosting, StateFolder
from headrace.keyspace.layouts import KeyspaceLayout, KeyspaceLayouts, change_phase
from headrace.keyspace.pushing import PushedChange, PushHook, PushLetter, PushRunner
from headrace.keyspace.resizing import ResizeReport, resize_keyspace, specs_of
from headrace.keyspace.results import NO_VALUE, KeyRead, KeyWritten, Scattered, TokenReply
from headrace.keyspace.streams import InputStream, StreamContext
from headrace.state import State

__all__ = [
    "EVERY_NODE",
    "NO_VALUE",
    "REPLIES",
    "App",
    "CollectionEvent",
    "Context",
    "InputStream",
    "KeyRead",
    "KeyWritten",
    "Keyspace",
    "KeyspaceClient",
    "KeyspaceHosting",
    "KeyspaceLayout",
    "KeyspaceLayouts",
    "KeyspaceSpec",
    "PushHook",
    "PushLetter",
    "PushRunner",
    "PushedChange",
    "ResizeReport",
    "Scattered",
    "State",
    "StateDeclaration",
    "StateFolder",
    "StreamContext",
    "TokenReply",
    "change_phase",
    "consumes",
    "handles",
    "resize_keyspace",
    "specs_of",
    "state",
]
