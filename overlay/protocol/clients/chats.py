"""Chat: one partner at a time, accepted without asking unless the client is busy.

    state     | ask by another    | ask by the partner | accept   | deny | end  | own ask | own end
    idle      | accept, chatting  |                    |          |      |      | asking  |
    asking    | deny              | accept, chatting   | chatting | idle | idle |         | idle
    chatting  | deny              | accept             |          |      | idle |         | idle

Two that ask each other at once have one chat. What is not in the table changes nothing. An ask that is older than
`ASK_MS` is not answered: whoever asked has given up.

Reference: A20, X67 of the digest.
"""

from m4cast.overlay.errors import LocalProtocolError
from m4cast.overlay.protocol.clients.letters import (
    CHAT_ACCEPT,
    CHAT_ASK,
    CHAT_DENY,
    CHAT_END,
    CHAT_TEXT,
    MailMessage,
)

ASK_MS = 60_000
"""The time for which an invitation counts. Longer: somebody who was away is invited to a chat in which nobody waits."""


class ChatDesk:
    """The chat of one client."""

    def __init__(self, me: str) -> None:
        self._me = me
        self.partner: str | None = None
        self.id = ""
        self.is_open = False
        """The partner has accepted, or was accepted."""

    def ask(self, partner: str, chat_id: str, now_ms: int) -> MailMessage:
        if self.partner is not None:
            raise LocalProtocolError(f"a chat with {self.partner!r} is under way: end it first")
        if partner == self._me:
            raise LocalProtocolError(f"{partner!r} is this client itself: name another one")
        self.partner, self.id, self.is_open = partner, chat_id, False
        return self._to(partner, CHAT_ASK, now_ms)

    def say(self, text: str, now_ms: int) -> MailMessage:
        if self.partner is None or not self.is_open:
            raise LocalProtocolError("there is no chat: ask somebody first, and wait for the answer")
        return self._to(self.partner, CHAT_TEXT, now_ms, text)

    def end(self, now_ms: int) -> MailMessage | None:
        """None: there is nothing to end."""
        if self.partner is None:
            return None
        message = self._to(self.partner, CHAT_END, now_ms)
        self._reset()
        return message

    def receive(self, message: MailMessage, now_ms: int) -> tuple[list[MailMessage], bool]:
        """The answers to a message of a chat, and whether it is of interest to the user."""
        is_partner = message.sender == self.partner
        match message.kind:
            case "chat-ask":
                return self._asked(message, now_ms)
            case "chat-accept" if is_partner and not self.is_open and message.id == self.id:
                self.is_open = True
                return [], True
            case "chat-deny" if is_partner and not self.is_open and message.id == self.id:
                self._reset()
                return [], True
            case "chat-text":
                return [], is_partner and self.is_open
            case "chat-end" if is_partner and message.id == self.id:
                self._reset()
                return [], True
            case _:
                return [], False

    def _asked(self, message: MailMessage, now_ms: int) -> tuple[list[MailMessage], bool]:
        if now_ms - message.sent_ms > ASK_MS:
            return [], False
        if self.partner not in (None, message.sender):
            return [MailMessage(message.sender, self._me, CHAT_DENY, message.id, sent_ms=now_ms)], False
        is_new = not self.is_open
        crossing = self.partner == message.sender and is_new
        self.partner, self.is_open = message.sender, True
        self.id = max(self.id, message.id) if crossing else message.id  # both sides choose the same
        return [MailMessage(message.sender, self._me, CHAT_ACCEPT, message.id, sent_ms=now_ms)], is_new

    def _to(self, partner: str, kind: str, now_ms: int, text: str = "") -> MailMessage:
        return MailMessage(partner, self._me, kind, self.id, text=text, sent_ms=now_ms)

    def _reset(self) -> None:
        self.partner, self.id, self.is_open = None, "", False
