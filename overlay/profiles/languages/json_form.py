"""The language `json`, version 1: conditions as objects, for programs that would otherwise paste text together.

    {"exact": {"country": "PL"}}         equal; a list of values means any of them; null means IS NULL
    {"prefix": {"name": "web-"}}         the text begins with it
    {"suffix": {"name": ".pdf"}}         the text ends with it
    {"all": [...]}  {"any": [...]}  {"not": ...}

An object with several columns means all of them. A column is a name; a list of names, joined by dots, reaches into
structs only when `"column"` is given as a list: `{"exact": [["a", "b"], 5]}`. NOT follows three-valued logic: a null is
neither equal nor unequal.
"""

import json
from collections.abc import Iterator
from decimal import Decimal

from m4cast.overlay.profiles import literals
from m4cast.overlay.profiles.condition import (
    DEPTH_MAX,
    ColumnRef,
    Condition,
    FilterError,
    IsNull,
    Like,
    Literal,
    all_of,
    any_of,
    check_limits,
    check_text,
    one_of,
)
from m4cast.overlay.profiles.patterns import literal_pattern

NAME = "json"
VERSION = 1
_FORMS = "exact, prefix, suffix, all, any, not"


def parse(text: str) -> Condition:
    """The condition that the text means; `FilterError` with the place if it means none."""
    check_text(text, "the filter")
    _check_nesting(text)
    try:
        content = json.loads(text, object_pairs_hook=_pairs, parse_float=_exact_number)
    except json.JSONDecodeError as error:
        raise FilterError(f"this is not JSON: {error.msg}", error.pos) from None
    except (ValueError, RecursionError) as error:
        raise FilterError(f"this is not JSON that can be read: {error}", 0) from None
    try:
        condition = condition_of(content)
    except FilterError as error:
        raise FilterError(error.problem, 0 if error.position is None else error.position) from None
    return condition


def condition_of(content: object) -> Condition:
    """The condition that a parsed object means."""
    condition = _condition(content, False, "the filter", 1)
    check_limits(condition)
    return condition


def _pairs(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found: dict[str, object] = {}
    for key, content in pairs:
        if key in found:
            raise ValueError(f"the key {key[:40]!r} stands twice in one object: use a list, or all")
        found[key] = content
    return found


def _exact_number(text: str) -> int | float | Decimal:
    """A number as it is written; as a double if it is beyond the limits of numbers."""
    exact = literals.number_of(text)
    return float(text) if exact is None else exact


def _check_nesting(text: str) -> None:
    """Refuse what would make the parser recurse, with the place."""
    depth, quoted, skip = 0, False, False
    for at, character in enumerate(text):
        if skip:
            skip = False
        elif quoted:
            skip = character == "\\"
            quoted = character != '"'
        elif character == '"':
            quoted = True
        elif character in "[{":
            depth += 1
            if depth > 3 * DEPTH_MAX:
                raise FilterError(f"all, any and not are nested deeper than {DEPTH_MAX}: make the filter flatter", at)
        elif character in "]}":
            depth -= 1


def _condition(content: object, negated: bool, where: str, depth: int) -> Condition:
    if depth > DEPTH_MAX:
        raise FilterError(f"all, any and not are nested deeper than {DEPTH_MAX}: make the filter flatter")
    if not isinstance(content, dict) or len(content) != 1:
        raise FilterError(f"{where} must be an object with one of {_FORMS}")
    ((form, inner),) = content.items()
    if form == "not":
        return _condition(inner, not negated, "not", depth + 1)
    if form in ("all", "any"):
        if not isinstance(inner, list):
            raise FilterError(f"{form} must have a list of filters")
        parts = [_condition(part, negated, f"{form}[{at}]", depth + 1) for at, part in enumerate(inner)]
        return all_of(parts) if (form == "all") is not negated else any_of(parts)
    if form not in ("exact", "prefix", "suffix"):
        raise FilterError(f"{str(form)[:40]!r} is no filter: write one of {_FORMS}")
    parts = [_test(form, column, wanted, negated) for column, wanted in _tests(form, inner)]
    return any_of(parts) if negated else all_of(parts)


def _tests(form: str, inner: object) -> Iterator[tuple[ColumnRef, object]]:
    if isinstance(inner, list) and len(inner) == 2 and isinstance(inner[0], list):
        path = inner[0]
        if not path or not all(isinstance(name, str) and name for name in path) or len(path) > DEPTH_MAX:
            raise FilterError(f"{form}: a nested column is a list of 1 to {DEPTH_MAX} names")
        yield ColumnRef(tuple(path)), inner[1]
        return
    if not isinstance(inner, dict) or not inner:
        raise FilterError(f'{form} must have an object of columns, such as {{"{form}": {{"country": "PL"}}}}')
    for name, wanted in inner.items():
        if not name:
            raise FilterError(f"{form}: a column needs a name")
        yield ColumnRef((name,)), wanted


def _test(form: str, column: ColumnRef, wanted: object, negated: bool) -> Condition:
    if form == "exact":
        return _exact(column, wanted if isinstance(wanted, list) else [wanted], negated)
    if not isinstance(wanted, str) or not wanted:
        raise FilterError(f"{form} of {column.path[0][:40]!r} must be a text, and not empty")
    literals.of_python(wanted)  # refuses what cannot be in a column
    pattern = literal_pattern(wanted)
    return Like(column, f"{pattern}%" if form == "prefix" else f"%{pattern}", negated)


def _exact(column: ColumnRef, wanted: list[object], negated: bool) -> Condition:
    values: list[Literal] = []
    parts: list[Condition] = []
    for each in wanted:
        literal = literals.of_python(each)
        if literal is None:
            parts.append(IsNull(column, negated))
        else:
            values.append(literal)
    if not wanted:
        raise FilterError(f"exact of {column.path[0][:40]!r} has an empty list: name at least one value")
    if values:
        parts.append(one_of(column, values, negated=negated))
    return all_of(parts) if negated else any_of(parts)
