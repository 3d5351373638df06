"""Selective topics on whole nodes: rows reach those who want them, and nobody else has a byte of them."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from random import Random

import pyarrow as pa
import pytest

from m4cast.overlay.ids import NodeId, StreamId
from m4cast.overlay.profiles import summary_bytes
from m4cast.overlay.profiles.profile import parse
from m4cast.overlay.profiles.summary import summarise
from m4cast.overlay.protocol import calls
from m4cast.overlay.protocol.effects import (
    Commit,
    Covered,
    CreateTopic,
    KeyMove,
    Output,
    Publish,
    Published,
    Refused,
    Send,
    Stage,
    Staged,
    StageDone,
    Subscribe,
    Subscribed,
    Trimmed,
    Unsubscribe,
    Wish,
)
from m4cast.overlay.protocol.node import Node
from m4cast.overlay.protocol.wire.batch import SUMMARY_EXTENSION, Batch, BatchFrame, Extension, SkipReason
from m4cast.overlay.protocol.wire.selective import RoutedFrame
from m4cast.overlay.sim.disk import Disk
from m4cast.overlay.sim.places import Observer, Place
from m4cast.overlay.sim.world import World, node_config

TOPIC = "orders"


class Watch(Observer):
    """Keeps the answers to requests, and what is covered where."""

    outputs = (Published, Refused, StageDone, Subscribed, Covered)

    def __init__(self) -> None:
        self.answers: dict[int, Output] = {}
        self.covered: dict[tuple[str, str], dict[NodeId, int]] = {}

    def output(self, place: Place, output: Output) -> None:
        if isinstance(output, Covered):
            for each in output.registrations:
                self.covered.setdefault((place.name, each), {}).update(output.next)
        elif isinstance(output, Published | Refused | StageDone | Subscribed):
            self.answers[output.request] = output


class Channel:
    """A channel of whole nodes in virtual time."""

    def __init__(self, nodes: int, seed: int = 5, **settings: object) -> None:
        self.world = World(seed, wire=True)
        self.watch = Watch()
        self.world.watch(self.watch)
        for number in range(nodes):
            self.world.start(self.world.add(node_config(number, (0,), **settings)))
            self.run(300)
        self.run(5_000)
        self.places = list(self.world.places.values())
        self._request = 0

    def run(self, for_ms: int) -> None:
        self.world.run(self.world.now_ms + for_ms)

    def ask(self, place: Place, make, *, wait_ms: int = 60_000) -> Output:  # type: ignore[no-untyped-def]
        """Feed a request made from its number, and wait for the answer."""
        self._request += 1
        request = self._request
        self.world.feed(place, make(request))
        assert self.world.run_until(lambda: request in self.watch.answers, wait_ms), "no answer came"
        return self.watch.answers[request]

    def create(self, place: Place, keepers: int) -> None:
        self.ask(place, lambda request: CreateTopic(request, TOPIC, keepers))  # tells what it lacks, and asks for it
        self.run(1_000)
        answer = self.ask(place, lambda request: CreateTopic(request, TOPIC, keepers))
        assert isinstance(answer, Subscribed), answer
        self.run(1_000)

    def subscribe(self, place: Place, where: str | None, *, earliest: bool = False) -> None:
        wish = Wish(f"w/{where}", TOPIC, parse(where) if where else None, earliest)
        assert isinstance(self.ask(place, lambda request: Subscribe(request, (wish,))), Subscribed)

    def publish(self, place: Place, values: str, acks: int = 0) -> Output:
        return self.ask(place, lambda request: Publish(request, (staged(values),), acks=acks))


def staged(values: str) -> Staged:
    rows = pa.record_batch({"country": list(values)})
    summary = summary_bytes.encode(summarise(rows, [("country",)]))
    return Staged(TOPIC, len(values), 1, values.encode(), None, (Extension(SUMMARY_EXTENSION, False, summary),))


def node_of(place: Place) -> Node:
    assert place.node is not None
    return place.node


def held(place: Place) -> list[str]:
    """The payloads on this place's disk, by stream and place."""
    logs = place.disk.content.logs
    return [bytes(batch.content).decode() for log in logs.values() for batch in log.batches]


def stream_of(place: Place) -> StreamId:
    return StreamId(place.disk.content.node_id, TOPIC)


def keepers_of(channel: Channel, origin: Place) -> list[Place]:
    name = f"_keep/{origin.disk.content.node_id.hex()}"
    return [place for place in channel.places if place.up and name in node_of(place).interest.registrations.rows]


def covered(channel: Channel, places: Iterable[Place], where: str | None, origin: Place, end: int) -> bool:
    of = (channel.watch.covered.get((place.name, f"w/{where}"), {}) for place in places)
    return all(each.get(origin.disk.content.node_id, 1) >= end for each in of)


def test_rows_reach_those_who_want_them_and_nobody_else() -> None:
    channel = Channel(8)
    origin, reader, other, idle, *_ = channel.places
    channel.create(origin, keepers=0)
    channel.subscribe(reader, "country = 'A'")
    channel.subscribe(other, "country = 'B'")
    channel.run(2_000)
    for values in ("AA", "B", "A", "C", "B"):
        assert isinstance(channel.publish(origin, values), Published)
    channel.run(5_000)
    assert held(reader) == ["AA", "A"] and held(other) == ["B", "B"]
    assert all(not held(place) for place in channel.places if place not in (origin, reader, other)), "nobody wants more"
    assert not idle.disk.content.logs
    assert covered(channel, [reader], "country = 'A'", origin, 7)
    assert covered(channel, [other], "country = 'B'", origin, 7)


def test_a_keeper_takes_over_when_the_origin_is_gone_for_good() -> None:
    channel = Channel(6)
    origin, *rest = channel.places
    channel.create(origin, keepers=2)
    assert isinstance(channel.publish(origin, "A"), Published)
    channel.run(10_000)
    assert len(keepers_of(channel, origin)) == 2
    for values in ("A", "B", "A"):
        assert isinstance(channel.publish(origin, values, acks=1), Published)
    channel.world.crash(origin, silent=True)  # and its disk is never seen again
    late = next(place for place in rest if place not in keepers_of(channel, origin))
    channel.run(20_000)
    channel.subscribe(late, "country = 'A'", earliest=True)
    done = channel.world.run_until(lambda: covered(channel, [late], "country = 'A'", origin, 5), 60_000)
    assert done and held(late) == ["A", "A", "A"]


def test_a_registration_that_comes_late_is_filled_from_its_begin() -> None:
    channel = Channel(6)
    origin, reader, *_ = channel.places
    channel.create(origin, keepers=0)
    for values in ("A", "B", "A"):
        channel.publish(origin, values)
    channel.subscribe(reader, "country = 'B'", earliest=True)
    assert channel.world.run_until(lambda: covered(channel, [reader], "country = 'B'", origin, 4), 20_000)
    assert held(reader) == ["B"]
    channel.subscribe(reader, None, earliest=True)
    assert channel.world.run_until(lambda: covered(channel, [reader], None, origin, 4), 20_000)
    assert sorted(held(reader)) == ["A", "A", "B"]


def test_nodes_that_restart_go_on_where_they_were() -> None:
    channel = Channel(6)
    origin, reader, *_ = channel.places
    channel.create(origin, keepers=1)
    channel.subscribe(reader, "country = 'A'")
    channel.run(2_000)
    channel.publish(origin, "A")
    channel.run(5_000)
    for place in (reader, origin):
        channel.world.crash(place, silent=False)
        channel.run(500)
        channel.world.start(place)
        assert channel.world.run_until(lambda: isinstance(channel.publish(origin, "A"), Published), 60_000)
        channel.run(5_000)
    end = 4
    assert channel.world.run_until(lambda: covered(channel, [reader], "country = 'A'", origin, end), 60_000)
    assert held(reader) == ["A", "A", "A"]


def test_rows_that_were_staged_are_read_again_and_sent_in_order() -> None:
    channel = Channel(4)
    origin, reader, *_ = channel.places
    channel.create(origin, keepers=0)
    channel.subscribe(reader, None)
    channel.run(2_000)
    for number, values in enumerate(("AA", "B")):
        done = channel.ask(origin, lambda request, n=number, v=values: Stage(request, f"s{n}", staged(v)))
        assert isinstance(done, StageDone)
    ranges = channel.ask(origin, lambda request: Commit(request, ("s0", "s1"), ()))
    assert isinstance(ranges, Published)
    channel.publish(origin, "C")
    assert channel.world.run_until(lambda: held(reader) == ["AA", "B", "C"], 10_000)
    assert channel.world.run_until(lambda: covered(channel, [reader], None, origin, 5), 10_000)


def test_a_broadcast_topic_beside_a_selective_one_goes_to_everybody() -> None:
    channel = Channel(6)
    origin = channel.places[0]
    channel.create(origin, keepers=0)
    everywhere = replace(staged("Z"), topic="news")
    channel.ask(origin, lambda request: Publish(request, (everywhere, staged("A"))))
    channel.run(5_000)
    assert all(held(place) == ["Z"] for place in channel.places[1:])


def test_a_selective_topic_needs_the_version_everywhere_and_refuses_older_nodes_afterwards() -> None:
    channel = Channel(3)
    origin = channel.places[0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calls, "PROTOCOL_VERSION_MAX", 3)
        old = channel.world.add(node_config(9, (0,)))
        channel.world.start(old)
    channel.run(10_000)
    for _ in range(2):
        answer = channel.ask(origin, lambda request: CreateTopic(request, TOPIC, 0))
        assert isinstance(answer, Refused) and answer.code == "old-nodes" and "n9" in answer.detail
        channel.run(10_000)
    channel.world.crash(old, silent=False)
    channel.run(60_000)  # by then everybody has missed it
    channel.create(origin, keepers=0)
    channel.run(5_000)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calls, "PROTOCOL_VERSION_MAX", 3)
        channel.world.start(old)
    channel.run(20_000)
    assert not node_of(old).membership.table.neighbours


def test_who_could_acknowledge_and_is_away_is_waited_for() -> None:
    channel = Channel(3)
    origin, *others = channel.places
    channel.create(origin, keepers=2)
    answer = channel.publish(origin, "A", acks=3)
    assert isinstance(answer, Refused) and answer.code == "too-few-nodes" and "only 2 other nodes" in answer.detail
    for place in others:
        channel.world.crash(place, silent=False)
    channel.run(60_000)  # by then they are missed
    answer = channel.publish(origin, "A", acks=1)
    assert isinstance(answer, Refused) and answer.code == "not-ready" and "when others are back" in answer.detail
    channel.world.start(others[0])
    channel.run(10_000)
    assert isinstance(channel.publish(origin, "A", acks=1), Published)


def test_acknowledgements_that_nobody_can_give_are_refused_at_once() -> None:
    channel = Channel(3)
    origin, taker, _ = channel.places
    channel.create(origin, keepers=0)
    channel.subscribe(taker, "country = 'A'")
    channel.run(2_000)
    assert isinstance(channel.publish(origin, "A", acks=1), Published)
    for values, acks, able in (("B", 1, 0), ("A", 2, 1)):
        answer = channel.publish(origin, values, acks)
        assert isinstance(answer, Refused) and answer.code == "too-few-nodes", answer
        assert f"go to {able} other nodes" in answer.detail
    channel.world.crash(taker, silent=False)
    channel.run(60_000)
    answer = channel.publish(origin, "A", acks=1)
    assert isinstance(answer, Refused) and answer.code == "not-ready", "who wants it may come back"


def test_what_retention_removed_everywhere_is_passed_over_and_nothing_else_is() -> None:
    channel = Channel(4)
    origin, reader, *_ = channel.places
    channel.create(origin, keepers=0)
    for values in ("A", "B", "A"):
        channel.publish(origin, values)
    log = origin.disk.content.logs[stream_of(origin)]
    channel.world.feed(origin, Trimmed(stream_of(origin), origin.disk.trim(stream_of(origin), 2)))
    assert log.low == 2
    channel.subscribe(reader, None, earliest=True)
    assert channel.world.run_until(lambda: covered(channel, [reader], None, origin, 4), 60_000)
    assert sorted(held(reader)) == ["A", "B"]
    assert [skip.last_sequence for skip in reader.disk.content.logs[stream_of(origin)].skips] == [1]


@pytest.mark.parametrize("keepers", [0, 2])
def test_an_origin_that_was_rolled_back_gets_its_former_rows_and_repeats_no_keyed_commit(keepers: int) -> None:
    """H8 and H9. Its neighbours may have no row of it; without keepers, only a receiver has them."""
    channel = Channel(6)
    origin, reader, *_ = channel.places
    channel.create(origin, keepers)
    channel.subscribe(reader, "country = 'A'")
    channel.run(10_000)
    channel.publish(origin, "A")
    backup = origin.disk.content.copy()
    moved = (KeyMove("job", None, "1"),)

    def publish() -> Output:
        return channel.ask(origin, lambda request: Publish(request, (staged("A"), staged("B")), moved))

    assert isinstance(publish(), Published)
    channel.run(2_000)
    old = stream_of(origin)
    channel.world.crash(origin, silent=False)
    channel.run(5_000)
    origin.disk = Disk(backup.node_id)
    origin.disk.content = backup
    channel.world.start(origin)
    while not isinstance(repeated := publish(), Published):
        assert isinstance(repeated, Refused) and repeated.code == "not-ready" and channel.world.now_ms < 200_000
        channel.run(500)
    assert origin.rollbacks == 1 and stream_of(origin) != old
    assert {rows.stream for rows in repeated.ranges} == {old}
    assert [batch.content for batch in reader.disk.content.logs[old].batches] == [b"A", b"A"]


def test_a_topic_with_broadcast_rows_is_made_selective_by_gatekeepers_alone() -> None:
    channel = Channel(4)
    origin, other, *_ = channel.places
    assert isinstance(channel.publish(origin, "A"), Published)
    channel.run(5_000)
    channel.ask(other, lambda request: Subscribe(request, (Wish("w", "x"),)))  # from now on versions are stated
    channel.run(10_000)
    for place in (origin, other):
        refused = channel.ask(place, lambda request: CreateTopic(request, TOPIC, 0))
        assert isinstance(refused, Refused) and refused.code == "wrong-spread"
    channel.world.feed(other, CreateTopic(0, TOPIC, 0))
    channel.run(5_000)
    assert all(TOPIC in node_of(place).selection.descriptors for place in channel.places)
    channel.publish(origin, "B")
    channel.run(5_000)
    assert [held(place) for place in channel.places] == [["A", "B"]] * 4, "a stream keeps its spread"


def rollback_that_only_relays_can_tell(*, counts: bool) -> int:
    """The number of times that an origin notices that its disk was restored, when the node that wanted its rows is
    away, there are no keepers, and its neighbours have only relayed them.
    `counts`: relays count the batches that pass."""
    channel = Channel(6)
    origin = channel.places[0]
    near = node_of(origin).membership.table.neighbours
    reader = next(each for each in channel.places[1:] if node_of(each).me.node_id not in near)
    channel.create(origin, 0)
    channel.subscribe(reader, None)
    channel.run(10_000)
    channel.publish(origin, "A")
    channel.run(10_000)  # so that its beacon has told how many batches it had numbered
    backup = origin.disk.content.copy()
    if not counts:
        for place in channel.places:
            node_of(place).selection.routing.saw_batch = lambda origin, origin_batch: None
    channel.publish(origin, "B")
    channel.run(500)
    stream = stream_of(origin)
    assert [batch.content for batch in reader.disk.content.logs[stream].batches] == [b"A", b"B"]
    assert not any(stream in place.disk.content.logs for place in channel.places if place not in (origin, reader))
    for place in (reader, origin):
        channel.world.crash(place, silent=False)
    channel.run(5_000)
    origin.disk = Disk(backup.node_id)
    origin.disk.content = backup
    channel.world.start(origin)
    channel.run(5_000)
    return origin.rollbacks


def test_a_relay_knows_how_many_batches_an_origin_had_numbered() -> None:
    """H8: nobody else who is there does."""
    assert rollback_that_only_relays_can_tell(counts=True) == 1
    assert rollback_that_only_relays_can_tell(counts=False) == 0, "the schedule is one in which that matters"


def test_rows_that_nobody_has_are_lost_and_readers_go_on() -> None:
    channel = Channel(5)
    origin, reader, *_ = channel.places
    channel.create(origin, keepers=0)
    channel.subscribe(reader, "country = 'A'", earliest=True)
    channel.run(3_000)
    for values in ("B", "A"):
        channel.publish(origin, values)
    channel.run(3_000)
    stream = stream_of(origin)
    channel.world.crash(origin, silent=False)
    channel.run(5_000)
    channel.subscribe(reader, None, earliest=True)

    def end() -> int:
        return node_of(reader).selection.coverage("w/None").get(stream, 1)

    channel.run(120_000)
    assert end() == 1, "the origin may come back"
    origin.disk = Disk(NodeId(bytes(15) + b"1"))  # its host comes back with an empty disk
    channel.world.start(origin)
    assert channel.world.run_until(lambda: end() == 3, 120_000)
    skips = reader.disk.content.logs[stream].skips
    assert [(skip.first_sequence, skip.last_sequence, skip.reason) for skip in skips] == [(1, 1, SkipReason.LOST)]
    assert held(reader) == ["A"]


def test_what_a_node_wanted_is_forgotten_although_no_beacon_of_it_ever_came(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was gone before its first one; else it would be waited for, as a keeper, without end."""
    channel = Channel(3)
    origin, *_ = channel.places
    channel.create(origin, keepers=0)
    brief = channel.world.add(node_config(9, (0,)))
    channel.world.start(brief)
    monkeypatch.setattr(node_of(brief).liveness, "beacon", lambda now_ms, *, leaving=False: None)
    channel.subscribe(brief, None)
    channel.run(2_000)
    demands = [node_of(place).selection.selective.demand for place in channel.places]
    assert all(stream_of(brief).origin in demand.versions for demand in demands)
    channel.world.crash(brief, silent=True)
    channel.run(180_000)
    assert not any(stream_of(brief).origin in demand.versions for demand in demands)


def test_a_damaged_batch_is_fetched_again() -> None:
    channel = Channel(4)
    origin, reader, *_ = channel.places
    channel.create(origin, keepers=0)
    channel.subscribe(reader, "country = 'A'", earliest=True)
    channel.run(3_000)
    channel.publish(origin, "A")
    channel.run(3_000)
    for place in (reader, origin):
        channel.world.damage(place, stream_of(origin), 1)
        channel.world.read_damaged(place)
        log = place.disk.content.logs[stream_of(origin)]
        assert channel.world.run_until(lambda: not log.damaged, 10_000), place.name  # noqa: B023


def test_a_destination_that_does_not_acknowledge_slows_its_publisher_down_for_a_while() -> None:
    channel = Channel(4, publish_window_bytes=1_024)
    origin, reader, *_ = channel.places
    channel.create(origin, keepers=0)
    channel.subscribe(reader, None)
    channel.run(3_000)
    rows = replace(staged("A"), payload=bytes(2_000))

    def publish() -> int:
        """The time that it takes."""
        began_ms = channel.world.now_ms
        assert isinstance(channel.ask(origin, lambda request: Publish(request, (rows,))), Published)
        return channel.world.now_ms - began_ms

    publish()
    channel.run(3_000)
    reader.trouble.fsync_slow_ms = 1_000
    assert publish() <= 200
    assert 800 < publish() < 2_000, "until the destination has the batch before it on its disk"
    reader.trouble.fsync_slow_ms = 100_000
    channel.run(3_000)
    assert publish() <= 200
    assert 2_000 <= publish() < 4_000, "then it leaves the window"
    assert publish() <= 200


def test_a_destination_that_gives_its_registration_up_holds_nobody_up() -> None:
    channel = Channel(4, publish_window_bytes=1_024)
    origin, reader, *_ = channel.places
    channel.create(origin, keepers=0)
    channel.subscribe(reader, None)
    channel.run(3_000)
    reader.trouble.fsync_slow_ms = 1_000
    rows = replace(staged("A"), payload=bytes(2_000))
    channel.ask(origin, lambda request: Publish(request, (rows,)))
    reader.trouble.fsync_slow_ms = 0  # of what comes later
    channel.world.feed(reader, Unsubscribe(9_999, ("w/None",)))
    assert channel.world.run_until(lambda: 9_999 in channel.watch.answers, 3_000)
    channel.run(500)
    began_ms = channel.world.now_ms
    assert isinstance(channel.ask(origin, lambda request: Publish(request, (rows,))), Published)
    assert channel.world.now_ms - began_ms <= 200


def test_a_node_is_drained_when_its_keepers_have_its_rows() -> None:
    channel = Channel(5)
    origin, *_ = channel.places
    channel.create(origin, keepers=2)
    channel.publish(origin, "A")
    channel.run(10_000)
    keepers = keepers_of(channel, origin)
    assert node_of(origin).is_drained() and len(keepers) == 2
    keepers[0].trouble.fsync_slow_ms = 3_000
    channel.publish(origin, "B")
    channel.run(1_000)
    assert not node_of(origin).is_drained()
    channel.run(5_000)
    assert node_of(origin).is_drained()


# ---- with faults


def after_faults(seed: int) -> int:
    """Publish at one node while all of them crash, restart and lose links; then every wanted row is where it is wanted,
    once, and covered. Returns how many batches there are."""
    random = Random(seed)
    channel = Channel(6, seed)
    origin, *others = channel.places
    channel.create(origin, keepers=random.choice((0, 1, 2)))
    wants = {place.name: random.choice((None, "country = 'A'", "country >= 'B'")) for place in random.sample(others, 3)}
    for place in others:
        if place.name in wants:
            channel.subscribe(place, wants[place.name], earliest=True)
    down: list[Place] = []
    for number in range(40):
        act, up = random.random(), channel.world.up()
        if act < 0.5:
            values = random.choice(("A", "B", "C", "AB"))
            channel.world.feed(origin, Publish(1_000 + number, (staged(values),), acks=random.choice((0, 0, 1))))
        elif act < 0.65 and len(up) > 1:
            down.append(random.choice(up))
            channel.world.crash(down[-1], silent=random.random() < 0.5)
        elif act < 0.85 and down:
            channel.world.start(down.pop(random.randrange(len(down))))
        elif ends := list(random.choice(up).ends.values()):
            channel.world.cables.break_connection(random.choice(ends))
        channel.run(random.randint(50, 3_000))
    for place in down:
        channel.world.start(place)
    channel.run(120_000)
    log = origin.disk.content.logs.get(stream_of(origin))
    rows = batches_at(origin, origin)
    for place in others:
        if place.name in wants:
            where = wants[place.name]
            needed = [row for row in rows if does_want(where, row[1])]
            assert [row for row in batches_at(place, origin) if row in needed] == needed, f"seed {seed}: {place.name}"
            end = node_of(place).selection.coverage(f"w/{where}").get(stream_of(origin), 1)
            assert log is None or end == log.next, f"seed {seed}: {place.name} is covered to {end} of {log.next}"
    return len(rows)


def batches_at(place: Place, origin: Place) -> list[tuple[int, str]]:
    log = place.disk.content.logs.get(stream_of(origin))
    return [(batch.first_sequence, bytes(batch.content).decode()) for batch in log.batches] if log else []


def does_want(where: str | None, values: str) -> bool:
    return where is None or ("A" in values if where == "country = 'A'" else max(values) >= "B")


def test_every_wanted_row_arrives_whatever_crashes() -> None:
    assert sum(after_faults(seed) for seed in range(3)) > 20


@pytest.mark.soak
def test_every_wanted_row_arrives_in_many_runs() -> None:
    assert sum(after_faults(seed) for seed in range(300)) > 2_000


class Crossings(Observer):
    """Counts the frames with rows that each node sends to each other."""

    outputs = (Send,)

    def __init__(self) -> None:
        self.frames: Counter[tuple[str, bytes]] = Counter()

    def output(self, place: Place, output: Output) -> None:
        frame = output.message if isinstance(output, Send) else None
        batch = (
            frame.content if isinstance(frame, RoutedFrame) else frame.batch if isinstance(frame, BatchFrame) else None
        )
        if isinstance(batch, Batch):
            self.frames[place.name, bytes(batch.content)] += 1


@pytest.mark.parametrize("hierarchy", [True, False])
def test_a_batch_crosses_once_to_an_access_point_however_many_of_its_clients_want_it(hierarchy: bool) -> None:
    """P31: with the hierarchy of profiles and without, the same batches cross, each once."""
    channel = Channel(2, interest_hierarchy=hierarchy)
    origin, access_point = channel.places
    channel.create(origin, keepers=0)
    wanted = ["country = 'A'", "country IN ('A', 'B')", "country IN ('A', 'C')", "country >= 'A' AND country < 'C'"]
    for where in wanted:  # as an access point registers what its clients want
        channel.subscribe(access_point, where)
    channel.run(2_000)
    (entry,) = [each for each in node_of(origin).interest.view.used() if each.node_id == stream_of(access_point).origin]
    assert len([item for item in entry.items.values() if item.text]) == (2 if hierarchy else 4)
    crossings = Crossings()
    channel.world.watch(crossings)
    batches = ("A", "B", "C", "D", "AB", "ABC", "DE", "AA")
    for values in batches:
        assert isinstance(channel.publish(origin, values), Published)
    channel.run(5_000)
    crossing = [values for values in batches if set(values) & set("ABC")]
    assert held(access_point) == crossing
    assert crossings.frames == {(origin.name, values.encode()): 1 for values in crossing}


@pytest.mark.parametrize(("clock_skew_ms", "rows"), [(60_000, ["A", "A"]), (0, ["A"])])
def test_a_registration_begins_as_much_earlier_as_clocks_may_differ(clock_skew_ms: int, rows: list[str]) -> None:
    """The stream is one that its node did not follow: `clock_skew_ms` of the origin counts."""
    channel = Channel(4, clock_skew_ms=clock_skew_ms)
    origin, reader, *_ = channel.places
    channel.create(origin, keepers=0)
    channel.publish(origin, "A")
    channel.run(10_000)
    channel.subscribe(reader, "country = 'A'")
    channel.run(2_000)
    channel.publish(origin, "A")
    channel.run(5_000)
    assert held(reader) == rows
