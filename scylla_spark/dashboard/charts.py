"""Small pictures made on the server: SVG text without scripts and styles, coloured by classes of the stylesheet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from markupsafe import Markup

WIDTH: Final = 160
HEIGHT: Final = 32
_GAP: Final = 2.0


def sparkline(values: Sequence[float | None], label: str, kind: str = "line") -> Markup:
    """A line of values over time, the newest at the right; where one is missing, the line is broken.

    Args:
        values: at equal distances.
        label: what it shows, for those who do not see it.
        kind: class that colours it.
    """
    top = max((value for value in values if value is not None), default=0) or 1
    step = WIDTH / max(len(values) - 1, 1)
    pieces, pen_is_down = [], False
    for number, value in enumerate(values):
        if value is not None:
            height = HEIGHT - _GAP - (HEIGHT - 2 * _GAP) * value / top
            pieces.append(f"{'L' if pen_is_down else 'M'}{number * step:.1f} {height:.1f}")
        pen_is_down = value is not None
    return Markup(
        '<svg class="spark {}" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" aria-label="{}"><path d="{}"/></svg>'
    ).format(kind, WIDTH, HEIGHT, label, " ".join(pieces))
