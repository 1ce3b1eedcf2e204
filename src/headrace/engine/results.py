"""What a command leads to: a success, a rejection by the application, or a failure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Generic, TypeAlias, TypeVar

import msgspec

from headrace.errors import HeadraceError

__all__ = ["CommandResult", "Failed", "Reject", "Rejected", "Success"]

S = TypeVar("S")


class Reject(msgspec.Struct, frozen=True):
    """What a handler returns for a command that it does not accept; `code` is for programs, `message` for people."""

    code: str
    message: str = ""
    details: Mapping[str, Any] = {}


class Success(msgspec.Struct, Generic[S], frozen=True, kw_only=True):
    """The command was done, and is in the log.

    `state` and `version` are the aggregate's after this command, `events` are those that it led to, `value` is what the
    handler replied with. `since` names the newest committed batch, for later commands that may have to be repeated.
    A repeated command id gets the first attempt's result with `is_repeated`; if that reply was too large to be
    remembered, `is_kept` is False, and only the version is known. `token` is the consistency token: any read that is
    given it, of the state, the journal, a tag or a projection, shows this command.
    """

    state: S | None
    events: tuple[Any, ...] = ()
    version: int
    value: Any = None
    since: str = ""
    is_repeated: bool = False
    is_kept: bool = True
    token: str = ""


class Rejected(msgspec.Struct, frozen=True, kw_only=True):
    """The application does not accept the command. Nothing was done; with a command id, this answer is remembered.

    `token` is the consistency token of what the decision rests on.
    """

    code: str
    message: str = ""
    details: Mapping[str, Any] = {}
    version: int = 0
    since: str = ""
    is_repeated: bool = False
    token: str = ""


class Failed(msgspec.Struct, frozen=True):
    """The command could not be handled, or not be committed; `outcome_known` says whether it may have been done."""

    error: HeadraceError

    @property
    def outcome_known(self) -> bool:
        """True if the command was surely not done."""
        return bool(getattr(self.error, "outcome_known", True))


CommandResult: TypeAlias = Success[S] | Rejected | Failed
