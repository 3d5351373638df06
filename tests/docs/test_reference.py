"""What the pages name exists: links, files, commands, scenarios, terms; and no snippet hides from its test."""

import re
import tomllib
from collections import Counter
from pathlib import Path

import pytest

from m4cast.cli import SUBCOMMANDS
from m4cast.overlay.sim.scenarios import SCENARIOS
from tests.docs.pages import DOCS, PAGES, ROOT, prose_of, snippets_of

RUN = {"console", "python", "sql", "toml"}
"""Run, or parsed, by `Walkthrough`."""
NOT_RUN = {
    "CONTRIBUTING.md": 1,
    "README.md": 2,
    "docs/ARCHITECTURE.md": 1,
    "docs/AUDIT.md": 1,
    "docs/FILTERS.md": 3,
    "docs/JOBS.md": 2,
    "docs/KAFKA.md": 1,
    "docs/METRICS.md": 1,
    "docs/OPERATIONS.md": 2,
    "docs/PERFORMANCE.md": 1,
    "docs/QUICKSTART.md": 1,
}
"""Snippets marked `text`, or in a language that no test runs, by page. They need what a test does not have: systemd, a
package installation, hours. Whoever adds one says so here."""


FOLLOWED_ELSEWHERE = {"CLIENT.md", "FILTERS.md"}
"""By tests/overlay/client/test_document.py and tests/overlay/profiles/test_docs.py."""


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
    """Of its headings, as GitHub makes them."""
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


# ---- files and terms


def test_files_that_the_architecture_names_exist() -> None:
    text = (DOCS / "ARCHITECTURE.md").read_text(encoding="utf-8")
    paths = set(re.findall(r"`((?:overlay|m4cast|spark_connector|jobs|schemas|conf|tests|docs)/[\w./-]*)`", text))
    assert len(paths) >= 30
    assert sorted(path for path in paths if not (ROOT / path).exists()) == []


def test_the_two_guesses_are_listed() -> None:
    text = (DOCS / "ARCHITECTURE.md").read_text(encoding="utf-8")
    table = text.partition("## Where do I change ...")[2].partition("\n## ")[0]
    changes = [line.split("|")[1].strip() for line in table.splitlines() if line.startswith("| ")][2:]
    assert len(changes) >= 12 and len(set(changes)) == len(changes)


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


def test_configuration_snippets_are_valid_toml() -> None:
    for page in PAGES:
        for snippet in snippets_of(page):
            if snippet.language == "toml":
                tomllib.loads(snippet.text)
