"""Keys and payloads of messages as the console shows them: readable where they are text, JSON or framed Avro."""

from __future__ import annotations

import base64
import codecs
from typing import TYPE_CHECKING, Any

from headrace.serde import JsonRenderer, Registry, is_framed

if TYPE_CHECKING:  # it needs the extra `outbox`
    from headrace.outbox import DeadMessage

__all__ = ["BytesRenderer"]

_BYTES_SHOWN = 4096


class BytesRenderer:
    """Turns bytes into what JSON can carry, cut to a length that a page can show."""

    def __init__(self, registry: Registry) -> None:
        self._renderer = JsonRenderer(registry)

    async def message(self, message: DeadMessage) -> dict[str, Any]:
        """Return a dead message with a readable key and payload."""
        return {**message._asdict(), "key": await self.shown(message.key), "message": await self.shown(message.message)}

    async def shown(self, content: bytes | None) -> dict[str, Any] | None:
        """Return the form of some bytes (avro, text or binary), their value, and their size; None for none."""
        if content is None:
            return None
        size = {"size_bytes": len(content), "is_cut": len(content) > _BYTES_SHOWN}
        if is_framed(content) and not size["is_cut"]:
            value = await self._renderer.render(content)
            if not (isinstance(value, dict) and "error" in value):
                return {"form": "avro", "value": value, **size}
        cut = content[:_BYTES_SHOWN]
        try:
            # A character that the cut went through is left out, and is no reason to take text for something else.
            text = codecs.getincrementaldecoder("utf-8")().decode(cut, final=not size["is_cut"])
            return {"form": "text", "value": text, **size}
        except UnicodeDecodeError:
            return {"form": "binary", "value": base64.b64encode(cut).decode(), **size}
