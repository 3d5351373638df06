"""The heap of a node: what was freed between pieces that live on goes back to the system."""

import subprocess
import sys

from m4cast.overlay.heap import unset

PROGRAM = """
import asyncio
from pathlib import Path
from m4cast.overlay import heap

heap.recycle()
heap.LOOK_S = 0.01

def resident_mb():
    return heap._resident_bytes() // 1_000_000

async def main():
    pieces = [bytes(100_000) for _ in range(4_000)]
    full = resident_mb()
    kept = pieces[::20]  # scattered, so that the heap cannot shrink at its end
    del pieces
    giving = asyncio.create_task(heap.give_back())
    async with asyncio.timeout(30):
        while full - resident_mb() < 250:
            await asyncio.sleep(0.01)
    giving.cancel()
    print(len(kept), full - resident_mb() >= 250)

asyncio.run(main())
"""


def test_what_is_free_between_used_pieces_is_given_back() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.split() == ["200", "True"], done.stderr


def test_unset_memory_is_of_its_size_and_can_be_filled() -> None:
    for size in (0, 1, 1_000_001):
        memory = unset(size)
        assert (len(memory), memory.format, memory.readonly) == (size, "B", False)
        memory[:] = b"x" * size
        assert memory == b"x" * size
