"""A picture of all that a node holds, to compare before and after; and one of each message that a peer can send."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from random import Random

from m4cast.overlay.protocol.holdings import BUCKETS
from m4cast.overlay.protocol.interest.view import VIEW_BUCKETS
from m4cast.overlay.protocol.node import Node
from m4cast.overlay.protocol.timers import Timers
from m4cast.overlay.protocol.wire.batch import Batch, BatchFrame, How
from m4cast.overlay.protocol.wire.interest import (
    InterestAskStmt,
    InterestDigestStmt,
    InterestNewsStmt,
    InterestVersion,
    InterestVersionsStmt,
)
from m4cast.overlay.protocol.wire.messages import (
    AbsentStmt,
    AckEntry,
    AckStmt,
    AnnounceStmt,
    ApartStmt,
    BeaconStmt,
    ConnectedStmt,
    ConnectionRequestCall,
    ConnectionRequestResp,
    DiameterEstimateStmt,
    DisconnectStmt,
    DropStmt,
    EdgeProposalCall,
    EdgeProposalResp,
    EdgeSearchCall,
    EdgeSearchResp,
    FailedStmt,
    FrontierEntry,
    FrontierStmt,
    Heartbeat,
    HeldCall,
    HeldEntry,
    HeldResp,
    HolderFoundStmt,
    HolderSearchStmt,
    HoldingEntry,
    HoldingsStmt,
    MergeCall,
    MergeResp,
    Message,
    NeighboursStmt,
    PortConnectionCall,
    PortConnectionResp,
    PortSearchStmt,
    PruneStmt,
    PullCall,
    PullResp,
    RefusedStmt,
    SeekingConnectionCall,
    SeekingConnectionResp,
    ShutdownStmt,
    SummaryStmt,
    SwapCall,
    SwapResp,
)
from tests.overlay.protocol.node_pump import hello
from tests.overlay.protocol.stream_parts import chain, contact, entry, node_id, stream_id

S = stream_id()

MESSAGES: list[Message | BatchFrame] = [
    hello("x"),
    RefusedStmt("busy", "not now"),
    SeekingConnectionCall(seeking=True, depth=0),
    SeekingConnectionResp(full=True, hears_you=False, depth=0),
    SeekingConnectionResp(full=False, hears_you=True, depth=0),
    ConnectionRequestCall(holes=4),
    ConnectionRequestResp(0, 1, True, (entry("y"),)),
    ConnectionRequestResp(2, 3, False, ()),
    EdgeProposalCall(1, contact("y"), node_id("m")),
    EdgeProposalCall(1, contact("y"), node_id("w")),
    EdgeProposalResp(accepted=True, search_on=False),
    EdgeProposalResp(accepted=False, search_on=True),
    PortConnectionCall(),
    PortConnectionResp(accepted=True),
    PortConnectionResp(accepted=False),
    MergeCall(),
    MergeResp(accepted=True),
    MergeResp(accepted=False),
    SwapCall(contact("y"), (), ()),
    SwapResp(True, (contact("y"),), ()),
    SwapResp(False, (), ()),
    HolderFoundStmt(1, *S, 1, 5),
    HeldCall((node_id("x"),)),
    HeldResp(True, 1, 0, (HeldEntry(*S, 1, 5, 5),), last=True),
    PortSearchStmt(contact("y"), 1, 1, 5),
    EdgeSearchCall(contact("y"), contact("y"), 1, 0, 9),
    EdgeSearchResp(1, True, contact("y")),
    DiameterEstimateStmt(3),
    DisconnectStmt((contact("y"), contact("m"))),
    DropStmt(),
    NeighboursStmt((node_id("m"), node_id("y"))),
    Heartbeat(7),
    BeaconStmt(entry("y"), 1),
    FailedStmt(node_id("y"), 1, 1),
    AbsentStmt((entry("y"),)),
    ApartStmt((contact("y"),), (), 1, 0, 9),
    ShutdownStmt(contact("y")),
    ConnectedStmt(),
    SummaryStmt((7,) * BUCKETS),
    HoldingsStmt((HoldingEntry(*S, 1, 5),), 1, 0, last=True),
    AnnounceStmt(*S, 1, 5, 100),
    FrontierStmt((FrontierEntry(*S, 5),)),
    PullCall(*S, 1, 5, 100),
    PullResp(*S, 1, 1, 1, 5),
    AckStmt((AckEntry("t", 1, 5),)),
    HolderSearchStmt(contact("y"), 1, *S, 1, 1, 3),
    PruneStmt(*S),
    InterestDigestStmt((7,) * VIEW_BUCKETS),
    InterestVersionsStmt((InterestVersion(node_id("y"), 1, 1, 7, 1),), last=True),
    InterestAskStmt(node_id("y"), 0, 0, ()),
    InterestNewsStmt(node_id("y"), 1, 1, 0, 0, 0, 1, (), (), (), more=False),
    BatchFrame(chain(1)[0], 1, How.PUSHED),
]
"""Every kind of message at least once, each well-formed; the sender is x."""

NOT_STATE = {"_out", "_random", "_wake_at", "_next_conn", "_search", "_searches", "_walks", "_seen"}
"""Names of what may differ between equal states: counters, chance, and the memory of floods seen."""


def picture(node: Node) -> object:
    return _picture(node, [])


def _picture(thing: object, above: list[object]) -> object:
    if any(thing is each for each in above):
        return "again"
    above = [*above, thing]
    match thing:
        case None | bool() | int() | str() | bytes() | Enum():
            return thing
        case Timers():
            return sorted((str(key), at_ms) for key, at_ms in thing._due.items())
        case Batch():
            return (thing.stream, thing.first_sequence, thing.checksum)
        case dict():
            return {_key(key): _picture(value, above) for key, value in thing.items()}
        case list() | tuple() | deque():
            return [_picture(each, above) for each in thing]
        case Random() | Callable():
            return type(thing).__name__
    names = [field.name for field in fields(thing)] if is_dataclass(thing) else list(vars(thing))
    return (type(thing).__name__, {n: _picture(getattr(thing, n), above) for n in names if n not in NOT_STATE})


def _key(key: object) -> str:
    return key.hex() if isinstance(key, bytes) else str(key)


def difference(before: object, after: object, where: str = "") -> list[str]:
    """The differences of two pictures: one line each."""
    if isinstance(before, dict) and isinstance(after, dict):
        names = dict.fromkeys([*before, *after])
        return [
            line
            for name in names
            for line in difference(before.get(name, "(absent)"), after.get(name, "(absent)"), f"{where}.{name}")
        ]
    if isinstance(before, tuple) and isinstance(after, tuple) and len(before) == len(after) == 2:
        return difference(before[1], after[1], where)
    return [] if before == after else [f"{where}: {before} -> {after}"]


def ids(things: Sequence[object]) -> list[str]:
    """Names for cases of a test."""
    return [f"{number}-{type(thing).__name__}" for number, thing in enumerate(things)]
