"""Port search: how far a seeker is in the channel's order of ports (PROTOCOL.md 4.2; the patents' figure 9).

The search goes depth by depth: every portal host at one port, then every one at the next. `searched` counts the ports,
from the first on, at which no node of the channel was found; fellow seekers exchange it, and pass over what the other
has searched. The first ports may be taken in another order, so that a crowd does not call the same one first.
"""

from collections.abc import Sequence
from random import Random

from m4cast.overlay.config import PortalShuffle

HEAD = 8
"""This many ports of the order are shuffled (seed)."""


class PortSearch:
    def __init__(self, hosts: Sequence[str], order: Sequence[int], shuffle: PortalShuffle, random: Random) -> None:
        self._hosts = hosts
        self._order = order if hosts else ()
        self._shuffle = shuffle
        self._random = random
        self.searched = 0
        """At all hosts, ports from the first of the order on."""
        self._out_of_order: dict[int, None] = {}
        """Depths past `searched` that are done too."""
        self._todo: list[int] = []
        self._current: int | None = None

    @property
    def first_addresses(self) -> list[str]:
        """The addresses at which the first node of each portal host listens."""
        return [f"{host}:{self._order[0]}" for host in self._hosts]

    def begin(self) -> None:
        """Start again at the first port."""
        self.searched = 0
        self._out_of_order.clear()
        self._current = None
        depths = list(range(len(self._order)))
        self._todo = self._shuffled(depths[:HEAD]) + depths[HEAD:]

    def stop(self) -> None:
        self._todo = []
        self._current = None

    def _shuffled(self, head: list[int]) -> list[int]:
        if self._shuffle == "off":
            return head
        if self._shuffle == "first-8":
            self._random.shuffle(head)
            return head
        taken = []
        while head:  # the first that is left with probability 1/2, the next with 1/4, ...
            at = 0
            while at < len(head) - 1 and self._random.random() < 0.5:
                at += 1
            taken.append(head.pop(at))
        return taken

    def next(self) -> list[str]:
        """The addresses of the next depth, the one before it being done; none when all are."""
        if self._current is not None:
            self._done(self._current)
            self._current = None
        if not self._todo:
            return []
        self._current = self._todo.pop(0)
        return [f"{host}:{self._order[self._current]}" for host in self._hosts]

    def _done(self, depth: int) -> None:
        self._out_of_order[depth] = None
        while self.searched in self._out_of_order:
            del self._out_of_order[self.searched]
            self.searched += 1

    def share(self, searched: int) -> None:
        """A fellow seeker has searched this many ports."""
        for depth in range(self.searched, min(searched, len(self._order))):
            if depth != self._current and depth in self._todo:
                self._todo.remove(depth)
                self._done(depth)
