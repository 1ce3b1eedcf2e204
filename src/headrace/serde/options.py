"""Options of schemas beyond type hints: `AvroField` for a field, `@avro` for a class."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, overload
from weakref import WeakKeyDictionary

from headrace.serde.shapes import NO_DEFAULT

__all__ = ["AvroField", "AvroOptions", "avro", "names_around", "options_of"]

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class AvroField:
    """Options of a field, in its hint: `Annotated[Decimal, AvroField(precision=12, scale=2, doc="in euro")]`.

    `aliases` are earlier names of the field. `default` is for readers of data that lacks the field, if the class has
    no default itself. `type` is an Avro type in place of the inferred one, such as `"int"` or `"timestamp-millis"`.
    """

    aliases: tuple[str, ...] = ()
    doc: str | None = None
    default: Any = NO_DEFAULT
    type: str | None = None
    precision: int = 38
    scale: int = 18


@dataclass(frozen=True, kw_only=True)
class AvroOptions:
    """The arguments of `@avro`, and the local names that were visible where the class was defined."""

    name: str | None = None
    namespace: str = ""
    aliases: tuple[str, ...] = ()
    doc: str | None = None
    default: str | None = None
    around: Mapping[str, Any] | None = None

    def aliases_in(self, namespace: str) -> tuple[str, ...]:
        """Return the aliases; those without a namespace are in the class's own."""
        return tuple(alias if "." in alias or not namespace else f"{namespace}.{alias}" for alias in self.aliases)


_NOTHING = AvroOptions()
_options: WeakKeyDictionary[type, AvroOptions] = WeakKeyDictionary()


@overload
def avro(cls: type[T], /) -> type[T]: ...
@overload
def avro(
    *,
    name: str | None = None,
    namespace: str = "",
    aliases: tuple[str, ...] = (),
    doc: str | None = None,
    default: str | None = None,
) -> Callable[[type[T]], type[T]]: ...
def avro(
    cls: type[T] | None = None,
    /,
    *,
    name: str | None = None,
    namespace: str = "",
    aliases: tuple[str, ...] = (),
    doc: str | None = None,
    default: str | None = None,
) -> Any:
    """Infer the class's schema where the class is defined, so that mistakes are found early. Raises NoSchemaFor.

    `aliases` are earlier names of the class. The `default` of an enum is the symbol that readers use for unknown
    symbols. A class without a namespace has that of the record around it. Put this decorator above the one that makes
    the class a dataclass.
    """
    around = names_around(2)
    options = AvroOptions(
        name=name, namespace=namespace, aliases=tuple(aliases), doc=doc, default=default, around=around
    )

    def declare(declared: type[T]) -> type[T]:
        from headrace.serde.hints import infer

        _options[declared] = options
        infer(declared)
        return declared

    return declare if cls is None else declare(cls)


def names_around(depth: int) -> Mapping[str, Any] | None:
    """Return the local names of the function `depth` calls up; None at the top of a module."""
    frame = sys._getframe(depth)  # noqa: SLF001 - as typing and pydantic do; there is no other way
    return None if frame.f_locals is frame.f_globals else dict(frame.f_locals)


def options_of(cls: type) -> AvroOptions:
    """Return the options that the class was declared with."""
    return _options.get(cls, _NOTHING)
