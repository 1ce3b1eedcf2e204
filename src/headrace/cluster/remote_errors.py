"""Errors between nodes: what a handler raised there is raised here, with its type, fields and `outcome_known`."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec

from headrace import errors
from headrace.errors import HeadraceError, OperationFailed, Refused, RefusedByPeer

__all__ = ["decode_error", "encode_error"]


class _Carried(msgspec.Struct, array_like=True):
    kind: str
    fields: dict[str, Any]
    message: str
    is_refused: bool
    outcome_known: bool


_decoder = msgspec.msgpack.Decoder(_Carried)


def encode_error(error: BaseException) -> bytes:
    """Return the bytes that carry the error. Of another package's errors the type's name and the message remain."""
    kind = type(error).__name__
    fields = _fields(error) if getattr(errors, kind, None) is type(error) else {}
    # An error that is not ours says nothing about what was done before it.
    outcome_known = bool(getattr(error, "outcome_known", isinstance(error, HeadraceError)))
    carried = _Carried(kind, fields, str(error), isinstance(error, Refused), outcome_known)
    return msgspec.msgpack.encode(carried, enc_hook=repr)


def decode_error(data: bytes, *, peer: str) -> HeadraceError:
    """Return the error as it was raised at the peer, or OperationFailed if its type is not known here."""
    try:
        carried = _decoder.decode(data)
    except msgspec.DecodeError as unread:
        return OperationFailed(f"a request to {peer}", f"its error can't be read: {unread}", outcome_known=False)
    kind = getattr(errors, carried.kind, None)
    if isinstance(kind, type) and issubclass(kind, HeadraceError) and _has_fields(kind, carried.fields):
        error = kind.__new__(kind)
        error.__dict__.update({name: _as_raised(value) for name, value in carried.fields.items()})
        return error
    reason = f"{carried.kind}: {carried.message}" if carried.message else carried.kind
    if carried.is_refused:
        return RefusedByPeer(peer, reason)
    return OperationFailed(f"a request to {peer}", reason, outcome_known=carried.outcome_known)


def _fields(error: Any) -> dict[str, Any]:  # noqa: ANN401 - mypy takes no exception for a dataclass
    if not dataclasses.is_dataclass(error):
        return {}
    return {field.name: getattr(error, field.name) for field in dataclasses.fields(error)}


def _has_fields(kind: Any, fields: dict[str, Any]) -> bool:  # noqa: ANN401 - as above
    """Return True if the type has these fields here, too; a node of another version may have others."""
    return dataclasses.is_dataclass(kind) and {each.name for each in dataclasses.fields(kind)} == fields.keys()


def _as_raised(value: Any) -> Any:  # noqa: ANN401
    """Return lists as the tuples that they were."""
    return tuple(map(_as_raised, value)) if isinstance(value, list) else value
