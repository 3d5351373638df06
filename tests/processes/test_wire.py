"""The wire's lines, without a network: what becomes of a packet in which weather."""

from collections import Counter
from itertools import pairwise
from random import Random

from tests.processes.wire import FLYING_BYTES_MAX, QUEUE_BYTES_MAX, Line, Weather

SIZE = 1_000
PACKETS = 2_000


def line(**weather: float) -> tuple[Line, Counter[str]]:
    counts: Counter[str] = Counter()
    made = Line(Random(1), counts)
    made.weather = Weather(**weather)  # type: ignore[arg-type]  # numbers, all of them
    return made, counts


def dues(made: Line) -> list[float]:
    """The packets that arrive, of packets a millisecond apart."""
    found = (made.due(SIZE, number / 1000) for number in range(PACKETS))
    return [due for due in found if due is not None]


def test_on_a_fine_day_packets_arrive_when_they_are_sent() -> None:
    made, counts = line()
    assert dues(made) == [number / 1000 for number in range(PACKETS)] and not counts


def test_delay_and_jitter_keep_the_order() -> None:
    made, _ = line(delay_ms=100, jitter_ms=50)
    arrivals = dues(made)
    late_s = [due - number / 1000 for number, due in enumerate(arrivals)]
    assert arrivals == sorted(arrivals) and 0.05 <= min(late_s) < 0.1 < max(late_s) <= 0.15


def test_some_are_lost_and_some_overtake() -> None:
    made, counts = line(loss=0.1)
    assert len(dues(made)) == PACKETS - counts["lost"] and 0.05 < counts["lost"] / PACKETS < 0.15
    made, counts = line(delay_ms=100, reorder=0.2)
    arrivals = dues(made)
    overtaken = sum(later < earlier for earlier, later in pairwise(arrivals))
    assert len(arrivals) == PACKETS and 0 < overtaken <= counts["reordered"] < PACKETS / 3


def test_bandwidth_queues_a_little_and_drops_the_rest() -> None:
    made, counts = line(bytes_per_s=100_000)
    arrivals = dues(made)
    waited_s = [later - earlier for earlier, later in pairwise(arrivals)]
    assert min(waited_s) > 0.0099, "no faster than the line"
    assert counts["dropped"] == PACKETS - len(arrivals) > PACKETS / 2
    assert arrivals[-1] - PACKETS / 1000 <= QUEUE_BYTES_MAX / 100_000


def test_nothing_passes_a_cut_line_or_one_that_is_full() -> None:
    made, counts = line(cut=True)
    assert dues(made) == [] and counts["cut"] == PACKETS
    made, counts = line(delay_ms=100)
    made.flying_bytes = FLYING_BYTES_MAX - SIZE + 1
    assert made.due(SIZE, 0) is None and counts["dropped"] == 1


def test_faults_add_up_on_a_line() -> None:
    both = Weather(delay_ms=50, loss=0.1, bytes_per_s=500).and_also(Weather(delay_ms=20, loss=0.5, bytes_per_s=900))
    assert (both.delay_ms, round(both.loss, 6), both.bytes_per_s, both.cut) == (70, 0.55, 500, False)
    assert Weather().and_also(Weather(cut=True)).cut and Weather(bytes_per_s=7).and_also(Weather()).bytes_per_s == 7
