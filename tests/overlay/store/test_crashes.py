"""kill -9 at any moment: what was reported durable is there, and what is there is a prefix of what was asked for."""

import subprocess
import sys
from itertools import islice
from pathlib import Path
from random import Random

import pytest

from m4cast.overlay.protocol.effects import PublisherRecord
from m4cast.overlay.sim.disk import Disk
from m4cast.overlay.store.inspection import check
from m4cast.overlay.store.store import StoreLimits
from tests.overlay.protocol.append_parts import deliveries_of
from tests.overlay.store import crash_subject
from tests.overlay.store.store_parts import opened


def run_and_kill(folder: Path, seed: int) -> int:
    """Let the subject report a random number of times, kill it in whatever it does next; its last durable token."""
    subject = subprocess.Popen(
        [sys.executable, "-m", crash_subject.__name__, str(folder), str(seed)], stdout=subprocess.PIPE
    )
    assert subject.stdout
    for _ in range(Random(seed).randrange(25)):
        assert subject.stdout.readline().endswith(b"\n"), "the subject ended by itself"
    subject.kill()
    reported = subject.stdout.read().split(b"\n")[:-1]
    assert subject.wait() == -9
    subject.stdout.close()
    return int(reported[-1]) if reported else 0


@pytest.mark.parametrize("seed", range(10))
def test_a_killed_store_is_a_prefix_that_has_all_that_was_durable(tmp_path: Path, seed: int) -> None:
    durable = run_and_kill(tmp_path, seed)
    if not (tmp_path / "data.mdb").exists():
        assert durable == 0, "killed before it began"
        return
    with opened(tmp_path, limits=StoreLimits(map_bytes=1 << 30)) as store:
        recovered = store.recovered
        at = recovered.of(PublisherRecord).get("at")
        kept = int(at.position) if at else 0
        assert kept >= durable
        disk = Disk(recovered.node_id)
        disk.waiting = list(islice(crash_subject.life(recovered.node_id, seed), kept))
        disk.syncing = kept
        disk.sync_done()
        disk.content.incarnation = recovered.incarnation - 1
        assert recovered == disk.open()
        for stream, log in disk.content.logs.items():
            assert list(store.read_range(stream, 1, 1 << 40, 1 << 40)) == log.batches
        deliveries = [record.delivery for record in store.read_deliveries(0, 1 << 40)]
        expected = islice(crash_subject.life(recovered.node_id, seed), kept)
        assert deliveries == [delivery for append in expected for delivery in deliveries_of(append)]
    report = check(tmp_path)
    assert report.is_sound, report.problems
