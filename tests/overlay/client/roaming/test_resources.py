"""Resources of clients: what stands in a table, by owner and name, and profiles that begin with it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from m4cast.overlay.client import Channel, Client
from m4cast.overlay.errors import LocalProtocolError
from tests.overlay.client.roaming.test_client import IDLE_S, client_of, created
from tests.overlay.client.roaming.waiting import until, until_ready
from tests.overlay.door.served import Served, serving, told_doors


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("resources"), 3, settings=told_doors(3)) as served:
        yield served


def names(client: Client) -> list[str]:
    return [name for rows in client.notifications(idle_s=IDLE_S) for name in rows.column("_name").to_pylist()]


def test_system_attributes_are_filled_in(served: Served, tmp_path: Path) -> None:
    file = tmp_path / "thesis.pdf"
    file.write_bytes(b"x" * 676_318)
    client = created(served, "213")
    client.publish_resource("f7", "thesis.pdf", file=str(file), title="P2P-DIET: A Query", author="Stratos Idreos")
    (row,) = client.resources("f7").to_pylist()
    assert {each: row[each] for each in ("key", "type", "name", "size", "path", "title", "author")} == {
        "key": "213",
        "type": "pdf",
        "name": "thesis",
        "size": 676_318,
        "path": str(file),
        "title": "P2P-DIET: A Query",
        "author": "Stratos Idreos",
    }
    client.publish_resource("f7", "notes", pages=3)
    (row,) = client.resources("f7", "_name = 'notes'").to_pylist()
    assert (row["type"], row["title"], row["size"], row["pages"]) == (None, None, None, 3)
    for taken in ("size", "key", "_owner"):
        attributes: dict[str, Any] = {taken: "1"}
        with pytest.raises(LocalProtocolError, match="filled in by the library"):
            client.publish_resource("f7", "other", **attributes)
    client.remove_resource("f7", "thesis.pdf")
    assert file.exists()
    assert client.resources("f7")["_name"].to_pylist() == ["notes"]
    client.disconnect()


def test_a_profile_finds_what_stands_then_what_comes_each_version_once(served: Served) -> None:
    ann, bob = created(served, "stand-a"), created(served, "stand-b", at=1)
    for name, pages in (("one.pdf", 1), ("two.pdf", 2), ("three.doc", 3), ("four.pdf", 4)):
        ann.publish_resource("standing", name, pages=pages, acks=2)
    ann.publish_resource("standing", "one.pdf", pages=10, acks=2)
    ann.remove_resource("standing", "two.pdf", acks=2)
    bob.subscribe("standing", "type = pdf", language="diet", start="standing", name="pdf")
    ann.publish_resource("standing", "five.pdf", pages=5, acks=2)
    assert names(bob) == ["four.pdf", "one.pdf", "five.pdf"]
    bob.subscribe("standing", None, start="standing", name="all")
    assert names(bob) == ["three.doc"]  # the other profile gave the rest
    ann.publish_resource("standing", "four.pdf", pages=40, acks=2)
    ann.publish_resource("standing", "six.doc", pages=6, acks=2)
    assert names(bob) == ["four.pdf", "six.doc"]
    with pytest.raises(LocalProtocolError, match="began with what stood"):
        bob.subscribe("standing", "pages > 1", start="earliest", name="more")
    assert set(bob.profiles) == {"pdf", "all"}
    assert names(bob) == []
    ann.disconnect()
    bob.disconnect()


def test_what_stands_is_found_elsewhere_when_the_client_leaves_before_it_reads(served: Served) -> None:
    ann, bob = created(served, "leave-a"), created(served, "leave-b", at=1)
    for number in range(3):
        ann.publish_resource("leaving-table", f"r{number}", acks=2)
    ann.publish_resource("leaving-table", "r0", acks=2)
    bob.subscribe("leaving-table", start="standing")
    bob.disconnect()
    ann.publish_resource("leaving-table", "r1", acks=2)  # stood when bob subscribed; a new version comes
    back = client_of(served, bob.key, at=2)
    back.connect()
    assert names(back) == ["r1", "r2", "r0", "r1"]
    back.disconnect()


def test_an_owner_that_moves_goes_on_with_a_greater_version(served: Served) -> None:
    client = created(served, "owner-moves")
    client.publish_resource("moved", "r", n=1, acks=2)
    again = client_of(served, client.key)  # another process at the same node, in the same session
    again.connect()
    again.publish_resource("moved", "r", n=2, acks=2)
    again.move(served.addresses[1])
    again.publish_resource("moved", "r", n=3, acks=2)
    rows = Channel([served.addresses[2]]).read("moved").to_pylist()
    versions = {row["n"]: (row["_version"]["session"], row["_version"]["counter"]) for row in rows}
    assert versions == {1: (1, 1), 2: (1, 2), 3: (2, 1)}
    assert [row["n"] for row in Channel([served.addresses[2]]).table("moved").to_pylist()] == [3]
    again.disconnect()


def test_a_query_answers_what_is_there_and_changes_nothing(served: Served) -> None:
    ann, bob = created(served, "ask-a"), created(served, "ask-b", at=1)
    for number in range(4):
        ann.publish_resource("asked", f"r{number}.{'pdf' if number % 2 else 'doc'}", number=number, acks=2)
    for scope in ("node", "channel"):
        found = bob.query("asked", "type = pdf", language="diet", scope=scope)
        assert sorted(number for rows in found for number in rows.column("number").to_pylist()) == [1, 3]
        assert found.unanswered == {}
    assert [rows.num_rows for rows in bob.query("asked", "number = 2")] == [1]
    ann.publish_resource("asked", "r5.pdf", number=5, acks=2)
    assert bob.profiles == {}
    ann.disconnect()
    bob.disconnect()


def test_rows_that_replace_others_reach_whoever_wanted_those(served: Served) -> None:
    """H37: on a selective table, a row matters to those who wanted what it replaces or removes."""
    ann = created(served, "h37-a")
    ann._at_access_point().create_topic("cities", keepers=0, route_by=["country"])
    bob = Channel([served.addresses[1]])
    bob.register("cities", "country = 'PL'", start="earliest")
    assert bob.active("cities", "country = 'PL'").is_active
    until_ready(lambda: ann.publish_resource("cities", "lwow", country="PL"))
    ann.publish_resource("cities", "lublin", country="PL")
    ann.publish_resource("cities", "lwow", country="UA")
    ann.remove_resource("cities", "lublin")
    ann.publish_resource("cities", "gdansk", country="PL")

    def of_poland() -> list[str]:
        found: list[str] = bob.table("cities", "country = 'PL'")["_name"].to_pylist()
        return found

    until(of_poland, ["gdansk"])
    for scope in ("node", "channel"):
        asked = bob.query("cities", "country = 'PL'", scope=scope)
        assert [name for rows in asked for name in rows["_name"].to_pylist()] == ["gdansk"]
    ann.disconnect()
