"""The files of the console: public, complete, of this door alone, and under a policy that keeps them harmless."""

import re
from collections.abc import Iterator
from html.parser import HTMLParser

import pytest

from m4cast.overlay.door.console.files import PAGE, STATIC, console_files
from tests.overlay.door.web.doors import WebServed, web_serving

VENDOR = STATIC / "vendor"
OWN = [path for path in sorted(STATIC.rglob("*")) if path.is_file() and VENDOR not in path.parents]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebServed]:
    folder = tmp_path_factory.mktemp("console")
    tokens = folder / "tokens.toml"
    tokens.write_text(
        '[[token]]\nname = "all"\nsecret = "everything-everything"\nread = ["*"]\n'
        '[[token]]\nname = "some"\nsecret = "something-something"\nread = ["orders"]\n'
        '[[token]]\nname = "few"\nsecret = "filtered-filtered"\nread = ["*"]\nwhere = {"*" = "id = 1"}\n',
        encoding="utf-8",
    )
    with web_serving(folder, 1, tokens=f"file:{tokens}") as web:
        yield web


def test_the_page_and_its_files_need_no_token(guarded: WebServed) -> None:
    page = guarded.get("/")
    assert page.status == 200 and page.body == (STATIC / PAGE).read_bytes()
    for name in console_files():
        answer = guarded.get(f"/console/{name}", Origin="http://anywhere.example")
        assert (answer.status, answer.body) == (200, console_files()[name].content), name
    assert guarded.get("/topology").status == 401


def test_a_page_may_do_nothing_but_talk_to_its_own_node(guarded: WebServed) -> None:
    for path in ("/", "/console/console.js"):
        headers = guarded.get(path).headers
        policy = dict(rule.split(" ", 1) for rule in headers["content-security-policy"].split("; "))
        assert policy["default-src"] == "'none'" and policy["frame-ancestors"] == "'none'"
        assert {policy[kind] for kind in ("script-src", "style-src", "connect-src", "img-src")} == {"'self'"}
        assert policy["require-trusted-types-for"] == "'script'"
        assert headers["x-content-type-options"] == "nosniff" and headers["referrer-policy"] == "no-referrer"


def test_a_file_that_a_browser_has_is_not_sent_again(guarded: WebServed) -> None:
    tag = guarded.get("/console/console.js").headers["etag"]
    again = guarded.ask("GET", "/console/console.js", headers={"If-None-Match": tag})
    assert (again.status, again.body) == (304, b"")


@pytest.mark.parametrize("name", ["no.js", "..%2ffiles.py", "%2e%2e/files.py", "uplot.js", "views", "files.py"])
def test_nothing_else_is_served(guarded: WebServed, name: str) -> None:
    assert guarded.get(f"/console/{name}").status == 404


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.files: list[str] = []
        self.inline: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        source = given.get("src") or (given.get("href") if tag == "link" else None)
        if source:
            self.files.append(source)
        elif tag in ("script", "style"):
            self.inline.append(tag)
        self.inline += [name for name in given if name.startswith("on") or name == "style"]


def test_the_page_has_nothing_inline_and_every_file_that_it_names() -> None:
    page = _Page()
    page.feed((STATIC / PAGE).read_text("utf-8"))
    assert page.inline == [] and page.files
    assert {name.removeprefix("/console/") for name in page.files} <= set(console_files())
    for script in (path for path in OWN if path.suffix == ".js"):
        for module in re.findall(r'from "(\.[^"]+)"', script.read_text("utf-8")):
            name = (script.parent / module).resolve().relative_to(STATIC.resolve()).as_posix()
            assert name in console_files(), f"{script.name} imports {module}"


def test_no_foreign_host_and_no_markup_from_text() -> None:
    for path in OWN:
        text = path.read_text("utf-8").replace("http://www.w3.org/2000/svg", "")
        assert "://" not in text, path.name
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text), (
            path.name
        )


def test_every_library_is_there_with_its_licence() -> None:
    listed = (VENDOR / "licences.txt").read_text("utf-8")
    for path in VENDOR.iterdir():
        if path.name != "licences.txt":
            assert re.search(rf"\b{re.escape(path.name)}\b", listed), f"{path.name} has no licence in licences.txt"
    assert listed.count("Copyright") >= 5


# ---- what the console asks for


def test_metrics_take_the_right_to_read_everything(guarded: WebServed) -> None:
    found = {
        name: guarded.get("/metrics.json", Authorization=f"Bearer {secret}")
        for name, secret in {
            "all": "everything-everything",
            "some": "something-something",
            "few": "filtered-filtered",
        }.items()
    }
    assert {name: answer.status for name, answer in found.items()} == {"all": 200, "some": 403, "few": 403}
    metrics = found["all"].json
    assert metrics["m4cast_published_rows_total"] == [[{}, 0]]
    assert [{"how": "pushed"}, 0] in metrics["m4cast_delivered_rows_total"]


def test_the_tree_of_a_root(pair: WebServed) -> None:
    topology = pair.get("/topology").json
    here = topology["node_id"]
    (other,) = (node["node_id"] for node in topology["nodes"] if node["node_id"] != here)
    assert not any(node["silent"] for node in topology["nodes"]) and topology["channel"] == "m4cast/default"
    assert pair.get(f"/topology?root={here}").json["tree"] == {other: here}
    assert pair.get(f"/topology?root={other}").json["tree"] == {here: other}
    assert pair.get(f"/topology?root={'0' * 32}").json["tree"] == {}
    assert pair.get("/topology?root=n1").json["code"] == "bad-request"
