"""The heap of a process that moves batches, a node or a Spark worker: glibc's malloc, set to keep what one batch frees
for the next, and no more than that.

By default glibc returns large blocks to the system and takes new ones, and each new page costs a fault. Set to keep
them, a node at full load has no such faults, and a Spark worker reads with a third less CPU. But memory that is freed
between blocks that live on stays with the process, too: with TLS, gRPC cuts a batch into small blocks, and a node that
had published 1 GB held 120 MB in this way. That memory is returned now and then. Without glibc nothing is done.
"""

import ctypes
import resource
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import cast

OPTIONS = (
    (-8, 1),  # M_ARENA_MAX: threads share one heap, so that one can reuse what another frees
    (-3, 32 << 20),  # M_MMAP_THRESHOLD: blocks up to this size come from the heap
    (-1, 64 << 20),  # M_TRIM_THRESHOLD: this much free memory stays at the heap's end
    (-2, 1 << 20),  # M_TOP_PAD
)
FREE_BYTES_MAX = 64 << 20
"""Free memory that the process keeps. Raising it costs memory, lowering it page faults for memory that was just
returned. Guess."""
LOOK_S = 1.0


class _Usage(ctypes.Structure):
    """`struct mallinfo2`."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        )
    )


@cache
def recycle() -> None:
    """Set malloc up, once. To be called early: memory that was allocated before stays where it is."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # not glibc
        return
    for option, value in OPTIONS:
        mallopt(option, value)


def _new_bytearray() -> Callable[[None, int], bytearray]:
    """The constructor of the C API: without bytes to copy it leaves the memory uninitialised."""
    try:
        new = ctypes.pythonapi.PyByteArray_FromStringAndSize
    except AttributeError:  # not CPython
        return lambda _, size: bytearray(size)
    new.restype = ctypes.py_object
    new.argtypes = (ctypes.c_char_p, ctypes.c_ssize_t)
    return cast(Callable[[None, int], bytearray], new)


_NEW_BYTEARRAY = _new_bytearray()


def unset(size: int) -> memoryview:
    """Memory to be filled: a bytearray that is not zeroed first. At full speed, zeroing costs a relay 6 % of its CPU.
    Arrow's buffers, which are aligned, do not reuse the place of the last one and cost it page faults."""
    return memoryview(_NEW_BYTEARRAY(None, size))


async def give_back() -> None:
    """Return free memory to the system from time to time, until cancelled."""
    import asyncio  # here, since Spark's workers do without it

    try:
        libc = ctypes.CDLL(None)
        usage, trim = libc.mallinfo2, libc.malloc_trim
    except (OSError, AttributeError):  # not glibc, or one before 2.33
        return
    usage.restype = _Usage
    trim.argtypes = (ctypes.c_size_t,)
    while True:
        await asyncio.sleep(LOOK_S)
        used = usage()
        # What malloc counts as free includes what was returned already; resident memory does not.
        if _resident_bytes() - used.uordblks - used.hblkhd > FREE_BYTES_MAX:
            trim(FREE_BYTES_MAX // 2)


def _resident_bytes() -> int:
    """Resident memory of the process, without pages shared with files."""
    _, resident, shared, *_ = Path("/proc/self/statm").read_text(encoding="ascii").split()
    return (int(resident) - int(shared)) * resource.getpagesize()
