"""The heap of a process that moves batches, a node or a Spark worker: glibc's malloc, told to keep what one batch frees
for the next, and no more than that.

By default glibc gives large pieces back and takes new ones, and each new page costs a fault; told to keep them, a node
at full load has none, and a Spark worker reads with a third less CPU. But what is freed between pieces that live on
stays with the process, too: with TLS, gRPC cuts a batch into small pieces, and a node that had published 1 GB held
120 MB so. That is given back now and then. Elsewhere than on glibc nothing is done.
"""

import asyncio
import ctypes
import resource
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import cast

OPTIONS = (
    (-8, 1),  # M_ARENA_MAX: threads use one heap, so that what one frees the other can take
    (-3, 32 << 20),  # M_MMAP_THRESHOLD: pieces up to this come from the heap
    (-1, 64 << 20),  # M_TRIM_THRESHOLD: as much free memory stays at the heap's end
    (-2, 1 << 20),  # M_TOP_PAD
)
FREE_BYTES_MAX = 64 << 20
"""Free memory that the process keeps. Raising it costs memory, lowering it faults for pages that it just gave back;
guess."""
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
    """Early in the process: what was allocated before keeps its place. Once is enough."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # not glibc
        return
    for option, value in OPTIONS:
        mallopt(option, value)


def _new_bytearray() -> Callable[[None, int], bytearray]:
    """The constructor of the C API: without bytes to copy it leaves the memory as it is."""
    try:
        new = ctypes.pythonapi.PyByteArray_FromStringAndSize
    except AttributeError:  # not CPython
        return lambda _, size: bytearray(size)
    new.restype = ctypes.py_object
    new.argtypes = (ctypes.c_char_p, ctypes.c_ssize_t)
    return cast(Callable[[None, int], bytearray], new)


_NEW_BYTEARRAY = _new_bytearray()


def unset(size: int) -> memoryview:
    """Memory to be filled: a bytearray that is not set to zeros first. At full speed the zeros cost a relay 6 % of its
    CPU; Arrow's buffers, which are aligned, do not find the place of the last one again and cost it page faults."""
    return memoryview(_NEW_BYTEARRAY(None, size))


async def give_back() -> None:
    """From time to time, until it is cancelled."""
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
        # What malloc calls free counts also what was given back already; what is resident does not.
        if _resident_bytes() - used.uordblks - used.hblkhd > FREE_BYTES_MAX:
            trim(FREE_BYTES_MAX // 2)


def _resident_bytes() -> int:
    """Of the process, without what it shares with files."""
    _, resident, shared, *_ = Path("/proc/self/statm").read_text(encoding="ascii").split()
    return (int(resident) - int(shared)) * resource.getpagesize()
