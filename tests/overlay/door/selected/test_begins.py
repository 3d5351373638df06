"""Beginnings of registrations at the door: by registering, by reading, and on the command line."""

import json
import time
from collections.abc import Iterator

import pytest
from click.testing import CliRunner

from m4cast.cli import main
from m4cast.overlay.client import Channel
from m4cast.overlay.door.refusals import Refusal
from m4cast.overlay.door.selected import reader_registrations
from m4cast.overlay.door.selected.begins import POSITIONS_MAX, Start, fits, wish_of
from m4cast.overlay.errors import RefusedError
from m4cast.overlay.ids import NodeId, StreamId
from m4cast.overlay.protocol.effects import Want
from tests.overlay.door.http.watched import until
from tests.overlay.door.selected.test_reads import numbers, publish, selective_at, stored
from tests.overlay.door.served import Served, serving

ONE, TWO = (NodeId(bytes([number]) * 16) for number in (1, 2))
S1, S2 = StreamId(ONE, "t"), StreamId(TWO, "t")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("begins")
    with serving(folder, 2, settings=lambda name: {"clock_skew_ms": 0}) as served:
        yield served


@pytest.mark.parametrize(
    ("want", "begins", "ends", "start", "expected"),
    [
        (Want("w", "t", None, 5, earliest=True), {S1: 1}, {S1: 9}, {S1: 3}, True),
        (Want("w", "t", None, 5, earliest=True), {S1: 1}, {S1: 9}, "earliest", True),
        (Want("w", "t", None, 5), {S1: 4}, {S1: 9}, "earliest", False),
        (Want("w", "t", None, 5), {S1: 4}, {S1: 9}, "latest", True),
        (Want("w", "t", None, 5), {S1: 4}, {S1: 9}, {S1: 4}, True),
        (Want("w", "t", None, 5), {S1: 4}, {S1: 9}, {S1: 3}, False),
        (Want("w", "t", None, 5), {S1: 4}, {S1: 9}, {S2: 3}, False),
        (Want("w", "t", None, 5), {S1: 4}, {S1: 9}, 7, False),
        (Want("w", "t", None, 5, from_ms=7), {S1: 4}, {S1: 9}, 7, True),
        (Want("w", "t", None, 5, from_ms=8), {S1: 4}, {S1: 9}, 7, False),
        (Want("w", "t", None, 5, from_ms=8), {S1: 4}, {S1: 9}, "earliest", False),
        (Want("w", "t", None, 5, positions={ONE: 4}), {S1: 4}, {S1: 9}, {S1: 4}, True),
        (Want("w", "t", None, 5, positions={ONE: 4, TWO: 2}), {S1: 4}, {S1: 9}, {S1: 4}, False),
        (Want("w", "t", None, 5, positions={ONE: 4}), {S1: 4}, {S1: 9}, "latest", True),
        (Want("w", "t", None, 5, positions={ONE: 10}), {S1: 10}, {S1: 9}, "latest", False),
        (Want("w", "t", None, 5, positions={ONE: 4}), {S1: 4}, {S1: 9}, 0, False),
    ],
)
def test_a_registration_fits_readers_that_start_where_it_begins_or_later(
    want: Want, begins: dict[StreamId, int], ends: dict[StreamId, int], start: Start, expected: bool
) -> None:
    assert fits(want, begins, ends, start) is expected


def test_a_position_of_first_rows_is_the_earliest_and_the_longest_position_passes() -> None:
    assert wish_of("w", "t", None, {S1: 1, StreamId(ONE, "u"): 9}).earliest
    many = {StreamId(NodeId(number.to_bytes(16, "big")), "t"): 2 for number in range(POSITIONS_MAX + 1)}
    with pytest.raises(Refusal, match="1,025 streams"):
        wish_of("w", "t", None, many)
    many.popitem()
    assert len(wish_of("w", "t", None, many).positions or {}) == POSITIONS_MAX


def test_a_registration_is_filled_from_its_time_or_position(pair: Served) -> None:
    origin, other = (Channel(address) for address in pair.addresses)
    own = pair.nodes[0].driver.node.me.node_id.hex()
    origin.create_topic("begun", keepers=0)
    publish(origin, "begun", 0, 6)
    between_ms = int(time.time() * 1000) + 1
    until(lambda: int(time.time() * 1000) > between_ms, "a later millisecond")
    publish(origin, "begun", 6, 3)
    until(lambda: "begun" in selective_at(pair, 1), "known there")
    with pytest.raises(RefusedError, match="names no stream of topic 'begun'"):
        other.register("begun", start={"else": {own: 3}})
    with pytest.raises(RefusedError, match="start must be earliest, latest, a time"):
        other._doors.ask_first("subscribe", {"topic": "begun", "start": -1})
    placed = ["subscribe", "begun", "--node", pair.addresses[1], "--wait", "active", "--json"]
    shown = CliRunner().invoke(main, [*placed, "--from", json.dumps({"begun": {own: 8}})])
    assert shown.exit_code == 0, shown.output
    assert json.loads(shown.stdout)["effective_from"] == {own: 8}
    until(lambda: stored(pair, 1, "begun") == 2, "rows 8 and 9")
    shown = CliRunner().invoke(main, [*placed, "--where", "n >= 0", "--from", str(between_ms)])
    assert shown.exit_code == 0, shown.output
    until(lambda: other.active("begun", "n >= 0").effective_from == {own: 7}, "from the time on")
    until(lambda: stored(pair, 1, "begun") == 3, "rows 7 to 9")
    starts = {each["where"]: each["start"] for each in other.subscriptions("begun")["own"]}
    assert starts == {"": {own: 8}, "n >= 0": between_ms}
    for wrong in (["--from", "{"], ["--from", "yesterday"], ["--from", "latest", "--earliest"]):
        assert CliRunner().invoke(main, [*placed, *wrong]).exit_code == 2


def test_readers_from_a_time_and_from_positions_fetch_no_earlier_rows(
    pair: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    origin, reader = (Channel(address) for address in pair.addresses)
    own = pair.nodes[0].driver.node.me.node_id.hex()
    origin.create_topic("dated", keepers=0)
    publish(origin, "dated", 0, 6)
    between_ms = int(time.time() * 1000) + 1
    until(lambda: int(time.time() * 1000) > between_ms, "a later millisecond")
    publish(origin, "dated", 6, 4)
    until(lambda: "dated" in selective_at(pair, 1), "known there")
    tail = reader.tail("dated", between_ms)
    assert [next(tail)["n"].to_pylist() for _ in range(4)] == [[6], [7], [8], [9]]
    tail.close()
    assert stored(pair, 1, "dated") == 4
    with reader.subscribe("dated", start=between_ms) as subscription:
        assert subscription.effective_from == {"dated": {own: 7}}
    assert [each["start"] for each in reader.subscriptions("dated")["own"]] == [between_ms], "both read by one"
    monkeypatch.setattr(reader_registrations, "DATED_MAX", 2)
    for first, held in ((6, 5), (5, 10), (2, 10)):
        assert reader.read("dated", {"dated": {own: first}})["n"].to_pylist() == list(range(first - 1, 10))
        assert stored(pair, 1, "dated") == held
    starts = [each["start"] for each in reader.subscriptions("dated")["own"]]
    assert starts == [between_ms, {own: 6}, "earliest"], "those who go back in steps share one"


def test_a_lease_is_of_the_rows_that_its_reader_filters_for(pair: Served) -> None:
    origin, reader = (Channel(address) for address in pair.addresses)
    own = pair.nodes[0].driver.node.me.node_id.hex()
    origin.create_topic("leased", keepers=0, route_by=["country"])
    publish(origin, "leased", 0, 9)
    until(lambda: "leased" in selective_at(pair, 1), "known there")
    polish, german = "country = 'PL'", "country = 'DE'"
    until(lambda: numbers(reader, "leased", "PL") == [0, 3, 6], "those of one reader")
    until(lambda: numbers(reader, "leased", "DE") == [1, 4, 7], "those of another")
    reader.lease("pl", {"leased": {own: 2}}, where=polish)
    reader.lease("de", topics="leased", where="country IN ('DE')")
    reader.lease("all", topics="leased")
    behind = {each["reader"]: each["rows_behind"] for each in reader.readers()}
    assert behind == {"pl": 2, "de": 3, "all": 6}
    selective = pair.doors[1].services.topics.selective

    async def sweep() -> None:
        selective.readers.kept_s = 0.0
        for _ in range(2):
            selective.readers.sweep()

    assert reader.release("all") and reader.release("pl")
    pair.run(sweep())
    until(
        lambda: [each["where"] for each in reader.subscriptions("leased")["own"]] == [german], "the other is given up"
    )
    assert reader.release("de")
