"""The Delta tables: each definition is whole, and every topic has a table of its own."""

from random import Random
from urllib.parse import quote

import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from m4cast.overlay.ids import TOPIC_BYTES_MAX
from m4cast.schemas.tables.audit_runs import AUDIT_RUNS
from m4cast.schemas.tables.dead_letters import DEAD_LETTERS
from m4cast.schemas.tables.deliveries import DELIVERIES
from m4cast.schemas.tables.delivery_audit import DELIVERY_AUDIT
from m4cast.schemas.tables.events import events_table
from m4cast.schemas.tables.interest import INTEREST
from m4cast.schemas.tables.ordering_gaps import ORDERING_GAPS
from m4cast.schemas.tables.query_progress import QUERY_PROGRESS
from m4cast.schemas.tables.roster import ROSTER
from m4cast.schemas.tables.table import Table

EVENTS = events_table("orders/eu", StructType([StructField("price", LongType())]))
TABLES = (EVENTS, DELIVERIES, ROSTER, INTEREST, ORDERING_GAPS, DELIVERY_AUDIT, AUDIT_RUNS, DEAD_LETTERS, QUERY_PROGRESS)


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_a_definition_is_whole(table: Table) -> None:
    names = [each.name for each in table.columns]
    assert len(set(names)) == len(names)
    named = {*table.key, table.time, *table.partition_by, *table.cluster_by}
    assert named <= set(names)
    assert table.comment


def topics(random: Random, count: int) -> set[str]:
    """Names that the door takes: printable text of up to 200 bytes."""
    letters = "ab .,/'\"%~`${}[]\\éß語😀"
    found = {"".join(random.choices(letters, k=random.randint(1, 200))) for _ in range(count)}
    return {name for name in found if len(name.encode()) <= TOPIC_BYTES_MAX}


def test_every_legal_topic_has_a_place_of_its_own() -> None:
    names = topics(Random("names"), 2_000)
    longest = "語" * (TOPIC_BYTES_MAX // 3)
    assert {longest, longest[:-1] + "言"}.isdisjoint(names)
    names |= {longest, longest[:-1] + "言", "a", "a ", " a", "a,b", ".", "..", "/", "%"}
    places = {name: events_table(name, StructType()).name.removeprefix("events/") for name in names}
    # A topic that is named as the place of another is not there, too.
    places |= {place: events_table(place, StructType()).name.removeprefix("events/") for place in places.values()}
    assert len(set(places.values())) == len(places)
    assert all(len(place.encode()) <= 255 and "/" not in place and place[0] != "." for place in places.values())
    assert any(len(quote(name, safe="")) > 255 for name in names)


def test_a_topic_keeps_the_place_that_it_had() -> None:
    assert EVENTS.path("/lake/") == "/lake/events/orders%2Feu"
    assert events_table("orders%2Feu", StructType()).path("/lake") == "/lake/events/orders%252Feu"
    with pytest.raises(AssertionError, match="accepts no batch"):
        events_table("t", StructType([StructField("_origin", StringType())]))
