"""What a projection's log says: one line when something begins to fail, one when it works again."""

from __future__ import annotations

import time

from headrace.errors import HandlerFailed
from headrace.observe import Health, get_logger
from headrace.projection.metrics import FAILURES
from headrace.projection.recovery import reason_of
from headrace.tags import TaggedEvent, TagOffset

__all__ = ["Situation"]

_logger = get_logger(__name__)

_QUIET_S = 60.0


class Situation:
    """Whether a projection's worker gets on, and at what it fails. Changes are logged; all failures are counted."""

    def __init__(self, projection: str, health: Health) -> None:
        self.projection = projection
        self.health = health
        self.error: str | None = None
        self._kind: tuple[str, str] | None = None
        self._place: TagOffset | None = None
        self._overtaken_s: float | None = None

    def event_fails(self, event: TaggedEvent, error: BaseException, *, attempts: int, next_step: str) -> None:
        """Count a failure at an event; log it if it is a new one."""
        FAILURES.labels(self.projection).inc()
        offset = str(event.tag_offset)
        if self._is_new((type(error).__name__, offset), error, event.tag_offset):
            _logger.error(
                "a projection's handler failed",
                projection=self.projection,
                tag=event.tag,
                topic=event.topic,
                id=event.id,
                seq_nr=event.seq_nr,
                offset=offset,
                attempts=attempts,
                next_step=next_step,
                exc_info=error,
            )

    def run_fails(self, error: BaseException) -> None:
        """Count a failure of something else than the handler, such as the database; log it if it is a new one."""
        if isinstance(error, HandlerFailed):  # counted and logged when it happened
            self.health.down(str(error))
            return
        FAILURES.labels(self.projection).inc()
        if self._is_new((type(error).__name__, ""), error, None):
            _logger.error("a projection stopped and is tried again", projection=self.projection, exc_info=error)

    def set_aside(self, event: TaggedEvent, error: BaseException, *, attempts: int, outcome: str) -> None:
        """Log an event that is given up; each is lost to the handler, so each is named."""
        _logger.warning(
            "a projection gave up an event",
            projection=self.projection,
            tag=event.tag,
            topic=event.topic,
            id=event.id,
            seq_nr=event.seq_nr,
            offset=str(event.tag_offset),
            attempts=attempts,
            outcome=outcome,
            error=reason_of(error),
        )

    def overtaken(self) -> None:
        """Note that another worker or a command moved the slots; rivals that never stop are not worth a line each."""
        now_s = time.monotonic()
        if self._overtaken_s is None or now_s - self._overtaken_s >= _QUIET_S:
            _logger.info("a projection's slots were moved; loading them again", projection=self.projection)
            self._overtaken_s = now_s

    def gets_on(self, to: TagOffset) -> None:
        """Note that the projection has come up to an offset; if that is past what failed, say that it works again."""
        if self._kind is None or (self._place is not None and to < self._place):
            return
        _logger.info("a projection works again", projection=self.projection, offset=str(to))
        self._kind = self._place = self.error = None
        self.health.up()

    def _is_new(self, kind: tuple[str, str], error: BaseException, place: TagOffset | None) -> bool:
        is_new = kind != self._kind
        self._kind, self._place, self.error = kind, place, reason_of(error)
        self.health.down(self.error)
        return is_new
