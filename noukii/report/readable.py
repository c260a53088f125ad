"""Numbers and times as people read them."""

from __future__ import annotations

import math
from datetime import datetime, timezone


def counted(count: int, one: str, many: str | None = None) -> str:
    """Return "1 image", "2 images", "1,200 images"."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def percent(share: float) -> str:
    """Return a share of 1 as a whole percentage; only all of it is called 100 %."""
    rounded = round(share * 100)
    if share < 1 and rounded == 100:
        rounded = 99
    if share > 0 and rounded == 0:
        rounded = 1
    return f"{rounded} %"


def number(value: float | int) -> str:
    """Return a number with at most five digits that count: 1200, 0.12346, 1e-4, 4.3e9."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}" if abs(value) >= 10_000 else str(value)
    if not math.isfinite(value):
        return "not a number" if math.isnan(value) else "infinite"
    if value == 0:
        return "0"
    if 1e-3 <= abs(value) < 1e6:
        return f"{value:.5g}" if abs(value) < 1e5 else f"{value:.0f}"
    mantissa, exponent = f"{value:.4e}".split("e")
    return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"


def rounded(value: float) -> str:
    """Return a measured number with three digits that count, in plain notation."""
    return f"{value:.3g}" if 0 < abs(value) < 1000 else f"{value:.0f}"


def duration(seconds: float) -> str:
    """Return "4.2 s", "48 s", "12 min 5 s", "3 h 7 min"."""
    if seconds < 10:
        return f"{max(seconds, 0):.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        minutes, rest = divmod(whole, 60)
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(round(whole / 60), 60)
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"


def file_size(count: int) -> str:
    """Return a number of bytes in the units that file managers and graphics cards use."""
    if count < 1000:
        return f"{count} bytes"
    value = float(count)
    for unit in ("kB", "MB", "GB", "TB"):
        value /= 1000
        if value < 999.5 or unit == "TB":
            return f"{value:.1f} {unit}" if value < 99.95 else f"{value:.0f} {unit}"
    raise AssertionError("the loop above ends with TB")


def moment(value: object) -> str:
    """Return a time (ISO text, or seconds since 1970) as "2026-11-30 14:26"; other text as it is."""
    try:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return datetime.fromtimestamp(value, tz=timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
        text = str(value)
        shown = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except (ValueError, OverflowError, OSError):
        return str(value)
    return shown.strftime("%Y-%m-%d %H:%M")
