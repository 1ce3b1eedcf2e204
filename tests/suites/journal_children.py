"""What child processes of the journal's tests run."""

from __future__ import annotations

import asyncio
from pathlib import Path

import headrace
from headrace.model import Event

__all__ = ["append_with_attempt"]


def append_with_attempt(address: str, topic: str, id_: str, kept_in: str) -> None:
    """Prepare an append, keep the attempt in a file, and append event 2."""

    async def run() -> None:
        async with headrace.connect(address) as hr:
            journal = hr.journal(topic)
            attempt = await journal.prepare(id_)
            await asyncio.to_thread(Path(kept_in).write_text, attempt)
            await journal.append(id_, [Event(2, "once")], expected=1, attempt=attempt)

    asyncio.run(run())
