"""A token with a filter: its bearer gets such rows only, by every way on which rows leave a node."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

from m4cast.overlay.client.ranges import Form
from m4cast.overlay.door.access.rights import Rights
from m4cast.overlay.door.access.tokens import Tokens
from m4cast.overlay.errors import ConfigError, RefusedError
from m4cast.overlay.profiles import mask, parse
from tests.overlay.door.access.token_file import call_options_of, channel_of, token_file
from tests.overlay.door.served import Served, serving

FILE = token_file(
    all='publish = ["*"]\nread = ["*"]\nadmin = true',
    poland='read = ["*"]\nwhere = { "orders*" = "country = \'PL\'" }',
    rich='read = ["orders"]\nwhere = { orders = "amount > 100" }',
    both="""read = ["orders"]
where = { orders = "amount > 100", "*" = "country = 'PL'" }
filter_cpu = 0.5""",
)
ROWS: list[dict[str, Any]] = [
    {"id": number, "country": ["PL", "DE", None][number % 3], "amount": 10 * number, "note": f"secret {number}"}
    for number in range(60)
]
ALLOWED: dict[str, Callable[[dict[str, Any]], bool]] = {
    "all": lambda row: True,
    "poland": lambda row: row["country"] == "PL",
    "rich": lambda row: row["amount"] > 100,
    "both": lambda row: row["country"] == "PL" and row["amount"] > 100,
}
WHERES = [None, "TRUE", "country = 'DE'", "amount <= 100 OR country IS NULL", "country = 'PL' AND id = 33", "id >= 0"]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("filters")
    (folder / "tokens.toml").write_text(FILE, encoding="utf-8")
    with serving(folder, 1, tokens=f"file:{folder / 'tokens.toml'}") as served:
        channel = channel_of(served, "all")
        for first in range(0, 60, 7):
            channel.publish("orders", ROWS[first : first + 7])
        channel.publish("free", ROWS)
        yield served


def allowed(token: str, where: str | None) -> list[int]:
    """The ids that the token's bearer gets if it asks for this."""
    passes = mask(parse(where or "TRUE").condition, pa.RecordBatch.from_pylist(ROWS)).tolist()
    return [row["id"] for row, wanted in zip(ROWS, passes, strict=True) if wanted and ALLOWED[token](row)]


@pytest.mark.parametrize("where", WHERES)
@pytest.mark.parametrize("token", ALLOWED)
def test_no_read_gives_a_row_that_the_token_may_not_see(guarded: Served, token: str, where: str | None) -> None:
    channel = channel_of(guarded, token)
    expected = allowed(token, where)
    end = channel.frontier("orders")
    assert channel.read("orders", "earliest", end, where=where)["id"].to_pylist() == expected
    forms: list[Form] = ["rows", "batches"]
    for form in forms:
        reader = channel.read_batches("orders", {}, end, where=where, form=form)
        assert [row["id"] for batch in reader for row in batch.to_pylist()] == expected
        assert reader.frontier == end
    tail = channel.tail("orders", "earliest", where=where, idle_s=0.1)
    assert [row["id"] for batch in tail for row in batch.to_pylist()] == expected


def test_a_table_shows_what_stands_and_may_be_seen(guarded: Served) -> None:
    """A row that was replaced by one that the bearer may not see is gone for it, too."""
    writer = channel_of(guarded, "all").table_writer("orders.table", "ann")
    writer.put({"a": {"country": "PL"}, "b": {"country": "PL"}, "c": {"country": "DE"}})
    writer.put({"a": {"country": "DE"}})
    poland = channel_of(guarded, "poland")
    for where in (None, "TRUE", "country = 'DE' OR country = 'PL'"):
        assert poland.table("orders.table", where)["_name"].to_pylist() == ["b"]
    assert [row["_name"] for batch in poland.query("orders.table") for row in batch.to_pylist()] == ["b"]
    with pytest.raises(RefusedError, match="admin"):
        poland.compact_table("orders.table")


def test_tails_of_several_tokens_on_one_topic_do_not_mix(guarded: Served) -> None:
    channel = channel_of(guarded, "all")
    tails = {
        token: channel_of(guarded, token).subscribe("orders.live", start="earliest") for token in ("poland", "all")
    }
    try:
        channel.publish("orders.live", ROWS)
        for token, subscription in tails.items():
            found: list[int] = []
            expected = allowed(token, None)
            while len(found) < len(expected):
                batch = subscription.acquire(30)
                assert batch is not None
                found += batch["id"].to_pylist()
            assert found == expected
    finally:
        for subscription in tails.values():
            subscription.close()


def test_a_plain_ticket_without_where_is_filtered_too(guarded: Served) -> None:
    client = flight.FlightClient(f"grpc://{guarded.addresses[0]}")
    options = call_options_of("poland")
    reader = client.do_get(flight.Ticket(json.dumps({"topic": "orders", "end": "latest"}).encode()), options)
    ids: list[int] = []
    profiles = set()
    for chunk in reader:
        ids += chunk.data["id"].to_pylist()
        profiles.add(json.loads(chunk.app_metadata.to_pybytes())["profile"])
    assert ids == allowed("poland", None)
    assert profiles == {parse("country = 'PL'").id.hex()}, "the certificate names what was given"
    info = client.get_flight_info(flight.FlightDescriptor.for_path("orders"), options)
    assert info.total_records == -1
    again = client.do_get(info.endpoints[0].ticket, options).read_all()
    assert again["id"].to_pylist() == ids


REFUSED: dict[str, Any] = {
    "raw": lambda channel: list(channel.read_batches("orders", {}, channel.frontier("orders"), form="raw")),
    "raw of several": lambda channel: list(
        channel.read_batches(["free", "orders"], {}, channel.frontier(["free", "orders"]), form="raw")
    ),
    "raw with where": lambda channel: list(
        channel.read_batches("orders", {}, channel.frontier("orders"), form="raw", where="country = 'PL'")
    ),
    "deliveries": lambda channel: channel.deliveries(),
    "delivery range": lambda channel: channel.delivery_range(),
}


@pytest.mark.parametrize("way", REFUSED)
def test_what_would_show_other_rows_is_refused(guarded: Served, way: str) -> None:
    REFUSED[way](channel_of(guarded, "all"))
    with pytest.raises(RefusedError, match="token 'poland'") as refused:
        REFUSED[way](channel_of(guarded, "poland"))
    assert refused.value.code == "forbidden"


def test_raw_reads_of_other_topics_are_not_refused(guarded: Served) -> None:
    channel = channel_of(guarded, "poland")
    assert list(channel.read_batches("free", {}, channel.frontier("free"), form="raw"))
    assert channel.read("free").num_rows == 60
    both = channel.read(["free", "orders"])
    assert both.num_rows == 60 + len(allowed("poland", None))


def test_statistics_of_a_topic_leave_out_what_other_rows_add_to(guarded: Served) -> None:
    whole, cut = (channel_of(guarded, token).describe("orders") for token in ("all", "poland"))
    assert whole["rows"] == 60 and whole["bytes"] > 0
    assert cut["rows"] is None and cut["bytes"] is None
    assert all(stream["bytes"] is None and stream["batches"] is None for stream in cut["streams"].values())
    assert cut["columns"] == whole["columns"]
    assert channel_of(guarded, "poland").describe("free")["rows"] == 60


def test_explain_counts_only_rows_that_the_token_may_see(guarded: Served) -> None:
    explained = {name: channel_of(guarded, name).explain("orders", "amount >= 0") for name in ("all", "poland")}
    assert explained["all"]["matching_rows"] == 60
    for decided_by_whole_batches in ("passed_over_batches", "error_rows", "cpu_ms_per_million_rows"):
        assert explained["all"][decided_by_whole_batches] is not None
        assert explained["poland"][decided_by_whole_batches] is None
    assert explained["poland"]["matching_rows"] == len(allowed("poland", None))
    assert explained["poland"]["canonical"] == parse("amount >= 0").text, "not the filter of the token"


# ---- the file


def tokens(tmp_path: Path, more: str) -> Tokens:
    path = tmp_path / "tokens.toml"
    path.write_text(f'[[token]]\nname = "t"\nsecret = "0123456789abcdef"\n{more}\n', encoding="utf-8")
    return Tokens(f"file:{path}")


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ('where = { orders = "country == " }', r"token 't': where of 'orders': at character \d+: "),
        ("where = { orders = 5 }", "token 't': where must be a table"),
        ("where = \"country = 'PL'\"", "token 't': where must be a table"),
        ('where = { orders = "' + "x" * 4_097 + '" }', "4097 bytes, at most 4096"),
        ("filter_cpu = 0", "token 't': filter_cpu must be a share of a core from 0.001 to 64"),
        ("filter_cpu = true", "token 't': filter_cpu must be"),
        ("filter_cpu = 64.1", "token 't': filter_cpu must be"),
        ("filter = 1", "unknown field 'filter'"),
    ],
)
def test_a_file_with_a_bad_filter_stops_the_node_with_name_and_place(tmp_path: Path, more: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as error:
        tokens(tmp_path, more)
    assert str(tmp_path / "tokens.toml") in str(error.value)


def test_limits_of_a_token_at_their_ends(tmp_path: Path) -> None:
    many = ", ".join(f'"t{at}" = "n = {at}"' for at in range(100))
    rights = tokens(tmp_path, f"where = {{ {many} }}\nfilter_cpu = 0.001").rights_of("0123456789abcdef")
    assert rights is not None and rights.filter_cpu == 0.001 and len(rights.where) == 100
    with pytest.raises(ConfigError, match="at most 100 topic patterns"):
        tokens(tmp_path, f'where = {{ {many}, more = "TRUE" }}')


def test_a_token_may_have_the_longest_filter_and_the_largest_budget(tmp_path: Path) -> None:
    where = "n = 1".ljust(4_096)
    rights = tokens(tmp_path, f'where = {{ t = "{where}" }}\nfilter_cpu = 64').rights_of("0123456789abcdef")
    assert rights is not None and rights.filter_cpu == 64
    assert rights.filter_of("t") == parse(where)


def test_filters_of_all_patterns_that_match_apply_together() -> None:
    rights = Rights("t", read=("*",), where=(("orders", parse("a = 1")), ("o*", parse("b = 2")), ("x", parse("c = 3"))))
    orders = rights.filter_of("orders")
    assert orders is not None and orders.id == parse("a = 1 AND b = 2").id
    assert rights.filter_of("other") == parse("b = 2")
    assert rights.filter_of("free") is None
    found = rights.filters(("orders", "free"), parse("d = 4"))
    assert found["orders"].id == parse("a = 1 AND b = 2 AND d = 4").id
    assert found["free"].id == parse("d = 4").id
    assert rights.filters(("free",), None) == {}
