"""Spark's filter classes (`pyspark.sql.datasource`) as conditions.

They are recognised by the name of their class, so that a node needs no Spark: `EqualTo`, `EqualNullSafe`,
`GreaterThan(OrEqual)`, `LessThan(OrEqual)`, `In`, `IsNull`, `IsNotNull`, `Not`, `StringStartsWith`, `StringEndsWith`,
`StringContains`. A list of them means all of them.
"""

from collections.abc import Iterable
from typing import Any

from m4cast.overlay.profiles import literals
from m4cast.overlay.profiles.condition import (
    DEPTH_MAX,
    NEVER,
    ColumnRef,
    Condition,
    FilterError,
    IsNull,
    Like,
    Operator,
    all_of,
    check_limits,
    compare,
    null_safe_equal,
    one_of,
)
from m4cast.overlay.profiles.patterns import like_pattern, literal_pattern

_COMPARISONS: dict[str, Operator] = {
    "EqualTo": "=",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
    "LessThan": "<",
    "LessThanOrEqual": "<=",
}
_PATTERNS = {"StringStartsWith": "{}%", "StringEndsWith": "%{}", "StringContains": "%{}%"}


def condition_of(filters: Iterable[Any]) -> Condition:
    """The condition that all of these filters mean together."""
    condition = all_of(_condition(each, False, 1) for each in filters)
    check_limits(condition)
    return condition


def _condition(each: Any, negated: bool, depth: int) -> Condition:
    name = type(each).__name__
    if depth > DEPTH_MAX:
        raise FilterError(f"Not is nested deeper than {DEPTH_MAX}: make the filter flatter")
    if name == "Not":
        return _condition(each.child, not negated, depth + 1)
    path = getattr(each, "attribute", ())
    if not isinstance(path, tuple) or not path or not all(isinstance(part, str) and part for part in path):
        raise FilterError(f"{name} is no filter of Spark's that can be used here: apply it with DataFrame.filter")
    column = ColumnRef(path)
    if name in _COMPARISONS:
        return compare(column, _COMPARISONS[name], literals.of_python(each.value), negated=negated)
    if name == "EqualNullSafe":
        return null_safe_equal(column, literals.of_python(each.value), negated=negated)
    if name == "In":
        found = [literals.of_python(value) for value in each.value]
        known = [literal for literal in found if literal is not None]
        is_unknown = not known or (negated and len(known) < len(found))
        return NEVER if is_unknown else one_of(column, known, negated=negated)
    if name in ("IsNull", "IsNotNull"):
        return IsNull(column, negated is not (name == "IsNotNull"))
    if name in _PATTERNS:
        literals.of_python(each.value)  # refuses what cannot be in a column
        return Like(column, like_pattern(_PATTERNS[name].format(literal_pattern(each.value))), negated)
    raise FilterError(f"{name} is no filter of Spark's that is known here: apply it with DataFrame.filter")
