"""Schedules that broke earlier forms of the rules of selective topics, one by one (PROTOCOL.md, 18.6).

The first place publishes, the second receives. Unless a test says otherwise there are no keepers and no frame is lost.
The checkers of the simulator look after every event: a test that ends has broken no guarantee.
"""

from collections.abc import Callable

from m4cast.overlay.ids import NodeId, StreamId
from m4cast.overlay.protocol.effects import Staged, Want
from m4cast.overlay.protocol.selective.contract import KEEPS_TOPIC, keep_id
from m4cast.overlay.protocol.selective.speaking import route
from m4cast.overlay.protocol.wire.batch import Batch, How
from m4cast.overlay.protocol.wire.routed import DESTINATIONS_MAX
from m4cast.overlay.protocol.wire.selective import (
    CoverStmt,
    Destination,
    KeepCall,
    ProfileText,
    RoutedFrame,
    SelectAckStmt,
    SelectPullCall,
    SelectPullResp,
)
from m4cast.overlay.sim.selective.campaign import backup
from m4cast.overlay.sim.selective.places import SelectivePlace, batch_extensions, values_of
from m4cast.overlay.sim.selective.world import SelectiveWorld

A, B, C = "`country` = 'A'", "`country` = 'B'", "`country` = 'C'"


def channel(places: int = 3, keepers: int = 0, seed: int = 1) -> SelectiveWorld:
    world = SelectiveWorld(seed, places, keepers)
    for place in world.places:
        world.start(place)
    world.run(1_000)
    return world


def publish(world: SelectiveWorld, place: SelectivePlace, rows: str, topic: str = "t") -> None:
    """One batch for each letter."""
    for value in rows:
        assert world.publish(place, topic, value)
        world.run(15)


def stream_of(place: SelectivePlace, topic: str = "t") -> StreamId:
    return StreamId(place.content.node_id, topic)


def rows(place: SelectivePlace, stream_id: StreamId) -> str:
    """The contents of the log, in order."""
    log = place.content.logs.get(stream_id, {})
    return "".join(values_of(log[first]) for first in sorted(log))


def coverage(place: SelectivePlace, want: str, stream_id: StreamId) -> int | None:
    assert place.machine is not None
    return place.machine.receiving.coverage(want, stream_id)


def is_batch_to(place: SelectivePlace, *, how: How = How.PUSHED) -> Callable[[RoutedFrame], bool]:
    def is_one(frame: RoutedFrame) -> bool:
        is_for_it = frame.destinations[0].node_id == place.content.node_id
        return isinstance(frame.content, Batch) and frame.how is how and is_for_it

    return is_one


def keepers_of(world: SelectiveWorld, origin: SelectivePlace) -> list[SelectivePlace]:
    name = keep_id(origin.content.node_id)
    return [place for place in world.places if place.machine is not None and name in place.machine.wants.durable]


# ---- coverage


def test_rows_travel_to_those_who_want_them_and_to_nobody_else() -> None:
    world = channel()
    origin, taker, other = world.places
    name = world.subscribe(taker, "t", A)
    world.run(500)
    publish(world, origin, "ABACA")
    world.run(3_000)
    assert rows(taker, stream_of(origin)) == "AAA"
    assert coverage(taker, name, stream_of(origin)) == 6
    assert not other.content.logs
    assert world.frames["Batch"] == 3


def test_h1_a_statement_does_not_count_for_a_registration_that_its_speaker_did_not_know() -> None:
    world = channel()
    origin, taker, _ = world.places
    world.subscribe(taker, "t", A)
    world.run(500)
    publish(world, origin, "A")
    world.uninformed[origin.name] = None
    world.loses = lambda frame: isinstance(frame.content, SelectPullCall)
    name = world.subscribe(taker, "t", B)
    world.run(500)
    publish(world, origin, "BB")
    world.run(3_000)
    assert coverage(taker, name, stream_of(origin)) == 2
    world.loses = lambda frame: False
    del world.uninformed[origin.name]
    world.announce(taker)
    world.run(5_000)
    assert rows(taker, stream_of(origin)) == "ABB"
    assert coverage(taker, name, stream_of(origin)) == 4


def test_h2_a_run_does_not_go_on_over_a_registration_that_joined() -> None:
    world = channel()
    origin, taker, _ = world.places
    world.subscribe(taker, "t", A)
    world.run(500)
    world.uninformed[origin.name] = None
    name = world.subscribe(taker, "t", B)
    world.run(500)
    publish(world, origin, "B")
    del world.uninformed[origin.name]
    world.announce(taker)
    world.run(10)
    publish(world, origin, "B")  # with a statement of the new version
    world.run(5_000)
    assert rows(taker, stream_of(origin)) == "BB"
    assert coverage(taker, name, stream_of(origin)) == 3


def test_h3_a_statement_from_before_a_hidden_leave_does_not_count() -> None:
    world = channel()
    origin, taker, _ = world.places
    name = world.subscribe(taker, "t", A)
    world.run(500)
    publish(world, origin, "A")
    world.uninformed[origin.name] = None
    world.loses = lambda frame: isinstance(frame.content, SelectPullCall)
    world.register(taker, removed=[name])
    world.run(50)
    world.subscribe(taker, "t", A)
    world.run(50)
    publish(world, origin, "B")
    world.run(1_500)  # covered, for a version that is older than the registration
    assert (coverage(taker, name, stream_of(origin)) or 1) < 3
    world.loses = lambda frame: False
    del world.uninformed[origin.name]
    world.announce(taker)
    publish(world, origin, "A")
    world.run(5_000)
    assert coverage(taker, name, stream_of(origin)) == 4


def test_h4_an_origin_that_restarts_does_not_state_over_a_batch_that_was_lost() -> None:
    world = channel()
    origin, taker, _ = world.places
    name = world.subscribe(taker, "t", A)
    world.run(500)
    publish(world, origin, "A")
    world.loses = is_batch_to(taker)
    publish(world, origin, "A")
    world.crash(origin)
    world.run(100)
    world.loses = lambda frame: False
    world.start(origin)
    world.run(1_000)
    publish(world, origin, "B")
    world.run(5_000)
    assert rows(taker, stream_of(origin)) == "AA"
    assert coverage(taker, name, stream_of(origin)) == 4


def test_h5_a_last_batch_that_is_lost_together_with_its_cover_is_noticed() -> None:
    world = channel()
    origin, taker, _ = world.places
    world.subscribe(taker, "t", A)
    world.run(500)
    world.loses = lambda frame: frame.destinations[0].node_id == taker.content.node_id
    publish(world, origin, "A")
    world.run(2_000)
    assert not taker.content.logs
    world.loses = lambda frame: False
    world.run(5_000)
    assert rows(taker, stream_of(origin)) == "A"


def test_h6_a_stream_that_began_before_its_origin_knew_the_registration() -> None:
    world = channel()
    origin, taker, _ = world.places
    world.uninformed[origin.name] = None
    name = world.subscribe(taker, "t", A)
    world.run(500)
    publish(world, origin, "AA")
    world.run(1_000)
    assert not taker.content.logs
    del world.uninformed[origin.name]
    world.announce(taker)
    world.run(5_000)
    assert rows(taker, stream_of(origin)) == "AA"
    assert coverage(taker, name, stream_of(origin)) == 3


def test_h6_nothing_is_numbered_before_the_first_end_mark() -> None:
    world = SelectiveWorld(1, 2)
    for place in world.places:
        world.start(place)
    assert not world.publish(world.places[0], "t", "A")
    world.run(1_000)
    assert world.publish(world.places[0], "t", "A")


def test_h7_a_batch_before_an_earlier_one_is_stored_and_covers_nothing_before_it() -> None:
    world = channel()
    origin, taker, _ = world.places
    name = world.subscribe(taker, "t", A)
    world.run(500)
    publish(world, origin, "A")
    world.loses = is_batch_to(taker)
    publish(world, origin, "A")
    world.loses = is_batch_to(taker, how=How.PULLED)
    publish(world, origin, "A")
    world.run(200)
    assert rows(taker, stream_of(origin)) == "AA"
    assert coverage(taker, name, stream_of(origin)) == 2
    world.loses = lambda frame: False
    world.run(3_000)
    assert coverage(taker, name, stream_of(origin)) == 4


def test_h12_a_node_without_an_entry_is_sent_nothing_and_stated_nothing() -> None:
    world = channel()
    publish(world, world.places[0], "ABC")
    world.run(10_000)
    assert world.frames == {}


def test_h13_old_registrations_advance_while_new_ones_join_all_the_time() -> None:
    world = channel()
    origin, taker, _ = world.places
    name = world.subscribe(taker, "t", A)
    world.run(500)
    for number in range(40):
        if number % 2:
            world.register(taker, removed=[f"r{number - 1}"])
        else:
            profile = ProfileText("sql", 1, f"`amount` > {number} AND `country` = 'X'")
            world.register(taker, [Want(f"r{number}", "t", profile, world.now_ms)])
        publish(world, origin, "AB")
        world.run(60)
    assert (coverage(taker, name, stream_of(origin)) or 0) > 60
    assert rows(taker, stream_of(origin)) == "A" * 40


# ---- rollback


def test_h8_an_origin_whose_disk_was_restored_hears_of_it_from_its_keepers() -> None:
    world = channel(4, keepers=2)
    origin = world.places[0]
    publish(world, origin, "A")
    world.run(8_000)
    old = backup(origin)
    publish(world, origin, "BC")
    world.run(3_000)
    assert len(keepers_of(world, origin)) == 2
    world.crash(origin)
    world.run(3_000)
    before = origin.content.node_id
    origin.content = old
    world.start(origin)
    world.run(3_000)
    assert origin.content.node_id != before
    assert origin.content.ids[1] == before
    assert world.checks.published[StreamId(before, "t")].keys() == {1, 2, 3}


def test_h9_a_new_identity_numbers_nothing_before_its_former_rows_are_back() -> None:
    world = channel(4, keepers=2)
    origin = world.places[0]
    publish(world, origin, "A")
    world.run(8_000)
    old = backup(origin)
    publish(world, origin, "BC")
    world.run(3_000)
    world.crash(origin)
    world.run(3_000)
    former = stream_of(origin)
    origin.content = old
    world.loses = is_batch_to(origin, how=How.PULLED)
    world.start(origin)
    world.run(4_000)
    world.loses = is_batch_to(origin, how=How.PULLED)  # by its new id
    world.run(6_000)
    assert origin.machine is not None
    assert "former rows" in (origin.machine.keeping.why_not_ready(world.now_ms) or "")
    assert not world.publish(origin, "t", "A")
    world.loses = lambda frame: False
    world.run(70_000)
    assert rows(origin, former) == "ABC"
    assert world.publish(origin, "t", "A")


# ---- keepers


def test_h15_h16_keepers_are_chosen_once_and_replaced_only_when_they_are_absent() -> None:
    world = channel(6, keepers=2)
    origin = world.places[0]
    publish(world, origin, "A")
    world.run(10_000)
    chosen = keepers_of(world, origin)
    assert len(chosen) == 2
    assert origin not in chosen
    asked = world.frames["KeepCall"]
    spare = next(place for place in world.places[1:] if place not in chosen)
    for _ in range(3):  # somebody who is no keeper comes and goes
        world.crash(spare)
        world.run(4_000)
        world.start(spare)
        world.run(4_000)
    assert keepers_of(world, origin) == chosen
    assert world.frames["KeepCall"] == asked
    world.crash(chosen[0])
    world.run(12_000)
    now = keepers_of(world, origin)
    assert len(now) == 2
    assert chosen[1] in now


def test_h17_a_keeper_that_is_not_whole_yet_makes_nothing_expired() -> None:
    world = channel(5, keepers=2)
    origin = world.places[0]
    publish(world, origin, "AAAA")
    world.run(10_000)
    first, second = keepers_of(world, origin)
    third = next(place for place in world.places[1:] if place not in (first, second))
    taker = next(place for place in world.places[1:] if place not in (first, second, third))
    world.loses = is_batch_to(third, how=How.PULLED)
    world.register(third, [Want(keep_id(origin.content.node_id), KEEPS_TOPIC, None, 0, True, origin.content.node_id)])
    world.run(1_000)
    publish(world, origin, "A")
    world.run(1_000)
    world.crash(origin)
    world.crash(second)
    world.run(4_000)
    name = world.subscribe(taker, "t", A, earliest=True)
    world.run(20_000)
    assert rows(taker, stream_of(origin)) == "AAAAA"
    assert coverage(taker, name, stream_of(origin)) == 6
    assert not taker.content.skips


def test_h18_an_acknowledgement_of_a_receiver_is_not_one_of_a_keeper() -> None:
    world = channel(4, keepers=1)
    origin = world.places[0]
    publish(world, origin, "A")
    world.run(8_000)
    (keeper,) = keepers_of(world, origin)
    taker = next(place for place in world.places[1:] if place is not keeper)
    world.subscribe(taker, "t", A)
    world.run(500)
    world.loses = lambda frame: frame.destinations[0].node_id == keeper.content.node_id
    publish(world, origin, "A")
    world.run(2_000)
    batch, _ = world.checks.published[stream_of(origin)][2]
    assert origin.machine is not None
    assert origin.machine.speaking.holders(batch) == [taker.content.node_id]
    assert not origin.machine.is_acked(batch, 1)
    world.crash(origin)
    world.run(3_000)
    world.loses = lambda frame: False
    world.run(10_000)  # the keeper gathers what receivers have
    assert rows(keeper, stream_of(origin)) == "AA"


def test_h19_destinations_acknowledge_and_keepers_come_first() -> None:
    world = channel(4, keepers=1)
    origin = world.places[0]
    publish(world, origin, "A")
    world.run(8_000)
    publish(world, origin, "B")
    world.run(2_000)
    batch, _ = world.checks.published[stream_of(origin)][2]
    (keeper,) = keepers_of(world, origin)
    assert origin.machine is not None
    assert origin.machine.speaking.holders(batch) == [keeper.content.node_id]
    assert origin.machine.is_acked(batch, 1)
    assert not origin.machine.is_acked(batch, 2)


def test_h19_who_begins_later_has_not_acknowledged_what_was_before() -> None:
    """It has everything that it wants, which is not that."""
    world = channel()
    origin, taker, _ = world.places
    publish(world, origin, "A")
    world.run(2_000)
    world.subscribe(taker, "t", A)
    world.run(2_000)
    publish(world, origin, "A")
    world.run(2_000)
    before, after = (world.checks.published[stream_of(origin)][first][0] for first in (1, 2))
    assert origin.machine is not None
    assert origin.machine.speaking.level_at(stream_of(origin), 3) == [taker.content.node_id]
    assert origin.machine.speaking.holders(after) == [taker.content.node_id]
    assert origin.machine.speaking.holders(before) == []


def test_h20_more_acknowledgements_than_nodes_are_refused_at_once() -> None:
    world = channel(3)
    machine = world.places[0].machine
    assert machine is not None
    assert machine.why_too_few(2) is None
    assert "only 2 other nodes" in (machine.why_too_few(3) or "")


def test_h20_only_those_that_rows_go_to_can_acknowledge_them() -> None:
    world = channel(4)
    origin, taker, *_ = world.places
    world.subscribe(taker, "t", A)
    world.run(500)
    assert origin.machine is not None
    of_a, of_b = (Staged("t", 1, 1, value.encode(), None, batch_extensions(value, 0)) for value in "AB")
    assert origin.machine.why_too_few_takers(1, of_a, 0) is None
    assert "go to 1 other nodes" in (origin.machine.why_too_few_takers(2, of_a, 0) or "")
    assert "go to 0 other nodes" in (origin.machine.why_too_few_takers(1, of_b, 0) or "")
    assert origin.machine.why_too_few_takers(2, of_b, 2) is None, "keepers that are not chosen yet"
    assert "go to 3 other nodes" in (origin.machine.why_too_few_takers(4, of_a, 8) or "")
    origin.machine.keeping.want(2, world.now_ms)
    world.run(10_000)
    assert len(keepers_of(world, origin)) == 2
    assert origin.machine.why_too_few_takers(2, of_b, 0) is None
    assert "go to 2 other nodes" in (origin.machine.why_too_few_takers(3, of_b, 2) or "")


def test_a_new_registration_sees_what_is_here_for_an_older_one_while_all_others_are_away() -> None:
    world = channel(3)
    origin, taker, other = world.places
    world.subscribe(taker, "t", A)
    world.run(500)
    publish(world, origin, "AABA")
    world.run(3_000)
    world.crash(origin)
    world.crash(other)
    world.run(3_000)
    wider = world.subscribe(taker, "t", "`country` IN ('A', 'B')", earliest=True)
    world.run(10_000)
    assert coverage(taker, wider, stream_of(origin)) == 3, "whether row 3 matches is not known here"
    world.start(origin)
    world.run(10_000)
    assert (rows(taker, stream_of(origin)), coverage(taker, wider, stream_of(origin))) == ("AABA", 5)


def test_rows_survive_their_origin() -> None:
    """An origin dies right after a keeper acknowledged: everybody who wants the row gets it."""
    world = channel(5, keepers=2)
    origin = world.places[0]
    publish(world, origin, "A")
    world.run(8_000)
    takers = [place for place in world.places[1:] if place not in keepers_of(world, origin)]
    for taker in takers:
        world.subscribe(taker, "t", B)
    world.run(500)
    world.loses = lambda frame: any(frame.destinations[0].node_id == taker.content.node_id for taker in takers)
    publish(world, origin, "B")
    batch, _ = world.checks.published[stream_of(origin)][2]
    world.run(500)
    assert origin.machine is not None
    assert origin.machine.is_acked(batch, 2)
    world.crash(origin)
    world.loses = lambda frame: False
    world.run(20_000)
    assert [rows(taker, stream_of(origin)) for taker in takers] == ["B"] * len(takers)


# ---- skips, fills, retention


def test_h22_another_nodes_skip_makes_nothing_expired() -> None:
    world = channel(4)
    origin, taker, partial, _ = world.places
    world.subscribe(partial, "t", B)
    world.run(500)
    publish(world, origin, "AAB")
    world.run(2_000)
    name = world.subscribe(taker, "t", A, earliest=True)
    world.run(20)
    world.crash(origin)
    world.run(90_000)
    assert not taker.content.skips
    world.start(origin)
    world.run(20_000)
    assert rows(taker, stream_of(origin)) == "AA"
    assert coverage(taker, name, stream_of(origin)) == 4


def test_h24_a_registration_from_the_earliest_on_fills_what_was_filtered() -> None:
    world = channel()
    origin, taker, _ = world.places
    first = world.subscribe(taker, "t", A)
    world.run(500)
    publish(world, origin, "ABABB")
    world.run(2_000)
    second = world.subscribe(taker, "t", B, earliest=True)
    world.run(3_000)
    assert rows(taker, stream_of(origin)) == "ABABB"
    assert coverage(taker, first, stream_of(origin)) == coverage(taker, second, stream_of(origin)) == 6


def test_h25_rows_that_a_whole_holder_removed_become_a_skip_and_nothing_else_does() -> None:
    world = channel()
    origin, taker, _ = world.places
    publish(world, origin, "AAB")
    world.trim(origin, stream_of(origin))
    name = world.subscribe(taker, "t", A, earliest=True)
    world.run(5_000)
    assert rows(taker, stream_of(origin)) == "A"
    assert [(skip.first_sequence, skip.last_sequence) for skip in taker.content.skips] == [(1, 1)]
    assert coverage(taker, name, stream_of(origin)) == 4


def test_a_former_taker_hands_over_the_rows_that_it_has() -> None:
    """R5: anybody hands over batches. It wants nothing of the stream any longer, and its marks are forgotten."""
    world = channel()
    origin, taker, former = world.places
    world.subscribe(taker, "t", B)
    name = world.subscribe(former, "t", A)
    world.run(500)
    publish(world, origin, "AAB")
    world.run(2_000)
    world.uninformed[origin.name] = None
    world.register(former, removed=[name])
    world.run(500)
    publish(world, origin, "AB")  # the first is on its way when nobody wants it any longer
    world.run(2_000)
    assert former.content.marks[stream_of(origin)] == ((1, 0),)
    world.crash(origin)
    world.run(4_000)
    world.subscribe(taker, "t", A, earliest=True)
    world.run(5_000)
    assert rows(taker, stream_of(origin)) == "AABAB"


def test_a_keeper_that_nothing_came_to_says_so_once_the_origin_cannot_return() -> None:
    """Else a registration at a time would wait without end: nobody knows where it begins."""
    world = channel()
    origin, taker, keeper = world.places
    world.subscribe(taker, "t", A)
    world.run(500)
    publish(world, origin, "AA")
    world.run(2_000)
    world.crash(origin)
    world.run(4_000)
    kept = origin.content.node_id
    world.register(keeper, [Want(keep_id(kept), KEEPS_TOPIC, None, world.now_ms, True, kept)])
    world.run(500)
    name = world.subscribe(taker, "t", B, from_ms=0)
    world.run(60_000)
    assert coverage(taker, name, stream_of(origin)) is None, "the origin may come back, and knows"
    for place in (taker, keeper):
        assert place.machine is not None
        place.machine.fetching.is_awaited = lambda origin, now_ms: False
    world.run(60_000)
    assert coverage(taker, name, stream_of(origin)) == 3


def test_h27_a_reader_of_everything_answers_although_it_is_no_keeper() -> None:
    world = channel()
    origin, taker, reader = world.places
    world.subscribe(reader, "t", None, earliest=True)
    world.run(500)
    publish(world, origin, "ABA")
    world.run(2_000)
    world.crash(origin)
    world.run(4_000)
    assert taker.machine is not None
    name = world.subscribe(taker, "t", A, earliest=True)
    world.run(500)
    stream = taker.machine.receiving.open(stream_of(origin))
    assert stream is not None
    stream.heard = 4  # by whatever way it heard of the stream
    taker.machine.fetching.look(stream, world.now_ms)
    world._perform(taker)
    world.run(5_000)
    assert rows(taker, stream_of(origin)) == "AA"
    assert coverage(taker, name, stream_of(origin)) == 4


# ---- begins


def test_h29_rows_of_an_origin_that_nobody_heard_of_are_filled_from_the_time_of_subscribing() -> None:
    world = channel()
    origin, taker, _ = world.places
    publish(world, origin, "A")
    world.run(5_000)
    world.uninformed[origin.name] = None
    name = world.subscribe(taker, "t", A)
    world.run(500)
    publish(world, origin, "AA")
    world.run(5_000)
    del world.uninformed[origin.name]
    world.announce(taker)
    world.run(5_000)
    assert rows(taker, stream_of(origin)) == "AA"
    assert coverage(taker, name, stream_of(origin)) == 4


def test_h30_a_stream_that_is_followed_begins_where_it_is_known_to_end() -> None:
    world = channel()
    origin, taker, _ = world.places
    world.subscribe(taker, "t", A)
    world.run(500)
    publish(world, origin, "ABB")
    world.run(2_000)
    name = world.subscribe(taker, "t", B)
    world.run(2_000)
    publish(world, origin, "B")
    world.run(2_000)
    assert rows(taker, stream_of(origin)) == "AB"
    assert coverage(taker, name, stream_of(origin)) == 5


# ---- limits and cost


def test_h53_what_cannot_be_told_is_a_match() -> None:
    world = channel()
    origin, taker, _ = world.places
    assert origin.machine is not None
    world.subscribe(taker, "t", A)
    world.run(500)
    node_id = taker.content.node_id
    item = next(iter(taker.content.entry.items.values()))
    origin.machine.interest_changed(node_id, 1, [item._replace(language="later", version=9)], (), world.now_ms)
    world.checks.wanted_ever[node_id].append(Want("later", "t", None, 0))
    publish(world, origin, "B")
    world.run(500)
    assert rows(taker, stream_of(origin)) == "B"


def test_h54_destinations_beyond_the_limit_go_in_another_frame() -> None:
    out: list[object] = []
    many = [Destination(NodeId(number.to_bytes(16, "big")), 0, 1) for number in range(DESTINATIONS_MAX + 1)]
    route(out, many[0].node_id, many, KeepCall(keep=True))  # type: ignore[arg-type]
    assert [len(frame.destinations) for frame in out if isinstance(frame, RoutedFrame)] == [DESTINATIONS_MAX, 1]


def test_h55_destinations_that_are_level_cost_nothing_and_equal_ones_share_a_message() -> None:
    world = channel(6)
    origin, *takers = world.places
    for taker in takers:
        world.subscribe(taker, "t", A)
    world.run(2_000)
    sent: list[RoutedFrame] = []

    def note(frame: RoutedFrame) -> bool:
        sent.append(frame)
        return False

    world.loses = note
    publish(world, origin, "BBB")
    world.run(5_000)
    covers = [frame for frame in sent if isinstance(frame.content, CoverStmt)]
    assert len(covers) == 5
    assert len({id(frame.content) for frame in covers}) == 1
    assert sum(isinstance(frame.content, SelectAckStmt) for frame in sent) <= 10
    sent.clear()
    world.run(600_000)
    assert sent == []


def test_an_answer_to_a_call_from_before_a_restart_counts_for_nothing() -> None:
    world = channel()
    origin, taker, _ = world.places
    world.subscribe(taker, "t", A, earliest=True)
    world.run(500)
    late: list[RoutedFrame] = []

    def delay(frame: RoutedFrame) -> bool:
        is_answer = isinstance(frame.content, SelectPullResp)
        if is_answer:
            late.append(frame)
        return is_answer or isinstance(frame.content, Batch)

    world.loses = delay
    publish(world, origin, "AB")
    world.run(1_000)
    world.crash(taker)
    world.run(100)
    world.start(taker)
    world.run(1_500)
    calls = [frame.content.call for frame in late if isinstance(frame.content, SelectPullResp)]
    assert len(set(calls)) == len(calls) > 1
    for frame in late:
        world._deliver(frame)
    world.loses = lambda frame: isinstance(frame.content, SelectPullResp)
    world.run(500)
    world.loses = lambda frame: False
    world.run(70_000)
    assert rows(taker, stream_of(origin)) == "A"
