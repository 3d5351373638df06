"""A batch that reached a node over none of its links is asked for when the next one shows that it is missing."""

import pytest

from m4cast.overlay.protocol.effects import Publish, Staged
from m4cast.overlay.sim.scenarios import Plan, Run
from m4cast.overlay.sim.world import Network, Place

ROUNDS = 100


def publish(run: Run, origin: Place, request: int) -> None:
    run.world.feed(origin, Publish(request, (Staged("default", 1, 1, b"x" * 100),)))


@pytest.mark.parametrize("latency_ms", [(5, 20), (20, 100)])
def test_a_gap_is_repaired_within_two_round_trips_of_the_asked_link(latency_ms: tuple[int, int]) -> None:
    """Many times: one node is deaf while a batch floods, and hears the next one."""
    run = Run(Plan("grow", 20), network=Network(latency_ms=latency_ms))
    assert run.join(20)
    for round_number in range(ROUNDS):
        deaf, origin = run.random.sample(run.world.up(), 2)
        senders = [end.other for end in deaf.ends.values()]
        for sender in senders:
            sender.silent = True
        publish(run, origin, 2 * round_number + 1)
        run.run_for(1_000)
        for sender in senders:
            sender.silent = False
        missed = len(run.metrics.repairs)
        publish(run, origin, 2 * round_number + 2)
        run.run_for(2_000)
        assert len(run.metrics.repairs) == missed + 1, "the deaf node missed exactly one batch"
    slow = [repair for repair in run.metrics.repairs if repair.ms > 2 * repair.round_trip_ms]
    assert len(slow) <= ROUNDS // 100, slow
    assert run.metrics.remote_deliveries == 2 * ROUNDS * 19
    assert run.metrics.duplicates == run.metrics.out_of_order == 0
