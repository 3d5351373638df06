"""A token with a filter, by the ways of clients, groups and selective topics: its bearer gets such rows only."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from pyarrow import flight

from m4cast.overlay.client import Channel, Client, GroupMember
from m4cast.overlay.errors import RefusedError
from tests.overlay.client.roaming.waiting import until_ready
from tests.overlay.door.access.token_file import call_options_of, channel_of, secret_of, token_file
from tests.overlay.door.served import Served, serving, told_doors

CREDENTIAL = "a-secret-of-this-test"
READS = 'read = ["*"]\nsubscribe = ["*"]\nclient = ["*"]'
FILE = token_file(
    all=f'publish = ["*"]\nadmin = true\n{READS}',
    poland=f'{READS}\nwhere = {{ "*" = "country = \'PL\'" }}',
)
ROWS = [{"n": n, "country": ["PL", "DE", None][n % 3]} for n in range(30)]
POLISH = [n for n in range(30) if n % 3 == 0]
IDLE_S = 0.5


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("filters")
    (folder / "tokens.toml").write_text(FILE, encoding="utf-8")
    with serving(folder, 1, tokens=f"file:{folder / 'tokens.toml'}", settings=told_doors(1)) as served:
        yield served


def client_of(served: Served, key: str, token: str) -> Client:
    client = Client(served.addresses, key=key, credential=CREDENTIAL, timeout_s=20, token=secret_of(token))
    client.connect(create=True)
    return client


def numbers(client: Client) -> list[int]:
    return [n for rows in client.notifications(idle_s=IDLE_S) for n in rows.column("n").to_pylist()]


def asked(served: Served, token: str, ticket: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows that a ticket of one's own making is answered with."""
    client = flight.FlightClient(f"grpc://{served.addresses[0]}")
    reader = client.do_get(flight.Ticket(json.dumps({"read": "profiles", **ticket}).encode()), call_options_of(token))
    rows: list[dict[str, Any]] = reader.read_all().to_pylist()
    return rows


def test_a_client_gets_rows_that_its_token_may_see_at_every_return(guarded: Served) -> None:
    whole = channel_of(guarded, "all")
    client = client_of(guarded, "roaming", "poland")
    client.subscribe("clients", "n >= 0", start="earliest")
    whole.publish("clients", ROWS)
    assert numbers(client) == POLISH
    client.disconnect()
    whole.publish("clients", ROWS)
    client.connect()
    client.subscribe("clients", "country = 'DE'", start="earliest", name="greedy")
    assert numbers(client) == POLISH
    client.disconnect()


def test_a_member_of_a_group_gets_rows_that_its_token_may_see(guarded: Served) -> None:
    whole = channel_of(guarded, "all")
    member = GroupMember(
        guarded.addresses, key="group", credential=CREDENTIAL, member="one", timeout_s=20, token=secret_of("poland")
    )
    member.connect(create=True)
    member.subscribe("grouped", start="earliest")
    whole.publish("grouped", ROWS)
    found = [n for rows in member.notifications(idle_s=2) for n in rows.column("n").to_pylist()]
    assert found == POLISH
    member.disconnect()


def test_what_stands_and_what_other_profiles_left_are_filtered(guarded: Served) -> None:
    whole = channel_of(guarded, "all")
    whole.table_writer("standing", "ann").put(
        {f"{row['n']:02}": {"n": row["n"], "country": row["country"]} for row in ROWS}
    )
    (origin,) = whole.frontier("standing")["standing"]
    end = {"standing": {origin: len(ROWS) + 1}}
    profiles = [{"topic": "standing", "where": "n >= 0"}]
    ticket = {"profiles": profiles, "end": end, "standing": end["standing"], "on_missing": "skip"}
    assert len(asked(guarded, "all", ticket)) == len(ROWS)
    assert [row["n"] for row in asked(guarded, "poland", ticket)] == POLISH
    left_out = [{"conditions": [["n < 10", None]], "begin": {origin: 1}, "hole": {}, "within": None}]
    ticket = {"profiles": profiles, "end": end, "left_out": left_out}
    assert [row["n"] for row in asked(guarded, "poland", ticket)] == [n for n in POLISH if n >= 10]


def test_of_mail_a_token_with_a_filter_opens_what_is_the_clients_own(guarded: Served) -> None:
    ann, bob = client_of(guarded, "ann", "all"), client_of(guarded, "bob", "poland")
    until_ready(lambda: ann.send("bob", "for bob"))
    ann.send("ann", "for ann alone")
    end = channel_of(guarded, "all").frontier("_mail")
    everything = {"profiles": [{"topic": "_mail"}], "end": end}
    assert [row["text"] for row in asked(guarded, "all", everything)] == ["for bob", "for ann alone"]
    assert asked(guarded, "poland", everything) == []
    others = {"profiles": [{"topic": "_mail", "where": "_to = 'ann'"}], "end": end}
    assert asked(guarded, "poland", others) == []
    with pytest.raises(flight.FlightServerError, match="client-elsewhere"):  # to say one's key is not enough
        asked(guarded, "poland", {**others, "key": "ann"})
    assert [message.text for message in bob.inbox(idle_s=IDLE_S)] == ["for bob"]


def test_selective_topics_are_filtered_by_every_way(guarded: Served) -> None:
    whole, poland = channel_of(guarded, "all"), channel_of(guarded, "poland")
    whole.create_topic("chosen", keepers=0)
    until_ready(lambda: whole.publish("chosen", ROWS))
    end = whole.frontier("chosen")
    for where, expected in (
        (None, POLISH),
        ("TRUE", POLISH),
        ("country = 'DE'", []),
        ("n < 10", [n for n in POLISH if n < 10]),
    ):
        assert poland.read("chosen", where=where)["n"].to_pylist() == expected
        tail = poland.tail("chosen", "earliest", where=where, idle_s=0.3)
        assert [row["n"] for batch in tail for row in batch.to_pylist()] == expected
    assert [n for batch in poland.query("chosen") for n in batch["n"].to_pylist()] == POLISH
    with pytest.raises(RefusedError, match="token 'poland'"):
        list(poland.read_batches("chosen", {}, end, form="raw"))
    client = client_of(guarded, "selective", "poland")
    client.subscribe("chosen", "n >= 0", start="earliest")
    assert numbers(client) == POLISH
    client.disconnect()


def test_costs_of_filters_are_not_counted_for_who_may_not_read_the_topic_whole(guarded: Served) -> None:
    whole, poland = channel_of(guarded, "all"), channel_of(guarded, "poland")
    whole.create_topic("costly", keepers=0)
    whole.register("costly", "country = 'DE'", start="earliest")
    until_ready(lambda: whole.publish("costly", ROWS))

    def costs(channel: Channel) -> list[Any]:
        return [each["cost"] for each in channel.subscriptions("costly", costs=True)["own"]]

    (counted,) = costs(whole)
    assert counted["matched_rows"] == 10
    assert costs(poland) == [None]
