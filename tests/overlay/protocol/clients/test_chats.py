"""The table of a chat: who asks, accepts, is busy, and ends."""

import pytest

from m4cast.overlay.errors import LocalProtocolError
from m4cast.overlay.protocol.clients.chats import ASK_MS, ChatDesk
from m4cast.overlay.protocol.clients.letters import MailMessage


def deliver(message: MailMessage, desks: dict[str, ChatDesk], now_ms: int = 0) -> list[str]:
    """Hand it over, and every answer; what users were shown, as receiver and kind."""
    shown = []
    waiting = [message]
    while waiting:
        each = waiting.pop(0)
        answers, is_shown = desks[each.to].receive(each, now_ms)
        waiting += answers
        if is_shown:
            shown.append(f"{each.to} {each.kind}")
    return shown


def desks() -> dict[str, ChatDesk]:
    return {name: ChatDesk(name) for name in ("ann", "bob", "carl")}


def test_a_chat_is_accepted_used_and_ended() -> None:
    both = desks()
    assert deliver(both["ann"].ask("bob", "1", 0), both) == ["bob chat-ask", "ann chat-accept"]
    assert both["bob"].partner == "ann" and both["ann"].is_open
    assert deliver(both["bob"].say("hello", 0), both) == ["ann chat-text"]
    ended = both["ann"].end(0)
    assert ended is not None and deliver(ended, both) == ["bob chat-end"]
    assert [each.partner for each in both.values()] == [None, None, None]
    assert both["bob"].end(0) is None
    with pytest.raises(LocalProtocolError, match="there is no chat"):
        both["bob"].say("more", 0)


def test_who_is_busy_refuses_and_its_chat_goes_on() -> None:
    all_three = desks()
    deliver(all_three["ann"].ask("bob", "1", 0), all_three)
    assert deliver(all_three["carl"].ask("bob", "2", 0), all_three) == ["carl chat-deny"]
    assert (all_three["carl"].partner, all_three["bob"].partner) == (None, "ann")
    with pytest.raises(LocalProtocolError, match="a chat with 'ann' is under way"):
        all_three["bob"].ask("carl", "3", 0)
    stranger = MailMessage("bob", "carl", "chat-text", "2", text="listen")
    assert deliver(stranger, all_three) == []


def test_crossing_requests_are_one_chat() -> None:
    both = desks()
    first, second = both["ann"].ask("bob", "1", 0), both["bob"].ask("ann", "2", 0)
    shown = deliver(first, both) + deliver(second, both)
    assert both["ann"].is_open and both["bob"].is_open
    assert both["ann"].id == both["bob"].id == "2"
    assert "ann chat-deny" not in shown and "bob chat-deny" not in shown
    ended = both["bob"].end(0)
    assert ended is not None and deliver(ended, both) == ["ann chat-end"]


def test_an_old_request_is_not_answered() -> None:
    both = desks()
    asked = both["ann"].ask("bob", "1", 0)
    assert deliver(asked, both, ASK_MS + 1) == []
    assert both["bob"].partner is None
    with pytest.raises(LocalProtocolError, match="is this client itself: name another one"):
        both["bob"].ask("bob", "2", 0)
