"""Line charts made of characters, for terminals."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from headrace.errors import MissingExtra

__all__ = ["line_chart"]

_MOST_WIDE = 100
_HEIGHT = 14
# Lines differ by their characters, because a terminal's colours are not known. One alone gets the finest.
_MARKERS = ("•", "×", "o", "+")
_TICKS = 5
_DAY_S = 86_400
_SECONDS_UP_TO_S = 600


def line_chart(
    lines: Mapping[str, Sequence[tuple[float, float]]],
    *,
    title: str = "",
    x_label: str = "",
    is_time: bool = False,
    width: int | None = None,
) -> str:
    """Return a chart of points by line, as text of several rows; at most four lines. Raises MissingExtra.

    With `is_time`, x are seconds since 1970, and the axis shows times in UTC.
    """
    try:
        import plotext
    except ImportError as error:
        raise MissingExtra("plotext", "pipeline") from error
    figure = plotext.figure
    figure.clear()
    figure.plot_size(width or min(_MOST_WIDE, shutil.get_terminal_size().columns), _HEIGHT)
    for marker, (name, points) in zip(_MARKERS, lines.items(), strict=False):
        signal = figure.signal(
            [x for x, _ in points], [y for _, y in points], marker="braille" if len(lines) == 1 else marker
        )
        signal.lines()
        if len(lines) > 1:
            signal.label(name)
        figure.draw(signal)
    if is_time:
        figure.ruler("x").ticks(*_time_ticks([x for points in lines.values() for x, _ in points]))
    figure.title(title)
    figure.label(x_label, "x")
    return str(figure.build().string(colorless=True))


def _time_ticks(times_s: Sequence[float]) -> tuple[list[float], list[str]]:
    """Return the places and the texts of a time axis: dates, times of the day, or seconds, by what it covers."""
    first, last = min(times_s), max(times_s)
    places = [first + (last - first) * nth / (_TICKS - 1) for nth in range(_TICKS)]
    form = "%m-%d %H:%M"
    if last - first > _TICKS * _DAY_S:
        form = "%Y-%m-%d"
    elif last - first <= _SECONDS_UP_TO_S:
        form = "%H:%M:%S"
    return places, [datetime.fromtimestamp(place, UTC).strftime(form) for place in places]
