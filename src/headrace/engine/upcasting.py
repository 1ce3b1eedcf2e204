"""Old events as an engine's present code understands them.

An event's payload names its class, and, from the second on, its version. Versions are counted by the upcasters that are
declared for a class: one for version 1 means that the class is at version 2 now, and new events are written so. An
event of an older version goes through one upcaster after the other until it is of a present class.

    @bank.upcast("Deposited", version=1)
    def with_currency(data: dict[str, Any]) -> dict[str, Any]:
        return {**data, "currency": "EUR"}
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

import msgspec

from headrace.engine.typed_json import TypedJson
from headrace.errors import BadArgument, NotReadable, UpcastFailed
from headrace.runtime import error_text

__all__ = ["EventJson", "OldEvent", "Upcaster"]

Upcaster: TypeAlias = Callable[[Any], Any]

# An upcaster may return an old event under another name. So a circle of them is possible, and has to end.
_STEPS_AT_MOST = 100


class OldEvent(NamedTuple):
    """What an upcaster returns for an event of another name, or of a version that is not the next one."""

    name: str
    data: Any
    version: int = 1


class _Payload(msgspec.Struct, frozen=True, gc=False):
    """A payload whose fields are not decoded yet."""

    type: str
    data: msgspec.Raw
    version: int = 1


_decode_payloads = msgspec.json.Decoder(list[_Payload]).decode


class EventJson(TypedJson):
    """The classes of an engine's events by name, and what makes events of old versions into events of these classes."""

    def __init__(self, engine: str) -> None:
        super().__init__("event")
        self._engine = engine
        self._upcasters: dict[tuple[str, int], Upcaster] = {}

    def add_upcaster(self, name: str, version: int, upcaster: Upcaster) -> None:
        """Add the upcaster of one version of an event. Raises BadArgument if it has one already."""
        if type(version) is not int or version < 1:
            raise BadArgument("version", version, "the first version of an event is 1")
        if not isinstance(name, str) or not name:
            raise BadArgument("event", name, "name the class of the old event, as in 'Deposited'")
        if self._upcasters.setdefault((name, version), upcaster) is not upcaster:
            raise BadArgument("upcaster", name, f"version {version} of it has an upcaster already")

    def has_upcaster(self, name: object) -> bool:
        """Return True if old events of this name are upcast."""
        return any(of == name for of, _ in self._upcasters)

    def version_of(self, name: str) -> int:
        """Return the version in which events of this name are written now."""
        if not self._upcasters:
            return 1
        return 1 + max((version for of, version in self._upcasters if of == name), default=0)

    def payload(self, value: Any, *, is_sorted: bool = False) -> Mapping[str, Any]:  # noqa: ANN401
        """Return the event as its payload in a journal. Raises NotStorable."""
        payload, version = super().payload(value, is_sorted=is_sorted), self.version_of(type(value).__name__)
        return payload if version == 1 else {**payload, "version": version}

    def payload_json(self, value: Any) -> bytes:  # noqa: ANN401
        """Return the event's payload as JSON. Raises NotStorable."""
        version = self.version_of(type(value).__name__)
        data = super().payload_json(value)
        return data if version == 1 else data[:-1] + b',"version":%d}' % version

    def events_in(self, data: bytes, place: str) -> tuple[Any, ...]:
        """Return the events of a JSON list of payloads. Raises NotReadable, UpcastFailed."""
        try:
            payloads = _decode_payloads(data)
        except msgspec.DecodeError:
            payloads = []  # what follows says why
        if len(payloads) == 1 and payloads[0].type in self._decoders and not self._is_old(payloads[0]):
            return (self.decode(payloads[0].type, payloads[0].data),)
        if payloads and all(each.type in self._decoders and not self._is_old(each) for each in payloads):
            return tuple(self.decode(each.type, bytes(each.data)) for each in payloads)
        try:
            given = msgspec.json.decode(data)
        except msgspec.DecodeError as error:
            raise NotReadable("the events", repr(data[:40]), str(error)) from error
        return tuple(event for each in given for event in self.events_of(each, place))

    def of_payload(self, payload: Any) -> Any:  # noqa: ANN401
        """Return the one event of a payload. Raises NotReadable, UpcastFailed."""
        events = self.events_of(payload)
        if len(events) != 1:
            raise NotReadable("the event", repr(payload)[:60], f"an upcaster makes {len(events)} events of it")
        return events[0]

    def events_of(self, payload: Any, place: str = "an event") -> tuple[Any, ...]:  # noqa: ANN401
        """Return the events of a payload: mostly one, and what upcasters make of an old one.

        `place` says which event it is. Raises NotReadable, UpcastFailed.
        """
        return tuple(self._upcast(_old_event(payload), place, _STEPS_AT_MOST))

    def is_upcast(self, payload: Any) -> bool:  # noqa: ANN401
        """Return True if the payload is of an old version, which an upcaster changes."""
        try:
            old = _old_event(payload)
        except NotReadable:
            return False
        return (old.name, old.version) in self._upcasters

    def _is_old(self, payload: _Payload) -> bool:
        """Return True if a payload is not of the version in which its class is written now."""
        return (payload.type, payload.version) in self._upcasters or payload.version != self.version_of(payload.type)

    def _upcast(self, old: OldEvent, place: str, steps: int) -> Iterator[Any]:
        upcaster = self._upcasters.get((old.name, old.version))
        if upcaster is None:
            self._check_version(old, place)
            yield self._value(old.name, old.data)
            return
        if steps == 0:
            raise self._failed(old, place, f"it is not of a present class after {_STEPS_AT_MOST} upcasters")
        try:
            made = list(_several(upcaster(copy.deepcopy(old.data))))
        except Exception as error:  # the application's own
            raise self._failed(old, place, error_text(error)) from error
        for each in made:
            yield from self._next(old, each, place, steps - 1)

    def _next(self, old: OldEvent, made: Any, place: str, steps: int) -> Iterator[Any]:  # noqa: ANN401
        """Yield the events of what an upcaster returned: fields of the next version, an old event, or an event."""
        if isinstance(made, OldEvent):
            if not isinstance(made.name, str) or type(made.version) is not int:
                reason = f"it returns {made!r:.60}, whose name is to be a text and whose version a number"
                raise self._failed(old, place, reason)
            yield from self._upcast(made, place, steps)
        elif isinstance(made, Mapping):
            yield from self._upcast(OldEvent(old.name, made, old.version + 1), place, steps)
        elif type(made) in self.kinds([type(made).__name__]):
            yield made
        else:
            rule = (
                "it must return the fields of the next version, an OldEvent, an event of the engine, or a list of them"
            )
            raise self._failed(old, place, f"{rule}; this is of type {type(made).__name__}")

    def _check_version(self, old: OldEvent, place: str) -> None:
        """Refuse an event whose version is neither upcast nor the present one; most are of a newer program."""
        present = self.version_of(old.name)
        if old.version != present:
            raise self._failed(old, place, f"there is no upcaster for it, and the class is at version {present}")

    def _failed(self, old: OldEvent, place: str, reason: str) -> UpcastFailed:
        return UpcastFailed(self._engine, place, old.name, old.version, reason)


def _old_event(payload: Any) -> OldEvent:  # noqa: ANN401
    """Return what a payload says. Raises NotReadable."""
    if isinstance(payload, Mapping) and payload.keys() >= {"type", "data"}:
        name, version = payload["type"], payload.get("version", 1)
        if isinstance(name, str) and type(version) is int:
            return OldEvent(name, payload["data"], version)
    raise NotReadable("the event", repr(payload)[:60], 'it is not of the form {"type": …, "data": …}')


def _several(made: Any) -> Iterable[Any]:  # noqa: ANN401
    """Return what an upcaster made as a list; None is nothing, a NamedTuple is one thing."""
    if made is None:
        return []
    return made if isinstance(made, list | tuple) and not hasattr(made, "_fields") else [made]
