"""Changes of a node's own interest that are on their way to its disk."""

from dataclasses import dataclass, field, replace

from m4cast.overlay.protocol.effects import ClientRow, InterestState, InterestStateRecord, Recovered
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
    clients_before: dict[str, ClientRow | None]
    history: HistoryChange
    also: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)
    """Requests that changed nothing, and are answered when this is durable."""


LIFE_SHIFT = 32


def next_state(state: InterestState, incarnation: int) -> InterestState:
    """The state of the next version. No version of another life has its number, not even of one that an older copy of
    the store knows nothing of."""
    return InterestState(incarnation, max(state.ts + 1, (incarnation - 1) << LIFE_SHIFT), state.counter)


def recovered_state(recovered: Recovered) -> InterestState:
    """The state as it was stored. A new identity, after a rollback, has smaller incarnations than the former one: its
    first entry has what the store has, under its own incarnation."""
    state = recovered.of(InterestStateRecord).get("", InterestState(0, 0, 0))
    return replace(state, incarnation=min(state.incarnation, recovered.incarnation))
