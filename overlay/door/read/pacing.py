"""The pace of filtered reads: their CPU time is counted, and a client that exceeds its budget pauses."""

import time
from collections.abc import Iterator
from typing import TypeVar

from m4cast.overlay.door.access.rights import Caller
from m4cast.overlay.door.frontiers import LOOK_S, Frontiers
from m4cast.overlay.door.quotas import FilterCpu

T = TypeVar("T")


class Pacing:
    """Any thread may use it."""

    def __init__(self, cpu: FilterCpu, frontiers: Frontiers) -> None:
        self._cpu = cpu
        self._frontiers = frontiers

    def count(self, caller: Caller, cpu_s: float) -> float:
        """Count CPU time. Returns how long the client has to pause."""
        return self._cpu.spend(caller.name, cpu_s, caller.rights.filter_cpu)

    def paced(self, caller: Caller, steps: Iterator[T]) -> Iterator[T]:
        """The same steps; their CPU time is counted, and after each the client is looked for."""
        while True:
            began_s = time.thread_time()
            step = next(steps, None)
            cpu_s = time.thread_time() - began_s
            if step is None:
                self.count(caller, cpu_s)
                return
            yield step
            self.pay(caller, cpu_s)

    def counted(self, caller: Caller | None, steps: Iterator[T]) -> Iterator[T]:
        """The same without pauses, for work that others wait for. None: nobody's; it ends with the node."""
        while True:
            began_s = time.thread_time()
            step = next(steps, None)
            if caller is not None:
                self.count(caller, time.thread_time() - began_s)
            if step is None:
                return
            yield step
            self._frontiers.refuse_ended(_never if caller is None else caller.is_cancelled)

    def pay(self, caller: Caller, cpu_s: float) -> None:
        """Count CPU time, and pause if it exceeds the client's budget. Refuses when the call is over."""
        pause_s = self.count(caller, cpu_s)
        self._frontiers.refuse_ended(caller.is_cancelled)
        while pause_s > 0:
            self._frontiers.wait_closed(min(pause_s, LOOK_S))
            pause_s -= LOOK_S
            self._frontiers.refuse_ended(caller.is_cancelled)


def _never() -> bool:
    return False
