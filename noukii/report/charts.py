"""Line charts as inline SVG. Pure functions; colours and fonts come from the page's style sheet."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from noukii.report.readable import number

MAX_POINTS = 1000
"""Of one drawn line; more cannot be seen and make the page heavy."""

Point = tuple[float, float]


@dataclass(frozen=True)
class Series:
    """One line: its name, its CSS class, its points (x rising). NaN or infinite y leaves a gap."""

    name: str
    style: str
    points: Sequence[Point]


def line_chart(
    series: Sequence[Series],
    *,
    title: str,
    x_label: str,
    y_label: str,
    width: int = 720,
    height: int = 280,
    from_zero: bool = True,
) -> Markup:
    """Return an `<svg>` of `width` × `height` user units with axes, grid, labels and the lines.

    The y axis starts at 0 unless a value is negative, or, without `from_zero`, near the lowest. An empty
    string is returned if there is not one finite point.
    """
    drawn = [
        (line, downsample(line.points, min(MAX_POINTS, width)))
        for line in series
        if any(math.isfinite(y) for _, y in line.points)
    ]
    finite = [(x, y) for _, points in drawn for x, y in points if math.isfinite(y)]
    if not finite:
        return Markup("")
    x_low, x_high = min(x for x, _ in finite), max(x for x, _ in finite)
    x_ticks = ticks(x_low, x_high, max(2, width // 110), whole=True) if x_low < x_high else [x_low]
    lowest = min(y for _, y in finite)
    y_ticks = ticks(min(0.0, lowest) if from_zero else lowest, max(y for _, y in finite), 5)
    if x_low == x_high:
        x_low, x_high = x_low - 0.5, x_high + 0.5
    y_low, y_high = y_ticks[0], y_ticks[-1]
    labels = [number(tick) for tick in y_ticks]
    left = 18 + 7 * max(map(len, labels))
    right, top, bottom = width - 14, 30, height - 46

    def place(x: float, y: float) -> Point:
        return (
            left + (x - x_low) / (x_high - x_low) * (right - left),
            bottom - (y - y_low) / (y_high - y_low) * (bottom - top),
        )

    parts = [
        Markup('<svg class="chart" viewBox="0 0 {} {}" role="img" aria-label="{}">').format(
            width, height, title
        )
    ]
    for tick, label in zip(y_ticks, labels, strict=True):
        y = place(x_low, tick)[1]
        parts.append(_line("grid", left, y, right, y))
        parts.append(_text(left - 8, y + 4, "end", label))
    for tick in x_ticks:
        if x_low <= tick <= x_high:
            x = place(tick, y_low)[0]
            parts.append(_line("tick", x, bottom, x, bottom + 5))
            parts.append(_text(x, bottom + 20, "middle", number(int(tick))))
    parts.append(_text(0, 14, "start", y_label, "label"))
    parts.append(_text((left + right) / 2, height - 6, "middle", x_label, "label"))
    for line, points in drawn:
        path = path_data([place(x, y) if math.isfinite(y) else (x, math.nan) for x, y in points])
        parts.append(
            Markup('<path class="line {}" d="{}"><title>{}</title></path>').format(
                line.style, path, line.name
            )
        )
    parts.append(Markup("</svg>"))
    return Markup("").join(parts)


def ticks(low: float, high: float, count: int, whole: bool = False) -> list[float]:
    """Return about `count` round values from at or below `low` to at or above `high`.

    Steps are 1, 2, 2.5 or 5 times a power of ten; with `whole`, none is smaller than 1.
    """
    if not high > low:
        high = low + (abs(low) or 1.0)
    rough = (high - low) / max(count, 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * 0.999)
    if whole:
        step = max(1.0, float(math.ceil(step)))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(place * step, 12 - math.floor(math.log10(step))) for place in range(first, last + 1)]


def downsample(points: Sequence[Point], most: int = MAX_POINTS) -> list[Point]:
    """Return at most `most` points: of each stretch of x its lowest and its highest, in order.

    Peaks survive, as they would not in a mean; first and last point stay. A gap (y not finite)
    survives only where a whole stretch is one.
    """
    if len(points) <= most:
        return list(points)
    first, last, inner = points[0], points[-1], points[1:-1]
    stretches = max(1, (most - 2) // 2)
    kept = [first]
    for place in range(stretches):
        stretch = inner[len(inner) * place // stretches : len(inner) * (place + 1) // stretches]
        finite = [point for point in stretch if math.isfinite(point[1])]
        if finite:
            extremes = (min(finite, key=lambda point: point[1]), max(finite, key=lambda point: point[1]))
            kept.extend(sorted(set(extremes)))
        elif stretch:
            kept.append(stretch[0])
    return [*kept, last]


def path_data(points: Sequence[Point]) -> str:
    """Return the `d` of an SVG path through `points`, interrupted where one is not finite."""
    commands: list[str] = []
    stretch: list[str] = []
    for x, y in [*points, (math.nan, math.nan)]:
        if math.isfinite(y):
            stretch.append(f"{x:.1f} {y:.1f}")
        elif stretch:
            # A point alone has no length: a round cap on a stroke of nothing makes it a dot.
            commands.append("M" + "L".join(stretch) + ("h0" if len(stretch) == 1 else ""))
            stretch = []
    return "".join(commands)


def _line(style: str, x1: float, y1: float, x2: float, y2: float) -> Markup:
    return Markup('<path class="{}" d="M{:.1f} {:.1f}L{:.1f} {:.1f}"/>').format(style, x1, y1, x2, y2)


def _text(x: float, y: float, anchor: str, text: str, style: str = "") -> Markup:
    return Markup('<text x="{:.1f}" y="{:.1f}" text-anchor="{}" class="{}">{}</text>').format(
        x, y, anchor, style, text
    )
