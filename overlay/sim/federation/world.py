"""The simulated federation: sites with a machine and a disk, links that keep order, and a clock that jumps.

A link that a site made is made again when it was lost, as a driver does for the gateways of its configuration.
"""

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from heapq import heappop, heappush
from random import Random

from m4cast.overlay.federation.contract import (
    AdditionDone,
    AdditionFailed,
    AddressHeard,
    ClientGone,
    ClientRefused,
    CloseLink,
    ConnectFailed,
    ConnectTo,
    DeliverEvent,
    FederationInput,
    FederationOutput,
    FederationRecovered,
    FederationSettings,
    KeepValue,
    KeptKey,
    KeptPlace,
    KeptValue,
    LinkClosed,
    LinkHeard,
    LinkOpened,
    MailUnknown,
    MatchedUnits,
    PartitionChanged,
    SendAddress,
    SendLink,
    TimeCame,
    TopicQuenched,
    UnsendCopies,
    WantActive,
)
from m4cast.overlay.federation.federation import Federation
from m4cast.overlay.federation.messages import EventCopy, EventId, LinkMessage, UnitEvent
from m4cast.overlay.federation.units import Unit, UnitId, new_unit_id, records_of_chain

RELINK_MS = 500
"""The delay before a lost link is tried again."""


@contextmanager
def uncollected() -> Iterator[None]:
    """Without Python's collector of cycles: of millions of values none is in a cycle, and to look for one takes a tenth
    of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@dataclass(slots=True, eq=False)
class LinkEnd:
    conn: int
    site: "FederationSite"
    other: "LinkEnd | None" = None
    is_open: bool = True
    clear_at_ms: int = 0
    """The time at which the last message sent from here arrives: messages do not overtake each other."""
    is_stalled: bool = False
    queue: list[LinkMessage] = field(default_factory=list)
    """The messages that a stalled link has not sent yet."""


@dataclass(slots=True, eq=False)
class FederationSite:
    name: str
    unit: Unit
    kept: dict[KeptKey, KeptValue] = field(default_factory=dict)
    incarnation: int = 0
    machine: Federation | None = None
    ends: dict[int, LinkEnd] = field(default_factory=dict)
    links_to: dict[str, None] = field(default_factory=dict)
    """Addresses of sites that this one links to."""
    stored: dict[str, dict[EventId, UnitEvent]] = field(default_factory=dict)
    """Events on disk that clients who are away have yet to get."""
    wake_at_ms: int = -1

    @property
    def up(self) -> bool:
        return self.machine is not None

    def running(self) -> Federation:
        assert self.machine is not None, f"{self.name} is down"
        return self.machine


class FederationWatcher:
    """Observes a run. All methods do nothing here."""

    def delivered_to(self, site: FederationSite, delivery: DeliverEvent) -> None: ...
    def matched(self, site: FederationSite, matched: MatchedUnits) -> None: ...
    def active(self, site: FederationSite, active: WantActive) -> None: ...
    def gone(self, site: FederationSite, gone: ClientGone) -> None: ...
    def sent(self, site: FederationSite, other: FederationSite, message: LinkMessage) -> None: ...


class FederationWorld:
    def __init__(self, seed: int, settings: FederationSettings) -> None:
        self.random = Random(seed)
        self.settings = settings
        self.now_ms = 0
        self.delay_ms = (1, 3)
        self.sites: dict[str, FederationSite] = {}
        self.watchers: list[FederationWatcher] = []
        self.cut: dict[tuple[str, str], None] = {}
        """Pairs of sites, by name, that have no network between them."""
        self.failures: list[tuple[str, AdditionFailed]] = []
        self.granted: list[tuple[str, AdditionDone]] = []
        self.partitions: dict[tuple[str, int], tuple[Unit, ...]] = {}
        self.quenched: dict[tuple[str, str], bool] = {}
        """(Site, topic) -> what the site was told last."""
        self.unknown: list[tuple[str, MailUnknown]] = []
        self.refused: list[tuple[str, ClientRefused]] = []
        self.steps = 0
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0
        self._conns = 0

    # ---- time

    def after(self, delay_ms: int, act: Callable[[], None]) -> None:
        self._count += 1
        heappush(self._queue, (self.now_ms + delay_ms, self._count, act))

    def run(self, for_ms: int) -> None:
        self.run_until(lambda: False, for_ms)

    def run_until(self, is_done: Callable[[], bool], most_ms: int, look_every_ms: int = 100) -> bool:
        """Let time pass until something is so, looked at now and then; False if it is not in time."""
        end_ms = self.now_ms + most_ms
        look_at_ms = self.now_ms
        while True:
            if self.now_ms >= look_at_ms:
                if is_done():
                    return True
                look_at_ms = self.now_ms + look_every_ms
            if not self._queue or self._queue[0][0] > end_ms:
                self.now_ms = end_ms
                return is_done()
            at_ms, _, act = heappop(self._queue)
            self.now_ms = at_ms
            self.steps += 1
            act()

    # ---- sites

    def add(self, name: str, ids: Sequence[UnitId | None] = ()) -> FederationSite:
        """A new site, alone in units of its own, with these ids."""
        known = dict(enumerate(ids))
        chain = [known.get(level) or new_unit_id(self.random) for level in range(self.settings.top + 2)]
        site = self.put(name, Unit(0, chain[0]), KeptPlace(records_of_chain(chain, name), has_joined=False))
        self.start(site)
        return site

    def put(self, name: str, unit: Unit, place: KeptPlace) -> FederationSite:
        """A site that is down, with this place on its disk."""
        site = self.sites[name] = FederationSite(name, unit)
        site.kept["place", None] = place
        return site

    def start(self, site: FederationSite, settings: FederationSettings | None = None) -> None:
        site.incarnation += 1
        recovered = FederationRecovered(site.unit.id, site.incarnation, site.name, dict(site.kept))
        random = Random(self.random.getrandbits(64))
        site.machine = Federation(recovered, settings or self.settings, random, self.now_ms)
        site.wake_at_ms = -1
        self._perform(site, site.machine.start())
        for address in site.links_to:
            self._relink(site, address)

    def crash(self, site: FederationSite) -> None:
        """Crash the node of a site: what was kept stays, everything else is lost, and so are the links."""
        site.machine = None
        for end in list(site.ends.values()):
            self._close(end)

    def feed(self, site: FederationSite, event: FederationInput) -> None:
        self._perform(site, site.running().handle(event, self.now_ms))

    def _perform(self, site: FederationSite, outputs: list[FederationOutput]) -> None:
        for output in outputs:
            if isinstance(output, KeepValue):
                if output.value is None:
                    site.kept.pop(output.key, None)
                else:
                    site.kept[output.key] = output.value
        for output in outputs:
            match output:
                case SendLink(conn, message):
                    self._send(site, conn, message)
                case SendAddress(address, message):
                    self._call(site, address, AddressHeard(site.name, message))
                case ConnectTo(address):
                    site.links_to[address] = None
                    self._dial(site, address)
                case CloseLink(conn, is_final):
                    end = site.ends.get(conn)
                    if end is not None:
                        if is_final and end.other is not None:
                            site.links_to.pop(end.other.site.name, None)
                            end.other.site.links_to.pop(site.name, None)
                        self.after(max(0, end.clear_at_ms - self.now_ms), lambda end=end: self._close(end))  # type: ignore[misc]
                case UnsendCopies(conn, numbers):
                    self._unsend(site.ends.get(conn), numbers)
                case DeliverEvent():
                    for watcher in self.watchers:
                        watcher.delivered_to(site, output)
                case MatchedUnits():
                    for watcher in self.watchers:
                        watcher.matched(site, output)
                case ClientGone():
                    for watcher in self.watchers:
                        watcher.gone(site, output)
                case TopicQuenched(topic, is_quenched):
                    self.quenched[site.name, topic] = is_quenched
                case MailUnknown():
                    self.unknown.append((site.name, output))
                case ClientRefused():
                    self.refused.append((site.name, output))
                case WantActive():
                    for watcher in self.watchers:
                        watcher.active(site, output)
                case AdditionFailed():
                    self.failures.append((site.name, output))
                case AdditionDone():
                    self.granted.append((site.name, output))
                case PartitionChanged(level, unreachable):
                    self.partitions[site.name, level] = unreachable
        self._set_alarm(site)

    def _set_alarm(self, site: FederationSite) -> None:
        at_ms = site.running().next_at()
        if at_ms is None or (self.now_ms <= site.wake_at_ms <= at_ms):
            return
        site.wake_at_ms = at_ms
        incarnation = site.incarnation

        def wake() -> None:
            if site.up and site.incarnation == incarnation and site.wake_at_ms == at_ms:
                site.wake_at_ms = -1
                self.feed(site, TimeCame())

        self.after(max(0, at_ms - self.now_ms), wake)

    # ---- the network

    def is_cut(self, one: str, other: str) -> bool:
        return (min(one, other), max(one, other)) in self.cut

    def cut_between(self, one: str, other: str) -> None:
        """No network between two sites; their links break."""
        self.cut[min(one, other), max(one, other)] = None
        for end in list(self.sites[one].ends.values()):
            if end.other is not None and end.other.site.name == other:
                self._close(end)

    def mend_between(self, one: str, other: str) -> None:
        self.cut.pop((min(one, other), max(one, other)), None)

    def stall(self, one: str, other: str) -> None:
        """Messages from one to the other wait, while the link seems to be up."""
        for end in self.sites[one].ends.values():
            if end.other is not None and end.other.site.name == other:
                end.is_stalled = True

    def resume(self, one: str, other: str) -> None:
        for end in list(self.sites[one].ends.values()):
            if end.other is not None and end.other.site.name == other:
                end.is_stalled = False
                waiting, end.queue = end.queue, []
                for message in waiting:
                    self._transmit(end, message)

    def _delay(self) -> int:
        return self.random.randint(*self.delay_ms)

    def _call(self, site: FederationSite, address: str, heard: AddressHeard) -> None:
        def arrive() -> None:
            other = self.sites.get(address)
            if other is not None and other.up and not self.is_cut(site.name, address):
                self.feed(other, heard)

        self.after(self._delay(), arrive)

    def _dial(self, site: FederationSite, address: str) -> None:
        incarnation = site.incarnation

        def arrive() -> None:
            other = self.sites.get(address)
            if not site.up or site.incarnation != incarnation:
                return
            if other is None or not other.up or self.is_cut(site.name, address):
                self.feed(site, ConnectFailed(address))
                self._relink(site, address)
                return
            self._conns += 2
            near, far = LinkEnd(self._conns - 1, site), LinkEnd(self._conns, other)
            near.other, far.other = far, near
            site.ends[near.conn], other.ends[far.conn] = near, far
            self.feed(site, LinkOpened(near.conn))
            self.feed(other, LinkOpened(far.conn))

        self.after(self._delay(), arrive)

    def _relink(self, site: FederationSite, address: str) -> None:
        incarnation = site.incarnation

        def again() -> None:
            is_linked = any(end.other is not None and end.other.site.name == address for end in site.ends.values())
            if site.up and site.incarnation == incarnation and address in site.links_to and not is_linked:
                self._dial(site, address)

        self.after(RELINK_MS, again)

    def _send(self, site: FederationSite, conn: int, message: LinkMessage) -> None:
        end = site.ends.get(conn)
        if end is None or not end.is_open:
            return
        if end.is_stalled:
            end.queue.append(message)
        else:
            self._transmit(end, message)

    def _unsend(self, end: LinkEnd | None, numbers: tuple[int, ...]) -> None:
        if end is not None and end.queue:
            end.queue = [each for each in end.queue if not isinstance(each, EventCopy) or each.number not in numbers]

    def _transmit(self, end: LinkEnd, message: LinkMessage) -> None:
        other = end.other
        assert other is not None
        for watcher in self.watchers:
            watcher.sent(end.site, other.site, message)
        end.clear_at_ms = max(end.clear_at_ms, self.now_ms + self._delay())

        def arrive() -> None:
            if other.is_open and other.site.up:
                self.feed(other.site, LinkHeard(other.conn, message))

        self.after(end.clear_at_ms - self.now_ms, arrive)

    def _close(self, end: LinkEnd) -> None:
        """Each end hears of it in its own time."""
        for each in (end, end.other):
            if each is not None and each.is_open:
                each.is_open = False
                self.after(self._delay(), lambda each=each: self._closed(each))  # type: ignore[misc]

    def _closed(self, end: LinkEnd) -> None:
        site, other = end.site, end.other
        if site.ends.pop(end.conn, None) is None or not site.up:
            return
        self.feed(site, LinkClosed(end.conn))
        if other is not None and other.site.name in site.links_to:
            self._relink(site, other.site.name)
