"""The rules between rooms, read from the source itself.

Dependencies point one way: `schemas <- overlay.{ids,errors,config} <- overlay.profiles <- overlay.{protocol,federation}
<- overlay.{net,sim}`; the Spark connector sees only the overlay's client, jobs see only schemas and the connector. The
protocol and the profiles are pure, and the rooms of the protocol know each other only through `protocol/node.py`. Each
message says where, what, and what to do instead.

`test_the_source_keeps_the_rules` checks the source; the others check, on small trees, that each rule can be broken.
"""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
ROOMS_ON_DISK = ("overlay", "spark_connector", "schemas", "jobs", "conf")
FORBIDDEN_NAMES = ("utils", "helpers", "common", "manager", "base")

PROTOCOL = "m4cast.overlay.protocol"
PROFILES = "m4cast.overlay.profiles"
FEDERATION = "m4cast.overlay.federation"
VALUES = (
    "m4cast.schemas",
    "m4cast.overlay.ids",
    "m4cast.overlay.errors",
    "m4cast.overlay.config",
    "m4cast.overlay.histogram",
    "m4cast.overlay.refusals",
    "m4cast.overlay.value",
)


class Room(NamedTuple):
    """The modules of ours that those under a name may import, besides each other, and what to do instead of more."""

    may_import: tuple[str, ...]
    instead: str


ROOMS = {
    "m4cast.schemas": Room((), "schemas know nobody; move what uses both to the room that needs the schema"),
    "m4cast.conf": Room((), "conf is data; read it from m4cast.overlay.config"),
    "m4cast.overlay.__init__": Room((), "let users import from the module that defines the name"),
    "m4cast.overlay.ids": Room(VALUES, "values know no machine; move the code to the room that acts on the value"),
    "m4cast.overlay.errors": Room(VALUES, "values know no machine; move the code to the room that acts on the value"),
    "m4cast.overlay.config": Room(VALUES, "values know no machine; move the code to the room that acts on the value"),
    "m4cast.overlay.histogram": Room(
        VALUES, "values know no machine; move the code to the room that acts on the value"
    ),
    "m4cast.overlay.heap": Room((), "it is about memory alone; move what uses it to the room that has the process"),
    "m4cast.overlay.refusals": Room((), "it is a table; move what uses it to the room that acts on the code"),
    "m4cast.overlay.value": Room(VALUES, "values know no machine; move the code to the room that acts on the value"),
    PROFILES: Room(VALUES, "profiles look at rows and at each other only; whoever has the rows calls them"),
    PROTOCOL: Room((*VALUES, PROFILES), "ask for it by an output and hear back by an input; the driver does the rest"),
    FEDERATION: Room(
        (*VALUES, PROFILES, f"{PROTOCOL}.timers"),
        "it is a machine beside the node: the driver carries values between them",
    ),
    "m4cast.overlay.sim": Room(
        (*VALUES, PROFILES, PROTOCOL, FEDERATION), "drive the protocol's own machines; net and sim never meet"
    ),
    "m4cast.overlay.net": Room(
        (*VALUES, "m4cast.overlay.heap", PROTOCOL, PROFILES, FEDERATION),
        "drive the protocol's own machines; net and sim never meet",
    ),
    "m4cast.overlay.store": Room(
        (*VALUES, f"{PROTOCOL}.wire", f"{PROTOCOL}.effects"),
        "a store keeps values; whoever owns both it and the machine hands them over",
    ),
    "m4cast.overlay.door": Room(
        (
            *VALUES,
            "m4cast.overlay.heap",
            PROFILES,
            "m4cast.overlay.net.driver",
            "m4cast.overlay.net.listener",
            "m4cast.overlay.net.tls",
            "m4cast.overlay.store.store",
            "m4cast.row_files",  # rows that are posted as text are read as those of files are
            *(f"{PROTOCOL}.{values}" for values in ("wire.batch", "wire.messages", "wire.interest", "effects", "node")),
            f"{PROTOCOL}.routes.trees",
            f"{PROTOCOL}.clients",
        ),
        "a door asks the node through its driver and reads the store; only `status` looks into it, on its loop",
    ),
    "m4cast.overlay.client": Room(
        (
            "m4cast.overlay.ids",
            "m4cast.overlay.errors",
            "m4cast.overlay.refusals",
            f"{PROTOCOL}.clients.memory",  # the library's half of a contract that is simulated with the node's half
            f"{PROTOCOL}.clients.state",
            f"{PROTOCOL}.clients.packed_state",  # the same state, as it is shipped
            f"{PROTOCOL}.clients.group",
            f"{PROTOCOL}.clients.letters",  # what clients say to each other; nodes carry it
            f"{PROTOCOL}.clients.chats",
            f"{PROTOCOL}.clients.transfers",
        ),
        "a client is an outsider: what it needs travels through the door",
    ),
    "m4cast.overlay.bridge": Room((*VALUES, "m4cast.overlay.client"), "a bridge is a client like others"),
    "m4cast.spark_connector": Room(
        (
            "m4cast.overlay.client",
            "m4cast.overlay.errors",
            "m4cast.overlay.heap",
            "m4cast.overlay.ids",
            PROFILES,
            "m4cast.overlay.refusals",
            "m4cast.schemas",
        ),
        "reach the channel through m4cast.overlay.client, as any outsider does",
    ),
    "m4cast.jobs": Room(
        (
            "m4cast.spark_connector",
            "m4cast.overlay.errors",
            "m4cast.overlay.ids",
            PROFILES,  # whether a row was wanted is decided as nodes decide it
            "m4cast.schemas",
            "m4cast.console",  # options, tables and errors look the same in every command
            "m4cast.topology.graph",
            "m4cast.topology.picture",
        ),
        "read the tables, or the channel through spark.read.format('m4cast')",
    ),
    "m4cast.row_files": Room(("m4cast.overlay.errors", "m4cast.schemas"), "it reads files; publishing is the caller's"),
    "m4cast.topology": Room(
        ("m4cast.console.screen", "m4cast.overlay.client", "m4cast.overlay.errors"), "it asks nodes as any client does"
    ),
    "m4cast.cluster": Room(
        ("m4cast.overlay.client", "m4cast.overlay.errors", "m4cast.overlay.net.certificates"),
        "nodes are separate processes: use their configuration, their doors and signals",
    ),
    "m4cast.console": Room(
        ("m4cast.cluster", "m4cast.overlay.client", "m4cast.overlay.errors"),
        "it is what all commands share; what one command needs goes to that command in m4cast.cli",
    ),
    "m4cast.demo": Room(
        (
            "m4cast.cluster",
            "m4cast.console",
            "m4cast.jobs",
            "m4cast.overlay.client",
            "m4cast.overlay.errors",
            "m4cast.schemas",
            "m4cast.topology",
        ),
        "the demo is a user of m4cast: it has clusters, clients and jobs",
    ),
    "m4cast.cli": Room(("m4cast",), "commands may use everything"),
}

# Of the protocol, a room imports itself, `wire` and the shared values; only composers import rooms.
SHARED_IN_PROTOCOL = ("effects", "context", "timers", "calls", "neighbours", "holdings", "floods", "clocks")
COMPOSERS_IN_PROTOCOL = ("node", "connections", "arrival", "liveness", "lookout", "departure", "selection")

# What would bring a clock, chance, I/O or another thread into the protocol, and what it uses instead.
IMPURE_MODULES = {
    "time": "take now_ms as an argument",
    "datetime": "take now_ms as an argument",
    "secrets": "take a random.Random as an argument",
    "uuid": "take a random.Random as an argument and use m4cast.overlay.ids",
    "socket": "return an output such as Send or Dial",
    "ssl": "return an output such as Send or Dial",
    "select": "return an output such as Send or Dial",
    "selectors": "return an output such as Send or Dial",
    "asyncio": "return outputs; the driver waits",
    "threading": "return outputs; the driver owns threads",
    "multiprocessing": "return outputs; the driver owns processes",
    "concurrent": "return outputs; the driver owns threads",
    "subprocess": "return outputs; the driver owns processes",
    "logging": "return a Trace output",
    "os": "take it as an argument, or return an output",
    "sys": "take it as an argument, or return an output",
    "pathlib": "return an output such as Append or ReadRange",
}
# Of datetime, the types of values that come in from outside; `now` is a method of theirs that nobody here calls.
TYPES_OF_VALUES = tuple(f"datetime.{name}" for name in ("UTC", "date", "datetime", "time", "timedelta"))
IMPURE_CALLS = {
    "hash": "it differs between processes: use a checksum of the bytes, or the value itself as the key",
    "id": "it differs between runs: give the thing a number of its own",
    "open": "return an output; the driver does the I/O",
    "print": "return a Trace output",
    "input": "take it as an input",
}


class Import(NamedTuple):
    line: int
    target: str  # the full name of the module, or of the name in it


def module_name(path: Path) -> str:
    """The name a file is imported by, with `__init__` spelled out: `overlay/ids.py` is `m4cast.overlay.ids`."""
    parts = path.with_suffix("").parts
    return ".".join(parts if parts[0] in ("m4cast", "tests") else ("m4cast", *parts))


def is_under(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(prefix + ".")


def imports(tree: ast.AST) -> Iterator[Import]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(node.lineno, alias.name)
        elif isinstance(node, ast.ImportFrom):
            # `from a import b` may name a module in a or a name in it; "a.b" fits a rule about either.
            for alias in node.names:
                yield Import(node.lineno, f"{'.' * node.level}{node.module or ''}.{alias.name}")


def source_files(root: Path) -> list[Path]:
    """Each file once: the real folders, the front package's own files (not its symlinks) and the tests."""
    found = [*root.glob("*.py"), *(root / "m4cast").glob("*.py")]
    front = [path for path in (root / "m4cast").glob("*") if path.is_dir() and not path.is_symlink()]
    for folder in (*(root / room for room in ROOMS_ON_DISK), root / "tests", *front):
        found.extend(folder.rglob("*.py"))
    return sorted(path.relative_to(root) for path in found)


def check_tree(root: Path) -> list[str]:
    problems: list[str] = []
    for path in source_files(root):
        tree = ast.parse((root / path).read_text(encoding="utf-8"), str(path))
        problems.extend(f"{path}:{line}: {message}" for line, message in check_file(path, tree))
        if path.parts[0] == "tests" and not (root / path.parent / "__init__.py").exists():
            problems.append(f"{path}:1: its folder is not a package: add {path.parent}/__init__.py")
    return list(dict.fromkeys(problems))  # an import of two names from one module breaks a rule once


def check_file(path: Path, tree: ast.AST) -> Iterator[tuple[int, str]]:
    for part in path.with_suffix("").parts:
        if part in FORBIDDEN_NAMES:
            yield 1, f"{part!r} says nothing: name it after the thing it holds, with a noun from the glossary"
    name = module_name(path)
    for imported in imports(tree):
        yield from check_import_name(imported)
        if is_under(imported.target, "m4cast"):
            yield from check_room(name, imported)
            yield from check_protocol_room(name, imported)
    if is_under(name, PROTOCOL):
        yield from check_purity(tree, "the protocol")
    if is_under(name, FEDERATION):
        yield from check_purity(tree, "the federation")
    if is_under(name, PROFILES):
        yield from check_purity(tree, "the room of profiles", TYPES_OF_VALUES)


def check_import_name(imported: Import) -> Iterator[tuple[int, str]]:
    if imported.target.startswith("."):
        yield imported.line, f"relative import {imported.target}: write the full name, m4cast. ..."
    top = imported.target.partition(".")[0]
    if top in ROOMS_ON_DISK:
        yield imported.line, f"import of {imported.target}: write m4cast.{imported.target}; {top!r} is not ours to take"


def check_room(name: str, imported: Import) -> Iterator[tuple[int, str]]:
    if is_under(name, "tests") or name.count(".") == 1:  # tests and the root of the front package may see everything
        return
    room = next((room for room in ROOMS if is_under(name, room)), None)
    if room is None:
        yield (
            imported.line,
            f"{name} is in no known room: say in ROOMS of tests/test_architecture.py what it may import",
        )
        return
    may_import = (room, *ROOMS[room].may_import)
    if not any(is_under(imported.target, allowed) for allowed in may_import):
        yield imported.line, f"{room} must not import {imported.target}: {ROOMS[room].instead}"


def check_protocol_room(name: str, imported: Import) -> Iterator[tuple[int, str]]:
    if not is_under(name, PROTOCOL) or not imported.target.startswith(f"{PROTOCOL}."):
        return
    mine, theirs = name.split(".")[3], imported.target.split(".")[3]
    shared = () if mine == "wire" else ("wire", *SHARED_IN_PROTOCOL)
    if mine not in COMPOSERS_IN_PROTOCOL and theirs not in (mine, *shared):
        message = "let node.py compose them, or move what both need to wire/ or to a shared value"
        yield imported.line, f"protocol.{mine} must not import protocol.{theirs}: {message}"


def check_purity(tree: ast.AST, who: str, allowed: tuple[str, ...] = ()) -> Iterator[tuple[int, str]]:
    for imported in imports(tree):
        top = imported.target.partition(".")[0]
        if top in IMPURE_MODULES and imported.target not in allowed:
            yield imported.line, f"{who} is pure and must not import {top}: {IMPURE_MODULES[top]}"
        if top == "random" and imported.target != "random.Random":
            yield (
                imported.line,
                f"{who} takes chance as an argument: only `from random import Random`, its type",
            )
    for node in ast.walk(tree):
        if isinstance(node, ast.AsyncFunctionDef | ast.Await | ast.AsyncFor | ast.AsyncWith):
            yield node.lineno, f"{who} never waits: return outputs and handle the answer as an input"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id in IMPURE_CALLS:
                yield node.lineno, f"{who} must not call {node.func.id}(): {IMPURE_CALLS[node.func.id]}"
            if node.func.id == "Random" and not node.args:
                yield node.lineno, "Random() seeds itself: take a Random as an argument"


def test_the_source_keeps_the_rules() -> None:
    problems = check_tree(ROOT)
    assert not problems, "\n" + "\n".join(problems)


def test_every_source_file_is_seen() -> None:
    seen = source_files(ROOT)
    assert Path("overlay/config/__init__.py") in seen
    assert Path("m4cast/cli/nodes/node.py") in seen
    assert Path("tests/test_architecture.py") in seen
    assert len(seen) == len({(ROOT / path).resolve() for path in seen}), "a file is seen twice, through a symlink"


@pytest.mark.parametrize(
    ("path", "source", "message"),
    [
        ("overlay/x/utils.py", "", "1: 'utils' says nothing"),
        ("tests/helpers/x.py", "", "1: 'helpers' says nothing"),
        ("jobs/x.py", "\nimport schemas.avro", "2: import of schemas.avro: write m4cast.schemas.avro"),
        ("m4cast/cli/x.py", "from overlay import ids", "1: import of overlay.ids: write m4cast.overlay.ids"),
        ("tests/x.py", "import spark_connector", "1: import of spark_connector: write m4cast.spark_connector"),
        ("overlay/config.py", "from . import errors", "1: relative import"),
        ("schemas/x.py", "import m4cast.overlay.ids", "1: m4cast.schemas must not import m4cast.overlay.ids"),
        ("overlay/__init__.py", "from m4cast.overlay import ids", "1: m4cast.overlay.__init__ must not import"),
        ("overlay/ids.py", "from m4cast.overlay.protocol import batch", "1: m4cast.overlay.ids must not import"),
        ("overlay/protocol/x.py", "from m4cast.overlay import sim", "1: m4cast.overlay.protocol must not import"),
        ("overlay/sim/x.py", "def f():\n  import m4cast.overlay.net.y", "2: m4cast.overlay.sim must not import"),
        ("overlay/net/x.py", "from m4cast.overlay.sim import world", "1: m4cast.overlay.net must not import"),
        ("overlay/client/x.py", "import m4cast.overlay.protocol", "1: m4cast.overlay.client must not import"),
        ("overlay/client/x.py", "import m4cast.overlay.config", "1: m4cast.overlay.client must not import"),
        ("overlay/door/x.py", "from m4cast.overlay.protocol import commit", "1: m4cast.overlay.door must not import"),
        ("overlay/new/x.py", "import m4cast.overlay.ids", "1: m4cast.overlay.new.x is in no known room"),
        ("spark_connector/x.py", "from m4cast.overlay import config", "1: m4cast.spark_connector must not import"),
        ("jobs/x.py", "from m4cast.overlay.net import tcp", "1: m4cast.jobs must not import m4cast.overlay.net.tcp"),
        ("jobs/x.py", "import m4cast", "1: m4cast.jobs must not import m4cast:"),
        ("jobs/x.py", "from m4cast.cli import main", "1: m4cast.jobs must not import m4cast.cli.main: read the tables"),
        ("jobs/x.py", "from m4cast.topology import survey", "1: m4cast.jobs must not import m4cast.topology.survey"),
        (
            "m4cast/cluster/x.py",
            "from m4cast.console import screen",
            "1: m4cast.cluster must not import m4cast.console",
        ),
        ("m4cast/console/x.py", "import m4cast.jobs.ingest", "1: m4cast.console must not import m4cast.jobs.ingest"),
        (
            "overlay/protocol/streams/ordering.py",
            "from m4cast.overlay.protocol.membership.links import Links",
            "1: protocol.streams must not import protocol.membership: let node.py compose them",
        ),
        (
            "overlay/protocol/wire/batch.py",
            "from m4cast.overlay.protocol import effects",
            "1: protocol.wire must not import protocol.effects",
        ),
        ("overlay/protocol/calls.py", "from m4cast.overlay.protocol import node", "1: protocol.calls must not import"),
        ("overlay/protocol/x.py", "import time", "1: the protocol is pure and must not import time: take now_ms"),
        ("overlay/protocol/x.py", "from os import path", "1: the protocol is pure and must not import os"),
        ("overlay/protocol/x.py", "import asyncio.streams", "1: the protocol is pure and must not import asyncio"),
        ("overlay/protocol/x.py", "import random", "1: the protocol takes chance as an argument"),
        ("overlay/protocol/x.py", "from random import Random, choice", "1: the protocol takes chance as an argument"),
        ("overlay/protocol/x.py", "a = Random()", "1: Random() seeds itself"),
        ("overlay/protocol/x.py", "a = {}\na[hash('b')] = id(a)", "2: the protocol must not call hash()"),
        ("overlay/protocol/x.py", "a = {}\na[0] = id(a)", "2: the protocol must not call id()"),
        ("overlay/protocol/x.py", "async def f(): ...", "1: the protocol never waits"),
        ("overlay/profiles/x.py", "import m4cast.overlay.protocol", "1: m4cast.overlay.profiles must not import"),
        ("overlay/profiles/x.py", "import m4cast.overlay.door", "1: m4cast.overlay.profiles must not import"),
        ("overlay/profiles/x.py", "import time", "1: the room of profiles is pure and must not import time"),
        ("overlay/federation/x.py", "import time", "1: the federation is pure and must not import time"),
        ("overlay/federation/x.py", "import m4cast.overlay.protocol.node", "1: m4cast.overlay.federation must not"),
    ],
)
def test_a_broken_rule_is_reported_with_file_and_line(tmp_path: Path, path: str, source: str, message: str) -> None:
    write_tree(tmp_path, {path: source})
    problems = check_tree(tmp_path)
    assert any(problem.startswith(f"{path}:{message}") for problem in problems), problems


def test_a_test_folder_that_is_no_package_is_reported(tmp_path: Path) -> None:
    write_tree(tmp_path, {"tests/overlay/test_x.py": ""})
    (tmp_path / "tests/overlay/__init__.py").unlink()
    assert check_tree(tmp_path) == [
        "tests/overlay/test_x.py:1: its folder is not a package: add tests/overlay/__init__.py"
    ]


def test_what_the_rules_allow_is_not_reported(tmp_path: Path) -> None:
    write_tree(
        tmp_path,
        {
            "m4cast/cli/trials/sim.py": "from m4cast.overlay.sim import world\nimport time",
            "overlay/config.py": "from m4cast.overlay.errors import ConfigError\nimport os",
            "overlay/profiles/x.py": "from datetime import date\nfrom m4cast.overlay.profiles import y",
            "overlay/protocol/interest/x.py": "from m4cast.overlay.profiles import covers",
            "overlay/protocol/node.py": "from m4cast.overlay.protocol.membership.links import Links",
            "overlay/protocol/roster/x.py": "from m4cast.overlay.protocol.wire import batch\nfrom random import Random",
            "overlay/protocol/wire/x.py": "from m4cast.overlay.ids import NodeId\ndef f(x): return x.id() + x.hash()",
            "overlay/sim/world.py": "from m4cast.overlay.protocol.node import Node\nimport random",
            "spark_connector/source.py": "from m4cast.overlay.client import connect",
            "jobs/gaps.py": "from m4cast.spark_connector import options\nimport schemas_of_others",
            "jobs/report.py": "from m4cast.console.screen import Screen\nfrom m4cast.topology.picture import drawn",
            "tests/overlay/test_x.py": "from m4cast.overlay.net import tcp\nfrom tests.overlay import fakes",
        },
    )
    assert check_tree(tmp_path) == []


def write_tree(root: Path, files: dict[str, str]) -> None:
    for name, source in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name.startswith("tests/"):
            (path.parent / "__init__.py").touch()
        path.write_text(source, encoding="utf-8")
