"""Everything that the pages name exists: links, files, commands, scenarios, terms; and no snippet hides from its
test."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from m4cast.cli import SUBCOMMANDS
from m4cast.overlay.sim.scenarios import SCENARIOS
from tests.docs.pages import DOCS, PAGES, ROOT, prose_of, snippets_of
from tests.test_architecture import ROOMS, source_files

RUN = {"console", "python", "sql", "toml"}
"""Run, or parsed, by `Walkthrough`; `test_not_run.py` loads configuration."""
NOT_RUN = {
    "CONTRIBUTING.md": 1,
    "README.md": 2,
    "docs/ARCHITECTURE.md": 1,
    "docs/AUDIT.md": 2,
    "docs/FILTERS.md": 3,
    "docs/JOBS.md": 3,
    "docs/KAFKA.md": 1,
    "docs/METRICS.md": 1,
    "docs/OPERATIONS.md": 2,
    "docs/PERFORMANCE.md": 2,
    "docs/QUICKSTART.md": 1,
}
"""Snippets marked `text`, or in a language that no test runs, by page. They need what a test does not have: systemd, a
package installation, hours. `test_not_run.py` reads their commands. Whoever adds one says so here."""


FOLLOWED_ELSEWHERE = {"CLIENT.md"}
"""By tests/overlay/client/test_document.py."""


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def test_snippets_that_are_not_run_are_counted() -> None:
    hidden = Counter(name_of(each.page) for page in PAGES for each in snippets_of(page) if each.language not in RUN)
    assert dict(hidden) == {page: count for page, count in NOT_RUN.items() if count}


def test_every_page_with_snippets_is_followed_by_a_test() -> None:
    tests = "".join(path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_*.py"))
    shown = {page.name for page in PAGES for each in snippets_of(page) if each.language in RUN - {"toml"}}
    assert sorted(name for name in shown - FOLLOWED_ELSEWHERE if f'/ "{name}")' not in tests) == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_fences_are_closed_and_name_their_language(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    fences = re.findall(r"^```(.*)$", text, re.MULTILINE)
    assert len(fences) == 2 * len(snippets_of(page)), "a fence is not closed, or says more than a language"
    for snippet in snippets_of(page):
        assert snippet.language, f"{snippet.place}: name the language, or mark it as text"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#:]*)(#[^)]*)?\)", prose_of(page)):
        found = page.parent / target if target else page
        assert found.exists(), f"{page.name}: {target}"
        if anchor and found.suffix == ".md":
            assert anchor.removeprefix("#") in anchors_of(found), f"{page.name}: {target}{anchor}"


def anchors_of(page: Path) -> set[str]:
    """The anchors of its headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", prose_of(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_page_is_in_the_index() -> None:
    index = (DOCS / "README.md").read_text(encoding="utf-8")
    assert [
        page.name for page in DOCS.glob("*.md") if page.name != "README.md" and f"]({page.name})" not in index
    ] == []
    decisions = (DOCS / "decisions" / "README.md").read_text(encoding="utf-8")
    assert [page.name for page in (DOCS / "decisions").glob("0*.md") if f"]({page.name})" not in decisions] == []


def test_decisions_say_context_decision_and_consequences() -> None:
    for page in (DOCS / "decisions").glob("0*.md"):
        text = page.read_text(encoding="utf-8")
        assert re.findall(r"^\*\*(\w+)\.\*\*", text, re.MULTILINE) == ["Context", "Decision", "Consequences"], page.name


def test_every_command_and_scenario_is_named() -> None:
    text = (DOCS / "COMMANDS.md").read_text(encoding="utf-8")
    (table,) = re.findall(r"\| command \| what it does \|\n(.*?)\n\n", text, re.DOTALL)
    commands = " ".join(line.split("|")[1] for line in table.splitlines())
    assert [name for name in SUBCOMMANDS if f"`{name}" not in commands] == []
    assert [name for name in SCENARIOS if f"`{name}`" not in text] == []


# ---- files


def test_files_that_the_architecture_names_exist() -> None:
    text = (DOCS / "ARCHITECTURE.md").read_text(encoding="utf-8")
    paths = set(re.findall(r"`((?:overlay|m4cast|spark_connector|jobs|schemas|conf|tests|docs)/[\w./-]*)`", text))
    assert len(paths) >= 30
    assert sorted(path for path in paths if not (ROOT / path).exists()) == []


FILE_IN_DOCSTRING = re.compile(r"(?<![\w./*-])((?:[\w-]+/)*(?:[a-z0-9_-]+\.(?:py|avsc|mjs)|[A-Z-]+\.md))\b")
"""Files of the repository: those of Python in lower case (`NAME.py` stands for any), pages in capitals."""


def docstrings_of(path: Path) -> Iterator[tuple[int, str]]:
    """The strings that stand alone: docstrings of modules, classes and functions, and those below a name."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value


def test_files_that_docstrings_name_exist() -> None:
    """From the root, from `docs/`, or from a folder above: `bridge/records.py` in a docstring of the overlay."""
    missing, seen = [], 0
    for file in source_files(ROOT):
        places = [ROOT, DOCS, ROOT / "overlay", *(ROOT / parent for parent in file.parents)]
        for line, text in docstrings_of(ROOT / file):
            for name in FILE_IN_DOCSTRING.findall(text):
                seen += 1
                if not any((place / name).exists() for place in places):
                    missing.append(f"{file}:{line}: {name}")
    assert seen > 150
    assert missing == []


# ---- rooms


PACKAGES = sorted(
    path.parent for path in source_files(ROOT) if path.name == "__init__.py" and path.parts[0] in ("overlay", "m4cast")
)
"""Those of the overlay and of the front package, without what it reaches by symlinks."""


def test_every_package_has_a_row_in_the_table_of_rooms() -> None:
    """A row of its own, or its name in the row of the package around it."""
    text = (DOCS / "ARCHITECTURE.md").read_text(encoding="utf-8")
    table = text.partition("| room | purpose |\n")[2].partition("\n\n")[0]
    rooms = [line.split("|")[1] for line in table.splitlines()]
    missing = [
        str(package)
        for package in PACKAGES
        if package != Path("overlay")
        and not any(f"`{package}/`" in room for room in rooms)
        and not any(f"`{package.parent}/`" in room and f"`{package.name}/`" in room for room in rooms)
    ]
    assert len(PACKAGES) > 40
    assert missing == []


def test_the_picture_of_dependencies_names_every_room() -> None:
    (picture,) = [each for each in snippets_of(DOCS / "ARCHITECTURE.md") if each.language == "text"]
    lists = re.findall(r"(\w+)\.\{([\w, ]+)\}", picture.text)
    named = {f"{parent}.{each.strip()}" for parent, listed in lists for each in listed.split(",")}
    named |= set(re.findall(r"[\w.]+", picture.text))
    names = {room.removeprefix("m4cast.") for room in ROOMS} - {"overlay.__init__"}
    assert sorted(name for name in names if not {name, f"m4cast.{name}"} & named) == []


def test_the_layout_in_the_readme_names_every_folder() -> None:
    layout = (ROOT / "README.md").read_text(encoding="utf-8").partition("## Layout")[2]
    folders = [f"{package.name}/" for package in PACKAGES if package.parent == Path("overlay")]
    folders += sorted({f"{path.parent.name}/" for path in ROOT.glob("[a-z]*/*.*")})
    made = (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()  # such as dist/, by `make release`
    folders = [folder for folder in folders if folder not in made]
    assert [folder for folder in folders if f"`{folder}`" not in layout] == []


@pytest.mark.parametrize("room", ["overlay", "overlay/protocol", "overlay/door"])
def test_the_head_of_a_large_room_names_what_is_in_it(room: str) -> None:
    head = ast.get_docstring(ast.parse((ROOT / room / "__init__.py").read_text(encoding="utf-8"))) or ""
    inside = {path.parent.name for path in (ROOT / room).glob("*/__init__.py")}
    inside |= {path.stem for path in (ROOT / room).glob("*.py")} - {"__init__"}
    assert sorted(name for name in inside if not re.search(rf"\b{name}\b", head)) == []


# ---- where to make a change, and terms


TWO_GUESSES = {
    "the heartbeat interval": "overlay/config/",
    "the hold-back limit": "streams/hold_back.py",
    "when a range becomes a skip": "streams/searching.py",
    "what a token may do": "access/rights.py",
    "a column of `deliveries`": "schemas/records.py",
    "a client action": "door/actions.py",
    "a Kafka codec": "bridge/codecs/",
    "retention": "store/retention.py",
    "pruning of duplicates": "streams/pruning.py",
    "a path of the HTTP door": "http/monitoring.py",
    "the text of a schema conflict": "rows/payload.py",
    "the length of the audit's window": "audit/windows.py",
}
"""What a newcomer may want to change -> the end of the file's path, which should be found by its name."""


@pytest.mark.parametrize(("subject", "file"), TWO_GUESSES.items(), ids=list(TWO_GUESSES))
def test_what_is_found_in_two_guesses_is_listed(subject: str, file: str) -> None:
    text = (DOCS / "ARCHITECTURE.md").read_text(encoding="utf-8")
    table = text.partition("## Where do I change ...")[2].partition("\n## ")[0]
    rows = [line.split("|")[1:3] for line in table.splitlines() if line.startswith("| ")][2:]
    subjects = [row[0].strip() for row in rows]
    assert len(set(subjects)) == len(subjects)
    (places,) = [row[1] for row in rows if row[0].strip().startswith(subject)]
    first = places.partition("`;")[0]
    assert file in first, "the first of its files is the one that decides"


def test_terms_of_the_glossary_are_used_in_the_code() -> None:
    rows = re.findall(r"^\| ([^|]+) \| [^|]+ \| `([^`]+)` \|$", prose_of(DOCS / "GLOSSARY.md"), re.MULTILINE)
    assert len(rows) > 40
    rooms = ("overlay", "spark_connector", "schemas", "jobs", "m4cast")
    files = [path for room in rooms for path in (ROOT / room).rglob("*.py") if path.is_file()]
    code = "\n".join(path.read_text(encoding="utf-8") for path in files)
    code += "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests" / "simulation").glob("*.py"))
    assert [term for term, name in rows if name not in code] == []
    terms = [term for row, _ in rows for term in row.split(", ")]
    assert [term for term, count in Counter(terms).items() if count > 1] == [], "one word, one meaning"


# ---- what no page has


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_no_page_names_this_machine_or_a_package_index(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    hosts = re.findall(r"https?://([\w.-]+)", text)
    allowed = {"127.0.0.1"}
    assert [host for host in hosts if host not in allowed and not host.endswith(".example.org")] == []
    assert re.findall(r"(?<![\w.])/(?:work|root|home|tmp)/", text) == []
