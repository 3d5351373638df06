"""Changes of this node's registrations that are on their way to the disk, and what takes them back."""

from dataclasses import dataclass, field

from m4cast.overlay.protocol.effects import InterestState
from m4cast.overlay.protocol.interest.history import HistoryChange
from m4cast.overlay.protocol.interest.registrations import RowChange
from m4cast.overlay.protocol.wire.interest import InterestItem, InterestKey


@dataclass(slots=True)
class Undurable:
    """A change of this node's registrations that is on its way to the disk."""

    request: int
    """0: nobody waits for the answer."""
    epochs: tuple[int, ...]
    state: InterestState
    joined: tuple[InterestItem, ...]
    left: tuple[InterestKey, ...]
    journal: list[RowChange]
    state_before: InterestState
    items_before: dict[InterestKey, InterestItem | None]
    history: HistoryChange
    also: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)
    """Requests that changed nothing, and are answered when this is durable."""
