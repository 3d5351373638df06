"""Announced registrations: maximal ones, few enough, and safe where hashes collide."""

from random import Random

import pytest

from m4cast.overlay.profiles.boxes import covers
from m4cast.overlay.profiles.profile import read
from m4cast.overlay.protocol.effects import Registration
from m4cast.overlay.protocol.interest import registrations as module
from m4cast.overlay.protocol.interest.registrations import WIDE_PREFIX, Registrations
from m4cast.overlay.protocol.wire.interest import InterestItem
from tests.overlay.protocol.interest.mesh import wish


def add(rows: Registrations, each: str, where: str = "", topic: str = "t", epoch: int = 1, since_ms: int = 0) -> None:
    rows.add(wish(each, topic, where), "", epoch, since_ms)


def announced(rows: Registrations) -> list[str]:
    return sorted(item.text for item in rows.items())


def test_only_maximal_registrations_are_announced() -> None:
    rows = Registrations({})
    add(rows, "narrow", "x > 10 AND y = 'a'")
    add(rows, "other", "x < 3")
    add(rows, "wide", "x > 5")
    assert announced(rows) == ["`x` < 3", "`x` > 5"]
    assert rows.rows["narrow"].under == "wide"
    add(rows, "all")
    assert announced(rows) == [""]
    add(rows, "far", "x > 1", topic="u")
    assert announced(rows) == ["", "`x` > 1"]
    rows.remove("all", 2, 0)
    rows.remove("wide", 3, 0)
    assert announced(rows) == ["`x` < 3", "`x` > 1", "`x` > 10 AND `y` = 'a'"]


def test_equal_registrations_share_an_epoch_until_the_last_goes() -> None:
    rows = Registrations({})
    add(rows, "a", "x > 1", epoch=1, since_ms=5)
    add(rows, "b", "x > 1", epoch=2, since_ms=9)
    assert [(item.epoch, item.since_ms) for item in rows.items()] == [(1, 5)]
    rows.remove("a", 3, 0)
    assert [(item.epoch, item.since_ms) for item in rows.items()] == [(1, 9)]
    rows.remove("b", 4, 0)
    add(rows, "a", "x > 1", epoch=4)
    assert [item.epoch for item in rows.items()] == [4]


def test_a_registration_that_was_hidden_for_a_while_keeps_its_epoch() -> None:
    """Its rows came all the time, for the one that covered it."""
    rows = Registrations({})
    add(rows, "narrow", "x > 10", epoch=1)
    add(rows, "wide", "x > 1", epoch=2)
    rows.remove("wide", 3, 0)
    assert [item.epoch for item in rows.items()] == [1]


def test_what_is_stored_is_what_is_announced_after_a_restart() -> None:
    rows = Registrations({})
    add(rows, "narrow", "x > 10")
    add(rows, "wide", "x > 5")
    again = Registrations(dict(rows.rows))
    assert again.items() == rows.items()
    again.remove("wide", 2, 0)
    assert announced(again) == ["`x` > 10"]


def test_undo_restores_everything() -> None:
    rows = Registrations({})
    add(rows, "a", "x > 10")
    before = dict(rows.rows)
    rows.take_journal()
    add(rows, "b", "x > 1")
    rows.remove("a", 2, 0)
    add(rows, "c", "y = 2")
    rows.undo(rows.take_journal())
    assert rows.rows == before
    assert announced(rows) == ["`x` > 10"]
    rows.remove("a", 3, 0)
    assert rows.items() == []


def test_a_language_that_is_unknown_covers_only_itself() -> None:
    row = Registration(
        topic="t",
        language="future",
        version=9,
        text="???",
        canonical="???",
        owner="",
        epoch=1,
        since_ms=0,
        earliest=False,
        under="",
    )
    rows = Registrations({"f": row})
    add(rows, "a", "x > 1")
    assert announced(rows) == ["???", "`x` > 1"]


def test_an_overlong_filter_is_announced_as_every_row() -> None:
    rows = Registrations({})
    large = [f"{number}e35" for number in range(100, 210)]  # 38 digits each in canonical form
    add(rows, "fits", f"x IN ({', '.join(large[:100])})")
    (item,) = rows.items()
    assert 4_000 < len(item.text) <= 4_096 and (item.language, item.version) == ("sql", 1)
    rows.remove("fits", 2, 0)
    add(rows, "long", f"x IN ({', '.join(large)})")
    (item,) = rows.items()
    assert (item.language, item.version, item.text) == ("", 0, "")


# ---- collisions (I-F9, I26)


def test_topics_with_one_hash_are_one_item_and_a_leave_of_either_is_seen() -> None:
    rows = Registrations({}, hash_of=lambda name: 7)
    add(rows, "a", topic="A", epoch=1)
    add(rows, "b", topic="B", epoch=1)
    assert len(rows.items()) == 1
    rows.remove("a", 2, 0)
    assert [item.epoch for item in rows.items()] == [2]


def test_profiles_with_one_hash_want_every_row() -> None:
    rows = Registrations({}, hash_of=lambda name: 7)
    add(rows, "a", "x > 1")
    add(rows, "b", "y < 2")
    (item,) = rows.items()
    assert (item.language, item.text) == ("", "")
    rows.remove("a", 2, 0)
    (item,) = rows.items()
    assert (item.text, item.epoch) == ("`y` < 2", 2)


# ---- limits


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ANNOUNCED_MAX", 16)


@pytest.mark.usefixtures("few")
def test_too_many_become_conditions_on_one_column() -> None:
    rows = Registrations({})
    for i in range(16):
        add(rows, f"r{i}", f"country = 'c{i % 4}' AND customer = {i}")
    assert len(rows.items()) == 16
    add(rows, "r16", "country = 'c0' AND customer = 16")
    assert announced(rows) == [f"`country` = 'c{i}'" for i in range(4)]
    for i in range(13):
        rows.remove(f"r{i}", 2 + i, 0)
    assert len(rows.items()) == 4  # a quarter of the limit is left: the narrow ones are announced again
    assert not any(each.startswith(WIDE_PREFIX) for each in rows.rows)


@pytest.mark.usefixtures("few")
def test_too_many_without_a_common_column_become_every_row() -> None:
    rows = Registrations({})
    for i in range(17):
        add(rows, f"r{i}", f"c{i} = 1")
    assert announced(rows) == [""]


@pytest.mark.usefixtures("few")
def test_wider_ones_that_are_too_many_again_become_every_row() -> None:
    rows = Registrations({})
    for i in range(17):
        add(rows, f"r{i}", f"country = 'c{i % 2}' AND customer = {i}")
    for i in range(20):
        add(rows, f"s{i}", f"other = {i}")
    assert announced(rows) == [""]


def test_too_many_bytes_become_wider_ones() -> None:
    rows = Registrations({})
    for i in range(80):
        add(rows, f"r{i}", f"country = 'PL' AND note = '{i:04}{'x' * 3_900}'")
    assert announced(rows) == ["`country` = 'PL'"]


def test_uncovering_too_many_widens_again(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = Registrations({})
    add(rows, "all")
    for i in range(40):
        add(rows, f"r{i}", f"country = 'c{i % 3}' AND customer = {i}")
    monkeypatch.setattr(module, "ANNOUNCED_MAX", 16)
    rows.remove("all", 2, 0)
    assert announced(rows) == [f"`country` = 'c{i}'" for i in range(3)]


@pytest.mark.parametrize("seed", range(20))
def test_whatever_comes_and_goes_everything_is_covered(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ANNOUNCED_MAX", 8)
    random, rows = Random(seed), Registrations({})
    for step in range(120):
        each = f"r{random.randrange(25)}"
        if random.random() < 0.4:
            if each in rows.rows:
                rows.remove(each, step, 0)
        else:
            add(rows, each, random.choice([f"x > {random.randrange(9)}", f"c = 'a' AND y = {random.randrange(30)}"]))
        items = rows.items()
        assert len(items) <= 9
        for row in rows.rows.values():
            assert any(_covers(item, row) for item in items), row
        assert sorted(Registrations(dict(rows.rows)).items()) == sorted(items)


def _covers(item: InterestItem, row: Registration) -> bool:
    if not item.text or item.text == row.canonical:
        return True
    return bool(row.canonical) and covers(read(item.text).condition, read(row.canonical).condition)
