"""Sizes and times as people read them. Programs get exact numbers, by `--json`."""

_SIZES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1, "B"))
_AGES = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s"), (1, "ms"))


def size_of(count: int) -> str:
    """Of so many bytes: `1.5 GB`, in powers of 1,000."""
    return _shown(count, _SIZES)


def age_of(ms: int) -> str:
    """Of so many milliseconds: `3 min`."""
    return _shown(ms, _AGES)


def _shown(count: int, units: tuple[tuple[float, str], ...]) -> str:
    """In the largest unit of which there is one, once it is rounded to a tenth of the next smaller."""
    for (unit, name), (smaller, _) in zip(units, (*units[1:], units[-1]), strict=True):
        if round(abs(count) / smaller, 1) * smaller >= unit or unit == 1:
            return f"{round(count / unit, 1):.15g} {name}"
    raise AssertionError("the last unit is 1")
