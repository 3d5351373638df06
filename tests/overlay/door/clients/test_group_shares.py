"""Groups at the door: which streams an open read of a member is given."""

import pytest

from m4cast.overlay.door.clients.group_shares import GroupShares
from m4cast.overlay.door.refusals import Refusal
from m4cast.overlay.door.requests import ClientReader
from m4cast.overlay.ids import NodeId, StreamId
from m4cast.overlay.protocol.clients.group import MEMBERS_MAX, owner_of

STREAMS = [StreamId(NodeId(bytes([number] * 16)), "t") for number in range(12)]


def test_an_open_read_is_not_given_the_streams_of_a_member_that_left() -> None:
    """It began where they stood when it was opened; what was acknowledged since would be given again."""
    shares = GroupShares(lambda: 0)
    shares.join("k", "a", 1)
    version = shares.join("k", "b", 2)
    shares.see("k", 1)
    version, members = shares.see("k", 2)
    assert members == ["a", "b"]
    opened = ClientReader("k", 2, version)
    owns = shares.owns(opened)
    mine = [stream for stream in STREAMS if owner_of("ab", "t", stream.origin.hex()) == "b"]
    assert [stream for stream in STREAMS if owns(stream)] == mine
    shares.leave("k", 1)
    assert shares.is_stale(opened)
    assert not any(owns(stream) for stream in STREAMS)
    again = ClientReader("k", 2, shares.see("k", 2)[0])
    assert all(shares.owns(again)(stream) for stream in STREAMS)
    assert not any(owns(stream) for stream in STREAMS), "the former read is over, though its member has learned more"


def test_a_former_member_is_asked_to_reconnect() -> None:
    shares = GroupShares(lambda: 0)
    shares.join("k", "a", 1)
    shares.leave("k", 1)
    for key in ("k", "unknown"):
        with pytest.raises(Refusal, match="connect again"):
            shares.see(key, 1)


def test_a_group_has_as_many_members_as_it_may_and_no_more() -> None:
    shares = GroupShares(lambda: 0)
    for number in range(MEMBERS_MAX):
        shares.join("k", f"m{number}", number + 1)
    shares.join("k", "m0", 1_000)  # the same member again
    with pytest.raises(Refusal, match=f"has {MEMBERS_MAX} members"):
        shares.join("k", "one more", 1_001)
    shares.leave("k", 2)
    shares.join("k", "one more", 1_001)
