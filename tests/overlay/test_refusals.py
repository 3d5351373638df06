"""The table of refusals has every code that is raised, and the documentation and the Spark connector agree with it."""

import ast
import re
from pathlib import Path
from typing import get_args

from m4cast.overlay.refusals import (
    GRPC_STATUS,
    PASSING,
    PUBLISH_ELSEWHERE,
    READ_ELSEWHERE,
    REFUSALS,
    RefusalKind,
)
from m4cast.spark_connector.access import FIXES
from m4cast.spark_connector.errors import ErrorId

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs" / "CLIENT.md"
HEAD = f"| code | meaning | repeat it | fix | Flight error, gRPC status | in Spark |\n|{' --- |' * 6}\n"
RAISING = {"Refusal": 0, "RefusedError": 0, "Refused": 1, "_unavailable": 0}
"""Where calls of these names have the code among their arguments."""


def codes_in(source: str) -> set[str]:
    """The codes that this source raises: in calls, or as a pair of a code and a detail that somebody else raises."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            at = RAISING.get(name)
            if at is not None and len(node.args) > at:
                found.update(constant(node.args[at]))
        if isinstance(node, ast.Return | ast.Assign):
            found.update(code for pair in pairs_in(node.value) for code in code_of(*pair.elts))
    return found


def pairs_in(value: ast.expr | None) -> list[ast.Tuple]:
    """The value itself, or both branches of a conditional, as far as they are pairs."""
    if isinstance(value, ast.IfExp):
        return [*pairs_in(value.body), *pairs_in(value.orelse)]
    return [value] if isinstance(value, ast.Tuple) and len(value.elts) == 2 else []


def code_of(code: ast.expr, detail: ast.expr) -> list[str]:
    is_text = isinstance(detail, ast.JoinedStr | ast.Name) or any(" " in text for text in constant(detail))
    return [text for text in constant(code) if is_text and re.fullmatch("[a-z]+(-[a-z]+)*", text)]


def constant(node: ast.expr) -> list[str]:
    return [node.value] if isinstance(node, ast.Constant) and isinstance(node.value, str) else []


def test_every_code_that_is_raised_is_in_the_table_and_no_other() -> None:
    raised: set[str] = set()
    for folder in ("overlay/door", "overlay/client", "overlay/protocol"):
        for file in (ROOT / folder).rglob("*.py"):
            raised |= codes_in(file.read_text(encoding="utf-8"))
    # The word of /readyz for a node without neighbours; no request is refused with it.
    assert raised - {"seeking"} == REFUSALS.keys()


def test_the_connector_and_the_bridge_raise_codes_of_the_table() -> None:
    for folder in ("overlay/bridge", "spark_connector", "jobs"):
        for file in (ROOT / folder).rglob("*.py"):
            calls = [
                node for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)
            ]
            for call in calls:
                if getattr(call.func, "id", "") == "RefusedError":
                    assert set(constant(call.args[0])) <= REFUSALS.keys(), file


def test_a_code_is_found_however_it_is_raised() -> None:
    assert codes_in('raise Refusal("a-b", "why")\nreturn_ = Refused(1, "c", why)') == {"a-b", "c"}
    assert codes_in('def f():\n    return "d", f"why {x}"\nE = ("e-f", "why not")') == {"d", "e-f"}
    assert codes_in('def f():\n    return None if x is None else ("g", x)') == {"g"}
    assert codes_in('def f():\n    return "rows", "batches"') == set()


def test_who_repeats_what() -> None:
    """A change to one of these sets changes what clients, connectors and bridges do."""
    assert {
        *("behind", "busy", "internal", "missing", "not-ready", "stopping", "store", "unknown-topic")
    } == READ_ELSEWHERE
    assert {"leaving", "not-ready", "stopping", "store", "store-full"} == PUBLISH_ELSEWHERE
    assert {
        *("behind", "busy", "leaving", "not-ready", "stopping", "store", "store-full", "timeout", "unacknowledged")
    } == PASSING


def test_spark_has_an_id_and_a_fix_for_the_codes_that_the_table_says() -> None:
    assert {kind.spark_id for kind in REFUSALS.values()} <= set(get_args(ErrorId))
    assert {code for code, kind in REFUSALS.items() if kind.spark_id != "M4CAST_REFUSED"} == FIXES.keys()


def row(kind: RefusalKind) -> str:
    """The line of the documentation."""
    error = "the client's own" if kind.flight is None else f"{kind.flight}, {GRPC_STATUS[kind.flight]}"
    cells = (
        f"`{kind.code}`",
        kind.meaning,
        ", ".join(kind.repeat) or "never",
        kind.fix,
        error,
        f"`{kind.spark_id}`",
    )
    return f"| {' | '.join(cells)} |\n"


def test_the_documentation_has_the_table() -> None:
    written = DOCUMENT.read_text(encoding="utf-8").partition(HEAD)[2].partition("\n\n")[0].rstrip() + "\n"
    wanted = "".join(map(row, REFUSALS.values()))
    assert written == wanted, f"put this table into {DOCUMENT.name}:\n{HEAD}{wanted}"
