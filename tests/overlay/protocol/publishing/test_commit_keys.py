"""Limits and owners of publisher keys and topics, and removal of keys: by expiry, or on request."""

from random import Random

import pytest

from m4cast.overlay.ids import StreamId
from m4cast.overlay.protocol.effects import Commit, Disown, Publish, Refused, RemoveKey
from m4cast.overlay.protocol.publishing.commit_limits import CommitLimits
from m4cast.overlay.protocol.publishing.keys import key_bytes
from tests.overlay.protocol.append_parts import removed_keys_of
from tests.overlay.protocol.commit_world import ME, World, move, payload

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
ONE_KEY = key_bytes("k0", "1", ())
EXPIRE_MS = 30 * DAY_MS


def create(world: World, key: str, owner: str = "") -> Refused | None:
    """Move a new key to 1; the refusal, if it is one."""
    request = world.next_token()
    world.ask(Commit(request, (), (move(key, None, 1),), owner=owner))
    world.sync()
    assert (request in world.answers) != (request in world.refused)
    return world.refused.get(request)


def fill(world: World, owner: str, count: int = 100) -> Refused:
    for number in range(count):
        if refused := create(world, f"{owner}{number}", owner):
            return refused
    raise AssertionError(f"{count} keys were taken")


# ---- limits


def test_one_client_uses_up_its_share_of_keys_and_others_go_on() -> None:
    world = World(CommitLimits(publisher_bytes_max=10 * ONE_KEY, client_publisher_bytes_max=3 * ONE_KEY))
    refused = fill(world, "a")
    assert refused.code == "too-many"
    assert f"client 'a' take {3 * ONE_KEY} bytes" in refused.detail
    assert "client_publisher_bytes_max" in refused.detail
    assert "m4cast publishers remove" in refused.detail
    assert sorted(world.disk.publishers) == ["a0", "a1", "a2"]
    assert create(world, "b0", "b") is None
    world.crash(0)
    assert fill(world, "a").code == "too-many", "the share is known after a restart"
    assert create(world, "b1", "b") is None


def test_all_keys_together_are_limited_also_those_of_nobody() -> None:
    world = World(CommitLimits(publisher_bytes_max=5 * ONE_KEY, client_publisher_bytes_max=3 * ONE_KEY))
    fill(world, "a")
    create(world, "n0")
    create(world, "n1")
    refused = create(world, "b0", "b")
    assert refused is not None
    assert (refused.code, "publisher_bytes_max" in refused.detail) == ("too-many", True)
    assert create(world, "n2") is not None
    world.crash(0)
    assert create(world, "b0", "b") is not None


def test_what_a_key_remembers_counts() -> None:
    """Positions and ranges are memory, too: a key with as many topics as a commit may have is no small thing."""
    world = World(CommitLimits(client_publisher_bytes_max=100 * ONE_KEY))
    wide = tuple(payload(f"p{n}", f"topic-{n}") for n in range(50))
    keys = 0
    while not world.refused:
        world.ask(Publish(world.next_token(), wide, (move(f"k{keys}", None, 1),), owner="a"))
        keys += 1
    (refused,) = world.refused.values()
    assert (refused.code, keys < 10) == ("too-many", True)


def test_keys_that_exist_move_on_when_others_have_taken_all_there_is() -> None:
    world = World(CommitLimits(publisher_bytes_max=20 * ONE_KEY))
    create(world, "mine", "m")
    fill(world, "a")
    for number in range(1, 200):  # also when the position gets longer
        world.ask(Commit(1_000 + number, (), (move("mine", number, number + 1),), owner="m"))
    world.sync()
    assert world.disk.publishers["mine"].position == "200"


def test_an_ordinary_key_moves_on_however_much_is_used_up() -> None:
    """The same holds for an older store that has far more keys than new ones are allowed."""
    world = World()
    world.ask(Publish(1, (payload("x"),), (move("mine", None, 9),)))
    for number in range(100):
        create(world, f"n{number}")
    world.limits = CommitLimits(publisher_bytes_max=ONE_KEY, client_publisher_bytes_max=ONE_KEY)
    world.crash(0)
    world.ask(Publish(1_000, (payload("y"), payload("z", "u")), (move("mine", 9, 10_000_000),), owner="m"))
    world.sync()
    assert 1_000 in world.answers
    assert create(world, "new") is not None


def test_keys_that_exist_cannot_grow_without_end() -> None:
    world = World(CommitLimits(client_publisher_bytes_max=4 * ONE_KEY))
    fill(world, "a")
    wide = tuple(payload(f"p{n}", f"topic-{n}") for n in range(50))
    world.ask(Publish(900, wide, (move("a0", 1, 2),), owner="a"))
    assert world.refused[900].code == "too-many"
    world.ask(Publish(901, (payload("p", "t"),), (move("a0", 1, 2),), owner="a"))
    world.sync()
    assert 901 in world.answers


def test_a_key_counts_towards_its_creator() -> None:
    world = World(CommitLimits(client_publisher_bytes_max=ONE_KEY))
    create(world, "k0", "a")
    world.ask(Commit(900, (), (move("k0", 1, 2),), owner="b"))
    world.sync()
    assert world.disk.publishers["k0"].owner == "a"
    assert create(world, "k1", "b") is None
    assert create(world, "k2", "a") is not None


def test_a_refused_commit_and_a_failed_one_take_nothing() -> None:
    world = World(CommitLimits(client_publisher_bytes_max=2 * ONE_KEY))
    world.ask(Commit(900, (), (move("k0", None, 1), move("k1", None, 1), move("k2", None, 1)), owner="a"))
    assert world.refused[900].code == "too-many"
    world.ask(Commit(901, (), (move("k0", None, 1), move("k1", None, 1)), owner="a"))
    world.break_at(0)
    world.report_failure()
    world.ask(Commit(902, (), (move("k0", None, 1), move("k1", None, 1)), owner="a"))
    world.sync()
    assert 902 in world.answers


def test_one_client_uses_up_its_share_of_topics_and_others_go_on() -> None:
    world = World(CommitLimits(topics_max=10, client_topics_max=2))
    world.ask(Publish(1, (payload("x", "a1"), payload("y", "a2")), owner="a"))
    world.ask(Publish(2, (payload("x", "a3"),), owner="a"), Publish(3, (payload("x", "a2"),), owner="a"))
    world.ask(Publish(4, (payload("x", "b1"),), owner="b"), Publish(5, (payload("x", "n1"),)))
    world.sync()
    assert list(world.answers) == [1, 3, 4, 5]
    refused = world.refused[2]
    assert (refused.code, "client 'a' created 2 topics" in refused.detail) == ("too-many", True)
    assert "client_topics_max" in refused.detail
    world.crash(0)
    world.ask(Publish(6, (payload("x", "a3"),), owner="a"))
    assert world.refused[6].code == "too-many", "the share is known after a restart"


@pytest.mark.parametrize("restart", [False, True])
def test_a_disowned_topic_counts_for_the_node_alone_and_its_numbering_goes_on(restart: bool) -> None:
    world = World(CommitLimits(topics_max=2, client_topics_max=1))
    world.ask(Publish(1, (payload("x", "a1"),), owner="a"), Disown("a1"), Disown("unknown"))
    world.sync()
    if restart:
        world.crash(0)
    world.ask(Publish(2, (payload("x", "a2"),), owner="a"), Publish(3, (payload("y", "a1"),), owner="a"))
    world.ask(Publish(4, (payload("x", "a3"),), owner="b"))
    world.sync()
    assert [rows.first_sequence for rows in world.answers[3]] == [2]
    assert 2 in world.answers
    assert "topics_max" in world.refused[4].detail


# ---- removal


def test_removing_a_key_returns_its_position() -> None:
    world = World(CommitLimits(client_publisher_bytes_max=ONE_KEY))
    create(world, "k0", "a")
    world.ask(RemoveKey(900, "k0", "a"))
    assert 900 not in world.removed, "not before it is durable"
    world.sync()
    assert world.removed == {900: "1"}
    assert world.disk.publishers == {}
    assert create(world, "k1", "a") is None
    world.ask(RemoveKey(901, "never"))
    assert world.removed[901] is None


def test_only_its_creator_or_an_administrator_removes_a_key() -> None:
    world = World()
    create(world, "a0", "a")
    create(world, "n0")
    world.ask(RemoveKey(900, "a0", "b"), RemoveKey(901, "n0", "b"))
    assert [world.refused[number].code for number in (900, 901)] == ["forbidden", "forbidden"]
    assert "was created by client 'a', not by 'b'" in world.refused[900].detail
    world.ask(RemoveKey(902, "a0"), RemoveKey(903, "n0"))
    world.sync()
    assert world.disk.publishers == {}


def test_a_key_is_not_removed_while_a_commit_of_it_is_under_way() -> None:
    world = World()
    create(world, "k")
    world.ask(Commit(900, (), (move("k", 1, 2),)), RemoveKey(901, "k"))
    assert world.refused[901].code == "busy"
    world.sync()
    world.ask(RemoveKey(902, "k"))
    world.sync()
    assert world.removed == {902: "2"}


def test_a_key_can_be_made_again_while_its_removal_is_under_way() -> None:
    world = World()
    create(world, "k")
    world.ask(RemoveKey(900, "k"), Commit(901, (), (move("k", None, 7),)), RemoveKey(902, "k"))
    assert world.refused[902].code == "busy"
    world.sync(1)
    world.ask(RemoveKey(903, "k"))
    assert world.refused[903].code == "busy", "its new first commit is still under way"
    world.sync()
    assert (world.removed, world.disk.publishers["k"].position) == ({900: "1"}, "7")


def test_a_removal_that_failed_is_refused_and_the_key_stays() -> None:
    world = World()
    create(world, "k")
    world.ask(RemoveKey(900, "k"))
    world.break_at(0)
    world.report_failure()
    assert world.refused[900].code == "store"
    world.ask(Commit(901, (), (move("k", 1, 2),)))
    world.sync()
    assert 901 in world.answers


# ---- expiry


def stay_up(world: World, for_ms: int) -> None:
    """The node runs on: it looks at its clock every hour, at least."""
    for step_ms in [HOUR_MS] * (for_ms // HOUR_MS) + [for_ms % HOUR_MS]:
        world.now_ms += step_ms
        world.machine.up_ms(world.now_ms)


def test_a_key_expires_when_it_was_not_used_for_long_enough() -> None:
    world = World(CommitLimits(publisher_expire_ms=EXPIRE_MS))
    create(world, "old")
    stay_up(world, DAY_MS)
    create(world, "new")
    stay_up(world, EXPIRE_MS - DAY_MS - 1)
    world.sweep_keys()
    assert sorted(world.disk.publishers) == ["new", "old"]
    stay_up(world, 1)
    world.sweep_keys()
    assert sorted(world.disk.publishers) == ["new"]


@pytest.mark.parametrize("use", ["move", "position", "repeat"])
def test_a_key_that_is_used_does_not_expire(use: str) -> None:
    world = World(CommitLimits(publisher_expire_ms=EXPIRE_MS))
    create(world, "k")
    for number in range(10):
        stay_up(world, EXPIRE_MS - 1)
        if use == "position":
            world.machine.position("k")
        elif use == "move":
            world.ask(Commit(900 + number, (), (move("k", number + 1, number + 2),)))
        else:
            world.ask(Commit(900 + number, (), (move("k", None, 1),)))
        world.sync()
        world.sweep_keys()
        assert "k" in world.disk.publishers


def test_an_expired_key_is_never_silently_numbered_again() -> None:
    world = World(CommitLimits(publisher_expire_ms=EXPIRE_MS))
    create(world, "k")
    stay_up(world, EXPIRE_MS)
    world.sweep_keys()
    world.ask(Publish(900, (payload("x"),), (move("k", 1, 2),)))
    refused = world.refused[900]
    assert refused.code == "wrong-position"
    assert "actual none" in refused.detail
    assert "expired after 30 days without use" in refused.detail
    assert world.disk.log == {}


def test_keys_expire_by_the_time_the_node_was_up_not_by_the_clock() -> None:
    """A clock that is set a year forward, and a node that was away for a year, are the same to it."""
    world = World(CommitLimits(publisher_expire_ms=EXPIRE_MS))
    create(world, "k")
    for _ in range(5):
        world.crash(0)
        world.now_ms += 365 * DAY_MS
        world.sweep_keys()
        assert "k" in world.disk.publishers
    world.crash(0)
    world.now_ms -= 3 * 365 * DAY_MS  # and set back again
    world.sweep_keys()
    assert "k" in world.disk.publishers


def test_no_key_expires_because_the_clock_jumps_while_the_node_runs() -> None:
    world = World(CommitLimits(publisher_expire_ms=EXPIRE_MS))
    create(world, "k")
    for _ in range(5):
        world.now_ms += 365 * DAY_MS
        world.sweep_keys()
    assert "k" in world.disk.publishers


def test_up_time_adds_up_over_restarts() -> None:
    world = World(CommitLimits(publisher_expire_ms=EXPIRE_MS))
    create(world, "k")
    for day in range(30):
        assert "k" in world.disk.publishers, day
        stay_up(world, DAY_MS)
        world.sweep_keys()
        world.crash(0)
        world.sweep_keys()
    assert "k" not in world.disk.publishers


def test_keys_without_a_last_use_count_from_the_first_look() -> None:
    """They come from a store of before, or with batches of a former identity."""
    world = World(CommitLimits(publisher_expire_ms=EXPIRE_MS))
    create(world, "k")
    for key, state in world.disk.publishers.items():
        world.disk.publishers[key] = type(state)(state.position, state.ranges, state.origin, state.origin_batch)
    world.disk.up_ms = 10 * EXPIRE_MS
    world.crash(0)
    world.sweep_keys()
    stay_up(world, EXPIRE_MS - 1)
    world.sweep_keys()
    assert "k" in world.disk.publishers
    stay_up(world, 1)
    world.sweep_keys()
    assert world.disk.publishers == {}


def test_expiry_goes_in_steps_and_leaves_what_is_under_way() -> None:
    world = World(CommitLimits(publisher_expire_ms=EXPIRE_MS, sweep_keys=3))
    for number in range(10):
        create(world, f"k{number}")
    stay_up(world, EXPIRE_MS)
    world.ask(Commit(900, (), (move("k5", 1, 2),)))
    largest = 0
    goes_on = True
    while goes_on:
        outcomes, goes_on = world.machine.sweep_keys(world.now_ms)
        world.perform(outcomes)
        largest = max(largest, *(len(removed_keys_of(append)) for append in world.asked))
    world.sync()
    assert (list(world.disk.publishers), largest) == (["k5"], 3)
    assert 900 in world.answers


def test_nothing_is_written_for_keys_that_are_not_there() -> None:
    world = World()
    assert world.sweep_keys() == 1
    assert world.kept == []


# ---- all of it by chance


@pytest.mark.parametrize("seed", range(30))
def test_what_keys_take_is_what_a_restart_would_count(seed: int) -> None:
    """Commits, removals, sweeps, failures and crashes in any order: the machine's sums are those of its store."""
    random = Random(seed)
    limits = CommitLimits(publisher_expire_ms=EXPIRE_MS, sweep_keys=2, client_publisher_bytes_max=6 * ONE_KEY)
    world = World(limits)
    for number in range(1_000, 1_300):
        key, owner = random.choice("klmno") + random.choice("xyz"), random.choice(["", "a", "b"])
        match random.randrange(8):
            case 0 | 1 | 2:
                rows = tuple(payload(f"{number}", topic) for topic in random.sample("tuv", random.randrange(3)))
                expect = world.machine.position(key)
                said = int(expect.position) if expect else None
                world.ask(Publish(number, rows, (move(key, said, number),), owner=owner))
            case 3:
                world.ask(RemoveKey(number, key, random.choice([None, owner])))
            case 4:
                stay_up(world, random.choice([1, DAY_MS, EXPIRE_MS // 2]))
                world.perform(world.machine.sweep_keys(world.now_ms)[0])
            case 5 | 6:
                world.sync(random.randrange(4))
            case 7 if world.asked and random.random() < 0.5:
                world.break_at(random.randrange(len(world.asked)))
                world.sync()
                world.report_failure()
                world.failing.clear()
            case 7:
                world.crash(random.randrange(len(world.asked) + 1))
    world.sync()
    sizes = world.machine.keys_bytes(), dict(world.machine._view.publishers.shares)
    assert world.machine._view.publishers.states == {}
    world.crash(0)
    assert (world.machine.keys_bytes(), world.machine._view.publishers.shares) == sizes
    assert all(share <= 6 * ONE_KEY * 5 // 4 for share in sizes[1].values())
    assert all(stream.origin == ME for stream in world.disk.owners)
    assert StreamId(ME, "t") in world.disk.log
