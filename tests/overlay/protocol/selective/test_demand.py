"""Demand: whom a batch of mail is for, by the rows of clients."""

import pyarrow as pa
from xxhash import xxh3_64_intdigest

from m4cast.overlay.ids import NodeId, StreamId
from m4cast.overlay.profiles import summarise, summary_bytes
from m4cast.overlay.protocol.selective.demand import Demand
from m4cast.overlay.protocol.wire.batch import SUMMARY_EXTENSION, Batch, Extension
from m4cast.overlay.protocol.wire.interest import MAIL_HASH, InterestItem, InterestKey

ONE, TWO, KEEPER, ORIGIN = (NodeId(bytes([number]) * 16) for number in range(1, 5))


def row(key: str) -> InterestItem:
    return InterestItem(MAIL_HASH, xxh3_64_intdigest(key.encode()), 3, 0, False, "client", 1, f"{key} abcd")


def mail(*to: str, topic: str = "_mail", summarised: bool = True) -> Batch:
    rows = pa.record_batch({"_to": list(to)})
    summary = summary_bytes.encode(summarise(rows, [("_to",)]))
    extensions = (Extension(SUMMARY_EXTENSION, must_understand=False, value=summary),) if summarised else ()
    return Batch(
        stream=StreamId(ORIGIN, topic),
        incarnation=1,
        first_sequence=1,
        row_count=len(to),
        origin_batch=1,
        schema_id=1,
        published_at_ms=0,
        publisher="",
        position="",
        part=0,
        parts=1,
        previous_checksum=0,
        payload=b"",
        extensions=extensions,
    )


def demand() -> Demand:
    made = Demand()
    made.change(ONE, 1, [row("ann"), row("bob")], [])
    made.change(TWO, 1, [row("carl")], [])
    return made


def test_mail_goes_to_the_nodes_of_the_clients_that_it_is_for() -> None:
    made = demand()
    assert list(made.takers(mail("ann"))) == [ONE]
    assert list(made.takers(mail("carl", "carl"))) == [TWO]
    assert sorted(made.takers(mail("bob", "carl"))) == [ONE, TWO]
    assert list(made.takers(mail("nobody"))) == []
    assert sorted(made.interested(ORIGIN, "_mail")) == [ONE, TWO]


def test_doubt_is_a_match_and_other_topics_are_not_mail() -> None:
    made = demand()
    assert sorted(made.takers(mail("ann", summarised=False))) == [ONE, TWO]
    assert sorted(made.takers(mail(*map(str, range(100))))) == [ONE, TWO], "too many to be listed"
    assert list(made.takers(mail("ann", topic="letters"))) == []


def test_clients_that_left_get_nothing_there() -> None:
    made = demand()
    made.change(ONE, 2, [], [InterestKey(MAIL_HASH, xxh3_64_intdigest(b"ann"))])
    assert list(made.takers(mail("ann"))) == []
    assert list(made.takers(mail("bob"))) == [ONE]
    made.remove(ONE)
    assert list(made.takers(mail("bob"))) == []
