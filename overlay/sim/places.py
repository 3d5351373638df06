"""Places: hosts with their disks, the connections between them, and who looks on."""

from collections import deque
from dataclasses import dataclass, field
from typing import ClassVar, get_args

from m4cast.overlay.config import NodeConfig
from m4cast.overlay.protocol.effects import Append, Input, Output
from m4cast.overlay.protocol.node import Node
from m4cast.overlay.protocol.wire.selective import WireFrame
from m4cast.overlay.sim.disk import Disk


@dataclass(frozen=True, slots=True)
class Network:
    """The delays of the network. Latency is drawn once per connection, jitter per message."""

    latency_ms: tuple[int, int] = (5, 20)
    jitter_ms: int = 3
    bytes_per_ms: int = 0
    """Bandwidth of each connection in each direction; 0: no limit."""
    fsync_ms: tuple[int, int] = (1, 5)


@dataclass(slots=True, eq=False)
class End:
    """One end of a connection, and the direction from it to the other end."""

    place: "Place"
    conn: int
    incarnation: int
    other: "End" = field(init=False)
    latency_ms: int = 0
    arrives_ms: int = 0
    """The time at which the last message sent from here arrives: later ones do not overtake it."""
    free_ms: int = 0
    """The time at which the transmitter here has sent all that it was given."""
    stalled_until_ms: int = 0
    silent: bool = False
    """Half-open: what is sent from here vanishes."""
    gone: bool = False
    blocked: bool = False


@dataclass(slots=True)
class HostTrouble:
    """The faults of a host."""

    slow_ms: int = 0
    """Time that its node takes for each input."""
    fsync_slow_ms: int = 0
    disk_full: bool = False
    clock_offset_ms: int = 0
    """Difference of its wall clock from the world's time."""


@dataclass(slots=True, eq=False)
class Place:
    """A host: an address, a disk, and a node when one is running."""

    name: str
    config: NodeConfig
    disk: Disk
    node: Node | None = None
    started: int = 0
    """Number of times a node was started here; events for an earlier one are void."""
    ends: dict[int, End] = field(default_factory=dict)
    accepted: int = 0
    paused: bool = False
    inbox: deque[tuple[int, Input]] = field(default_factory=deque)
    busy_until_ms: int = 0
    trouble: HostTrouble = field(default_factory=HostTrouble)
    failures: int = 0
    """Failed appends that were not reported to the node yet: until then, later ones fail too."""
    wipes: int = 0
    started_at_ms: int = 0
    stopped_at_ms: int = 0
    """The time at which its node ended, if it has none."""
    resumed_at_ms: int = 0
    will_return: bool = True
    """While it has no node: one will be started on the store as it is."""
    wake_at_ms: int = -1
    rollbacks: int = 0
    address: str = field(init=False)

    def __post_init__(self) -> None:
        self.address = self.config.advertised

    @property
    def up(self) -> bool:
        return self.node is not None


class Observer:
    """Is called for what happens in a world. A checker raises when a guarantee is broken."""

    outputs: ClassVar[tuple[type, ...]] = get_args(Output)
    """The kinds that `output` is called for."""

    def started(self, place: Place) -> None: ...
    def stopped(self, place: Place) -> None: ...
    def sent(self, end: End, message: WireFrame) -> None: ...
    def synced(self, place: Place, append: Append) -> None: ...
    def output(self, place: Place, output: Output) -> None: ...
    def handled(self, place: Place, event: Input) -> None: ...
