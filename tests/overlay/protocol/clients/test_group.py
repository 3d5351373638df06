"""Groups: one member a stream, a new one after the former has saved, and positions that only rise."""

from random import Random

from m4cast.overlay.protocol.clients.group import GENERATIONS_MAX, MEMBER_MS, Group, joined, owner_of
from m4cast.overlay.protocol.clients.state import ClientProfile, ClientState

STREAMS = [("t", f"{number:032x}") for number in range(12)]


def readers(group: Group) -> list[list[str]]:
    return [[name for name in group.members if group.may_read(name, *stream, group.version)] for stream in STREAMS]


def test_every_stream_has_one_member_and_few_move() -> None:
    names = ["a", "b", "c", "d"]
    before = {stream: owner_of(names, *stream) for stream in STREAMS}
    assert len(set(before.values())) > 1
    after = {stream: owner_of(["a", "b", "d"], *stream) for stream in STREAMS}
    assert all(after[stream] == before[stream] for stream in STREAMS if before[stream] != "c")
    assert owner_of([], "t", "x") is None


def test_a_stream_is_given_on_when_its_member_has_saved() -> None:
    group = Group()
    group.join("a", 1, 0)
    assert readers(group) == [["a"]] * len(STREAMS)
    group.join("b", 2, 0)
    mine = [owner_of(["a", "b"], *stream) for stream in STREAMS]
    assert readers(group) == [["a"] if owner == "a" else [] for owner in mine], "a has not seen that b came"
    before = group.version
    assert group.is_current(before)
    after = group.see("a")
    assert readers(group) == [[owner] for owner in mine]
    stream = next(each for each, owner in zip(STREAMS, mine, strict=True) if owner == "b")
    assert not group.may_read("b", *stream, before), "a has saved: b has to learn where its streams stand"
    assert group.may_read("b", *stream, after)
    assert group.see("b") == group.see("a") == after
    group.leave("a")
    assert not group.may_read("b", *stream, after), "a read that is open began where a's streams stood before"
    assert readers(group) == [["b"]] * len(STREAMS)


def test_a_silent_member_is_out_and_an_unknown_one_reads_nothing() -> None:
    group = Group()
    group.join("a", 1, 0)
    group.join("b", 2, 100)
    group.see("b")
    group.expire(MEMBER_MS + 50)
    assert list(group.members) == ["b"]
    assert readers(group) == [["b"]] * len(STREAMS)
    assert not group.may_read("a", *STREAMS[0], group.version)
    assert (group.named(2), group.named(1)) == ("b", None)


def test_a_member_that_has_seen_no_generation_for_long_may_have_anything() -> None:
    group = Group()
    group.join("slow", 1, 0)
    for number in range(GENERATIONS_MAX + 1):
        group.join("b", number, 0)
    assert all(found in ([], ["slow"]) for found in readers(group))


def test_two_members_never_read_a_stream_at_once() -> None:
    for seed in range(200):
        random, group = Random(seed), Group()
        held: dict[tuple[str, str], str] = {}
        """Who has rows of a stream in hand."""
        learned: dict[str, int] = {}
        for step in range(60):
            name = random.choice("abc")
            chance = random.random()
            if name not in group.members:
                group.join(name, step, 0)
                learned[name] = group.version
            elif chance < 0.15:
                group.leave(name)
                held = {stream: who for stream, who in held.items() if who != name}
            elif chance < 0.5:
                held = {stream: who for stream, who in held.items() if who != name}  # saved
                learned[name] = group.see(name)
            else:
                for stream in STREAMS:
                    if group.may_read(name, *stream, learned[name]):
                        assert held.get(stream, name) == name
                        held[stream] = name


def test_positions_of_a_group_only_rise() -> None:
    profile = ClientProfile("p", "t", None, None, {}, number=1)
    one = ClientState((profile,), {"t": {"x": 5, "y": 2}}, (), 1)
    other = ClientState((profile,), {"t": {"y": 7, "z": 1}}, (), 1)
    assert joined(one, other).frontier == {"t": {"x": 5, "y": 7, "z": 1}}
    assert joined(one, other).frontier == joined(other, one).frontier
    more = ClientState((profile, ClientProfile("q", "u", None, None, {}, number=2)), {"t": {"x": 1}, "u": {}}, (), 2)
    assert joined(one, more).profiles == joined(more, one).profiles == more.profiles
    assert joined(more, one).frontier == {"t": {"x": 5, "y": 2}, "u": {}}
    gone = ClientState((), {}, (), 3)
    assert joined(one, gone).frontier == {}
