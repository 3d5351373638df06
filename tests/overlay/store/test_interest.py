"""Registrations, their history and the state of the entry come back from a real store as they were written."""

from dataclasses import replace
from pathlib import Path

from m4cast.overlay.protocol.effects import (
    Append,
    InterestSpan,
    InterestSpanRecord,
    InterestState,
    InterestStateRecord,
    Registration,
    RegistrationRecord,
)
from m4cast.overlay.protocol.wire.batch import How
from m4cast.overlay.protocol.wire.frame import seal
from m4cast.overlay.protocol.wire.selective import spread_extension
from m4cast.overlay.store.inspection import check
from tests.overlay.protocol.stream_parts import chain, stream_id
from tests.overlay.store.store_parts import opened, received, synced

ROW = Registration(
    topic="żółw",
    language="sql",
    version=1,
    text="country = 'PL'",
    canonical="`country` = 'PL'",
    owner="ann",
    epoch=3 << 32,
    since_ms=1_790_000_000_000,
    earliest=True,
    under="",
)

DATED = replace(ROW, earliest=False, from_ms=1_780_000_000_000)
PLACED = replace(ROW, earliest=False, positions={stream_id().origin: 17})

SPAN = InterestSpan(
    id="ann/ż",
    topic="żółw",
    language="sql",
    text="country = 'PL'",
    owner="ann",
    epoch=3 << 32,
    earliest=True,
    incarnation=3,
    ts=7,
    from_ms=1_790_000_000_000,
    revision=1,
)


def test_spans_come_back_and_are_removed(tmp_path: Path) -> None:
    ended = replace(SPAN, until_ms=1_790_000_000_001, until_incarnation=3, until_ts=8, revision=300)
    with opened(tmp_path) as store:
        synced(store, Append(1, (InterestSpanRecord(1, SPAN), InterestSpanRecord(256, SPAN))))
        synced(store, Append(2, (InterestSpanRecord(1, None), InterestSpanRecord(256, ended))))
    assert check(tmp_path).problems == []
    with opened(tmp_path) as store:
        assert store.recovered.of(InterestSpanRecord) == {256: ended}


def test_registrations_come_back(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        assert store.recovered.of(RegistrationRecord) == {}
        assert store.recovered.of(InterestStateRecord) == {}
        first = Append(
            1,
            (
                RegistrationRecord("ann/ż", ROW),
                RegistrationRecord("b", ROW),
                RegistrationRecord("dated", DATED),
                RegistrationRecord("placed", PLACED),
                InterestStateRecord("", InterestState(1, 1, 0)),
            ),
        )
        synced(
            store, first, Append(2, (RegistrationRecord("b", None), InterestStateRecord("", InterestState(1, 2, 1))))
        )
    assert check(tmp_path).problems == []
    with opened(tmp_path) as store:
        assert store.recovered.of(RegistrationRecord) == {"ann/ż": ROW, "dated": DATED, "placed": PLACED}
        assert store.recovered.of(InterestStateRecord) == {"": InterestState(1, 2, 1)}


def test_a_delivery_record_says_whether_its_stream_is_selective(tmp_path: Path) -> None:
    (plain,), (other,) = chain(1), chain(1, stream=stream_id("p", "u"))
    selective = seal(replace(other, extensions=(spread_extension(2),)))
    with opened(tmp_path) as store:
        synced(store, received(1, plain, selective))
        records = store.read_deliveries(0, 10)
    assert [(record.delivery.stream.topic, record.is_selective) for record in records] == [
        (plain.stream.topic, False),
        ("u", True),
    ]
    assert {record.delivery.how for record in records} == {How.PUSHED}
