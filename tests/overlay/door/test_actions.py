"""The table of actions, compared with ListActions, the documentation and the client; and used without Flight."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import m4cast
from m4cast.overlay.door.access.rights import EVERYTHING, Caller, Rights
from m4cast.overlay.door.actions import ACTIONS, act
from m4cast.overlay.door.refusals import Refusal
from tests.overlay.door.plain import CALL, connect
from tests.overlay.door.served import Served, serving

DOCUMENT = Path(__file__).parents[3] / "docs" / "CLIENT.md"
CLIENT = Path(m4cast.__file__).parent / "overlay" / "client"


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("actions"), 1) as served:
        yield served


def test_list_actions_is_the_table(door: Served) -> None:
    client = connect(door, 0)
    listed = {action.type: action.description for action in client.list_actions(CALL)}
    assert listed == {name: action.about for name, action in ACTIONS.items()}
    client.close()


def test_the_table_is_sorted_and_every_row_is_whole() -> None:
    assert list(ACTIONS) == sorted(ACTIONS)
    for action in ACTIONS.values():
        assert bool(action.fields) == (action.body != "none"), action.name
        assert action.about[0].isupper(), action.name
        named = re.findall('"([a-z_]+)"', action.about.partition(" -> ")[0])
        assert set(named) <= set(action.fields), f"{action.name} does not have the fields that its line names"


def test_the_documentation_has_every_action_with_its_fields() -> None:
    head = "| action | right | on which topics | body | answer |\n"
    table = DOCUMENT.read_text(encoding="utf-8").partition(head)[2].partition("\n\n")[0]
    rows = [[cell.strip() for cell in row.strip("|").split("|")] for row in table.splitlines()[1:]]
    assert [name.strip("`") for name, *_ in rows] == list(ACTIONS)
    for action, (_, right, _, body, _) in zip(ACTIONS.values(), rows, strict=True):
        assert right == ("any token" if action.right == "any" else f"`{action.right}`"), action.name
        assert set(re.findall('"([a-z_]+)"', body)) == set(action.fields), action.name
        assert body.startswith({"none": "", "optional": "nothing or", "required": "`{"}[action.body]), action.name


def test_the_client_asks_for_every_action_and_no_other() -> None:
    asked: set[object] = set()
    for file in CLIENT.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
                first = node.args[0]
                if node.func.attr in ("ask", "ask_first", "ask_all") and isinstance(first, ast.Constant):
                    asked.add(first.value)
    assert asked == ACTIONS.keys()


def test_the_table_needs_no_flight() -> None:
    """Another transport must not bring Flight in."""
    program = "import sys, m4cast.overlay.door.actions; sys.exit('pyarrow.flight' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_an_action_is_performed_without_flight(door: Served) -> None:
    services = door.doors[0].services
    caller = Caller("somebody", EVERYTHING, lambda: False)
    assert act(services, "topics", b"", caller) == []
    assert act(services, "position", b'{"key": "k"}', caller) == {"position": None, "ranges": []}


@pytest.mark.parametrize(
    ("name", "body", "rights", "code"),
    [
        ("no-such-action", b"", EVERYTHING, "bad-request"),
        ("no-such-action", b"", Rights("r", read=("*",)), "forbidden"),
        ("topics", b'{"topic": "t"}', EVERYTHING, "bad-request"),
        ("position", b"", EVERYTHING, "bad-request"),
        ("shutdown", b"", Rights("r", read=("*",), publish=("*",)), "forbidden"),
        ("topic", b'{"topic": "t"}', Rights("r", read=("u",)), "forbidden"),
    ],
)
def test_what_the_table_does_not_allow_is_refused(
    door: Served, name: str, body: bytes, rights: Rights, code: str
) -> None:
    with pytest.raises(Refusal) as refused:
        act(door.doors[0].services, name, body, Caller("somebody", rights, lambda: False))
    assert refused.value.code == code
