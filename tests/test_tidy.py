"""The shape of the source, as bars: one class name, one meaning; small folders, files, classes and constructors.

- No class name is defined in two rooms. A room is a folder of `overlay/`, or another top-level folder.
- In `overlay/` and `m4cast/`: a folder has at most 14 files of its own, of any kind, not counting `__init__.py`; a file
  of Python has at most 500 lines, a class at most 20 attributes, a constructor at most 6 parameters. Values (frozen
  dataclasses and the like) are exempt, and keyword-only options with a default are not counted as parameters. A file
  may be longer if one of its first 20 lines gives the reason: `Reason: ...`.
- In every room: the docstring of a module, a class or a function begins with what it is or does, not with one of the
  words `RIDDLES`.

`KNOWN` lists what still breaks a bar. An entry that no longer does must be removed, so the list only gets shorter.

Values are exempt because many fields of a record, such as a report or the settings, do not make it an object that does
too much: nothing changes them, and no method depends on the order of their changes.
"""

import ast
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
ROOMS = ("overlay", "m4cast", "jobs", "spark_connector", "schemas")
SHAPED = ("overlay", "m4cast")
FILES_MAX = 14
LINES_MAX = 500
ATTRIBUTES_MAX = 20
PARAMETERS_MAX = 6
HEAD_LINES = 20
VALUE_BASES = {"NamedTuple", "Protocol", "TypedDict", "Enum", "IntEnum", "StrEnum"}

RIDDLES = ("For", "How", "Is told", "Of", "That", "What", "When", "Where", "Whether", "Why", "With")

KNOWN: frozenset[str] = frozenset()


def source_files(root: Path, rooms: tuple[str, ...] = ROOMS, pattern: str = "*.py") -> list[Path]:
    """Each file once: `m4cast/` reaches the other rooms by symlinks."""
    found = (path for room in rooms for path in (root / room).rglob(pattern))
    paths = (path.relative_to(root) for path in found)
    return sorted(
        path for path in paths if path.parts[0] != "m4cast" or not (root / "m4cast" / path.parts[1]).is_symlink()
    )


def room_of(path: Path) -> str:
    is_nested = path.parts[0] == "overlay" and len(path.parts) > 2
    return "/".join(path.parts[: 2 if is_nested else 1])


def problems(root: Path) -> Iterator[str]:
    places: dict[str, dict[str, Path]] = defaultdict(dict)
    for path in source_files(root):
        text = (root / path).read_text(encoding="utf-8")
        tree = ast.parse(text, str(path))
        classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
        yield from riddles_of(path, tree)
        for each in classes:
            places[each.name][room_of(path)] = path
        if path.parts[0] in SHAPED:
            yield from shape_of_file(path, text)
            for each in classes:
                yield from shape_of_class(path, each)
    files = (path for path in source_files(root, SHAPED, "*.*") if is_counted(root / path))
    folders = Counter(path.parent for path in files)
    yield from (f"{folder}: more than {FILES_MAX} files" for folder, count in folders.items() if count > FILES_MAX)
    for name, rooms in places.items():
        if len(rooms) > 1:
            yield f"class {name}: in {' and '.join(sorted(rooms))}"


def is_counted(path: Path) -> bool:
    return path.is_file() and path.name != "__init__.py" and "__pycache__" not in path.parts


def shape_of_file(path: Path, text: str) -> Iterator[str]:
    lines = text.splitlines()
    has_reason = any(line.strip().lower().startswith("reason:") for line in lines[:HEAD_LINES])
    if len(lines) > LINES_MAX and not has_reason:
        yield f"{path}: more than {LINES_MAX} lines"


def shape_of_class(path: Path, tree: ast.ClassDef) -> Iterator[str]:
    where = f"{path}: class {tree.name}"
    if is_value(tree):
        return
    stored = (node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store))
    attributes = {node.attr for node in stored if isinstance(node.value, ast.Name) and node.value.id == "self"}
    attributes |= {ast.unparse(each.target) for each in tree.body if isinstance(each, ast.AnnAssign)}
    if len(attributes) > ATTRIBUTES_MAX:
        yield f"{where}: more than {ATTRIBUTES_MAX} attributes"
    for each in tree.body:
        if isinstance(each, ast.FunctionDef) and each.name == "__init__":
            required = sum(default is None for default in each.args.kw_defaults)
            if len(each.args.posonlyargs) + len(each.args.args) - 1 + required > PARAMETERS_MAX:
                yield f"{where}: more than {PARAMETERS_MAX} parameters"


def riddles_of(path: Path, tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            begin = ast.get_docstring(node) or ""
            if begin.startswith(tuple(f"{word} " for word in RIDDLES)):
                yield f"{path}: {getattr(node, 'name', 'the module')}: a docstring that begins {begin.split()[0]!r}"


def is_value(tree: ast.ClassDef) -> bool:
    """A frozen dataclass, or a class of a kind that has no state to change."""
    decorators = [ast.unparse(each) for each in tree.decorator_list]
    bases = {ast.unparse(each).rpartition(".")[2] for each in tree.bases}
    return any("dataclass" in each and "frozen=True" in each for each in decorators) or bool(bases & VALUE_BASES)


def test_the_source_is_tidy() -> None:
    found = set(problems(ROOT))
    new, gone = sorted(found - KNOWN), sorted(KNOWN - found)
    assert not new, "split it at its nouns, rename the class, or say what it is:\n" + "\n".join(new)
    assert not gone, "no longer true; remove it from KNOWN:\n" + "\n".join(gone)


def test_each_bar_can_be_broken(tmp_path: Path) -> None:
    many = "\n".join(f"        self.a{at} = 1" for at in range(ATTRIBUTES_MAX + 1))
    parameters = ", ".join(f"p{at}" for at in range(PARAMETERS_MAX))
    files = {
        "overlay/net/a.py": f"class Twice:\n    def __init__(self, {parameters}, *, last, more=1):\n{many}",
        "overlay/net/fine.py": f"@dataclass(frozen=True)\nclass V:\n    def __init__(self, {parameters}, last): ...",
        "overlay/door/b.py": "class Twice: ...\n" + "\n" * LINES_MAX,
        "overlay/door/c.py": '"""Long.\n\nReason: it is one table.\n"""' + "\n" * LINES_MAX,
        "jobs/long.py": '"""What is long."""\ndef f():\n    """Whatever."""' + "\n" * 2 * LINES_MAX,
        "schemas/f.py": 'class C:\n    def f(self):\n        """Is told of changes."""',
        **{f"m4cast/f{at}.{'py' if at else 'js'}": "" for at in range(FILES_MAX + 1)},
        **{f"overlay/full/{name}.py": "" for name in ("__init__", *(f"f{at}" for at in range(FILES_MAX)))},
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert set(problems(tmp_path)) == {
        "class Twice: in overlay/door and overlay/net",
        "overlay/net/a.py: class Twice: more than 20 attributes",
        "overlay/net/a.py: class Twice: more than 6 parameters",
        "overlay/door/b.py: more than 500 lines",
        "m4cast: more than 14 files",
        "jobs/long.py: the module: a docstring that begins 'What'",
        "schemas/f.py: f: a docstring that begins 'Is'",
    }
