"""Sizes, ages and counts as people read them. Programs get exact numbers with `--json`."""

_SIZES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1, "B"))
_AGES = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s"), (1, "ms"))


def size_of(count: int) -> str:
    """A number of bytes, as in `1.5 GB`, in powers of 1,000."""
    return _shown(count, _SIZES)


def age_of(ms: int) -> str:
    """A number of milliseconds, as in `3 min`."""
    return _shown(ms, _AGES)


def whole_age_of(ms: int) -> str:
    """A number of milliseconds in whole units of at least a second, rounded down, as in `2 d` or `0 s`."""
    unit_ms, name = next((unit for unit in _AGES if ms >= unit[0] >= 1_000), (1_000, "s"))
    return f"{ms // unit_ms} {name}"


def count_of(count: int, noun: str) -> str:
    """A number of things, as in `1 row` or `2,000 rows`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _shown(count: int, units: tuple[tuple[float, str], ...]) -> str:
    """The count in the largest unit of which there is at least one, after rounding to a tenth of the next smaller
    unit."""
    for (unit, name), (smaller, _) in zip(units, (*units[1:], units[-1]), strict=True):
        if round(abs(count) / smaller, 1) * smaller >= unit or unit == 1:
            return f"{round(count / unit, 1):.15g} {name}"
    raise AssertionError("the last unit is 1")
