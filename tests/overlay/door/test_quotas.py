"""Quotas: what one client may take while others wait; keyed calls hold their bytes until they are complete."""

import threading
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from m4cast.overlay.door import quotas
from m4cast.overlay.door.quotas import ByteQuota, CallQuota, FilterCpu, KeyedCall, KeyedQuota
from m4cast.overlay.door.refusals import Refusal
from m4cast.overlay.protocol.effects import Staged

WAIT_S = 30


def stays() -> bool:
    return False


class Taking:
    """A client that waits for room on a thread of its own."""

    def __init__(self, room: ByteQuota, client: str, size: int, is_cancelled: Callable[[], bool] = stays) -> None:
        self.refusal: Refusal | None = None
        self._quota, self._client, self._size, self._is_cancelled = room, client, size, is_cancelled
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._quota.take(self._client, self._size, WAIT_S, self._is_cancelled)
        except Refusal as refusal:
            self.refusal = refusal

    def until_waiting(self) -> None:
        while not self._quota._waiting[self._client]:
            assert self._thread.is_alive()

    def done(self) -> None:
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()


def take(room: ByteQuota, client: str, size: int) -> bool:
    """True if there is room at once."""
    try:
        room.take(client, size, 0, stays)
    except Refusal as refusal:
        return refusal.code != "busy"
    return True


def test_one_client_alone_may_take_all_of_it_and_not_more() -> None:
    room = ByteQuota(100)
    assert take(room, "a", 60)
    assert take(room, "a", 40)
    assert not take(room, "a", 1)
    room.give_back("a", 40)
    assert take(room, "a", 1)


def test_one_that_is_larger_than_all_of_it_gets_it_alone() -> None:
    room = ByteQuota(100)
    assert take(room, "a", 500)
    assert not take(room, "b", 1)
    room.give_back("a", 500)
    assert take(room, "b", 1)
    assert not take(room, "a", 500)


def test_while_another_waits_a_client_is_held_to_half() -> None:
    room = ByteQuota(100)
    assert take(room, "greedy", 60) and take(room, "greedy", 30)
    other = Taking(room, "other", 45)
    other.until_waiting()
    room.give_back("greedy", 30)
    assert not take(room, "greedy", 5), "there would be room, but it has more than half"
    room.give_back("greedy", 60)
    other.done()
    assert take(room, "greedy", 55), "nobody waits any more"


def test_a_disconnected_client_does_not_wait() -> None:
    room = ByteQuota(100)
    assert take(room, "a", 100)
    other = Taking(room, "b", 1, is_cancelled=lambda: True)
    other.done()
    assert other.refusal is not None and other.refusal.code == "cancelled"


def test_calls_of_each_client_are_limited() -> None:
    calls = CallQuota(2)
    calls.begin("a")
    with calls.admitted("a"):
        with pytest.raises(Refusal, match="a has 2 open calls"):
            calls.begin("a")
        calls.begin("b")
    calls.begin("a")


# ---- keyed calls


class Writing:
    """Writes payloads of a keyed call, each on a thread that may have to wait."""

    def __init__(self, collecting: KeyedQuota, call: KeyedCall, *sizes: int) -> None:
        self.refusal: Refusal | None = None
        self._collecting, self._call, self._sizes = collecting, call, sizes
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            for size in self._sizes:
                write(self._collecting, self._call, size)
        except Refusal as refusal:
            self.refusal = refusal

    def until_waiting(self) -> None:
        while not self._collecting._waiting[self._call.client]:
            assert self._thread.is_alive()

    def done(self) -> None:
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()


def write(collecting: KeyedQuota, call: KeyedCall, size: int, timeout_s: float = WAIT_S) -> None:
    collecting.add(call, Staged("t", 1, 1, bytes(size)), timeout_s, stays)


def held_bytes(collecting: KeyedQuota) -> int:
    return sum(len(staged.payload) for call in collecting._late_at for staged in call.payloads)


def test_keyed_calls_that_hold_room_do_not_wait_for_each_other() -> None:
    collecting = KeyedQuota(100, WAIT_S)
    with collecting.call("b") as second:
        with collecting.call("a") as first:
            for call in (first, second):
                write(collecting, call, 50)
            write(collecting, first, 50)
            assert held_bytes(collecting) == 150
            write(collecting, second, 50)  # what the first one has is not counted any more
            waiting = Writing(collecting, second, 50)
            waiting.until_waiting()
            write(collecting, first, 50)
            assert len(collecting.complete(first)) == 3
        waiting.done()
        assert waiting.refusal is None
        assert len(collecting.complete(second)) == 3
    assert not collecting._taken and not collecting._taken_by and not collecting._late_at


def test_many_large_keyed_calls_at_a_time_all_succeed_within_the_limits() -> None:
    collecting = KeyedQuota(100, WAIT_S)
    holding = threading.Barrier(8)
    peaks: list[int] = []
    refusals: list[Refusal] = []

    def run(client: str) -> None:
        try:
            with collecting.call(client) as call:
                write(collecting, call, 10)
                holding.wait(WAIT_S)
                for _ in range(11):
                    write(collecting, call, 10)
                    with collecting._changed:
                        peaks.append(held_bytes(collecting))
                assert len(collecting.complete(call)) == 12
        except Refusal as refusal:
            refusals.append(refusal)

    threads = [threading.Thread(target=run, args=(f"client {number % 3}",)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert not refusals and not any(thread.is_alive() for thread in threads)
    assert len(peaks) == 8 * 11
    assert max(peaks) <= 100 + 120


def test_a_keyed_call_that_holds_room_for_too_long_loses_it_to_whoever_waits() -> None:
    collecting = KeyedQuota(100, hold_s=0)
    with collecting.call("silent") as silent, collecting.call("other") as other:
        write(collecting, silent, 80)
        write(collecting, silent, 80)
        write(collecting, other, 80)
        assert len(silent.payloads) == 2, "nobody had to wait"
        write(collecting, other, 80, timeout_s=0)
        assert not silent.payloads
        for go_on in (lambda: write(collecting, silent, 1), lambda: collecting.complete(silent)):
            with pytest.raises(Refusal, match="held 160 bytes for 0 s") as refused:
                go_on()
            assert refused.value.code == "busy"
        assert len(collecting.complete(other)) == 2
    assert not collecting._taken and not collecting._late_at


def test_a_keyed_call_that_is_asked_for_loses_its_room_and_nothing_else() -> None:
    collecting = KeyedQuota(100, hold_s=0)
    with collecting.call("slow to answer") as asked, collecting.call("other") as other:
        write(collecting, asked, 80)
        write(collecting, asked, 80)
        assert len(collecting.complete(asked)) == 2
        for _ in range(3):
            write(collecting, other, 80, timeout_s=0)
        assert len(collecting.complete(other)) == 3
    assert not collecting._taken and not collecting._late_at


def test_a_keyed_call_that_is_not_late_keeps_its_room() -> None:
    collecting = KeyedQuota(100, WAIT_S)
    with collecting.call("a") as apart, collecting.call("b") as shared, collecting.call("c") as none:
        write(collecting, apart, 80)
        write(collecting, apart, 80)
        write(collecting, shared, 80)
        with pytest.raises(Refusal, match="80 bytes of publishes wait") as refused:
            write(collecting, none, 80, timeout_s=0)
        assert refused.value.code == "busy"
        assert len(collecting.complete(apart)) == 2 and len(collecting.complete(shared)) == 1


# ---- CPU of filters


def test_a_budget_of_cpu_costs_pauses_beyond_what_was_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1_000.0]
    monkeypatch.setattr(quotas, "time", SimpleNamespace(monotonic=lambda: now[0]))
    cpu = FilterCpu()
    assert cpu.spend("free", 100, None) == 0
    assert cpu.spend("slow", 0.5, 0.5) == 0, "what it saved in a second pays for half a second"
    assert cpu.spend("slow", 0.5, 0.5) == pytest.approx(1)
    assert cpu.spend("slow", 0, 0.5) == pytest.approx(1), "all its calls pause"
    now[0] += 1
    assert cpu.spend("slow", 0, 0.5) == 0
    now[0] += 100
    assert cpu.spend("slow", 1, 0.5) == pytest.approx(1), "no more than a second is saved"
    assert cpu.so_far() == {"free": 100, "slow": 2}


def test_clients_beyond_the_limit_are_counted_together() -> None:
    cpu = FilterCpu()
    for number in range(quotas.CPU_CLIENTS_MAX + 2):
        cpu.spend(f"{number}", 1, None)
    spent = cpu.so_far()
    assert len(spent) == quotas.CPU_CLIENTS_MAX + 1
    assert spent[quotas.OTHER_CLIENTS] == 2
