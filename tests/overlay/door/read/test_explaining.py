"""The rows that an explanation looks at."""

from pathlib import Path

import pytest

from m4cast.overlay.door.access.rights import EVERYTHING, Caller
from m4cast.overlay.door.quotas import ChunkQuota
from m4cast.overlay.door.read.explaining import Explaining, FilterQuestion
from m4cast.overlay.door.read.pacing import Pacing
from m4cast.overlay.door.read.portions import PortionReader
from m4cast.overlay.profiles import parse
from tests.overlay.door.read.filtered_parts import filtered_store
from tests.overlay.door.read.test_filtering import A, B, numbers


@pytest.mark.parametrize(
    ("rows", "tested", "matching"), [(0, 0, 0), (1, 2, 2), (2, 2, 2), (3, 2, 2), (4, 4, 2), (99, 8, 2)]
)
def test_of_each_stream_at_least_one_row_is_tested(tmp_path: Path, rows: int, tested: int, matching: int) -> None:
    with filtered_store(tmp_path) as here:
        for stream in (A, B):
            here.publish(stream, numbers(0))
        portions, pacing = PortionReader(here.store, ChunkQuota(1, 1)), Pacing(here.cpu, here.frontiers)
        explaining = Explaining(here.store, portions, here.catalogue, here.frontiers, pacing)
        question = FilterQuestion("t", parse("n = 3"), rows)
        found = explaining.explain(question, Caller("someone", EVERYTHING, lambda: False))
    assert (found["rows"], found["matching_rows"]) == (tested, matching)
