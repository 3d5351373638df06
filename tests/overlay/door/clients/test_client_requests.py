"""Limits of what clients may ask, at the maximum and past it."""

import json
from typing import Any

import pytest

from m4cast.overlay.door.clients.client_requests import (
    CREDENTIAL_CHARACTERS_MAX,
    KEY_BYTES_MAX,
    RECIPIENTS_MAX,
    parse_connect,
    parse_mail,
)
from m4cast.overlay.door.clients.many_clients import CLIENTS_MAX, parse_many
from m4cast.overlay.door.fields import Fields
from m4cast.overlay.door.refusals import Refusal
from m4cast.overlay.errors import LocalProtocolError
from m4cast.overlay.protocol.clients.letters import CONTENT_BYTES_MAX, TEXT_CHARACTERS_MAX, MailMessage, checked

CONNECT = {"key": "k", "credential": "c" * 16, "member": "m"}
WISH = {"key": "k", "credential": "c" * 16, "profiles": [{"name": "p", "topic": "t"}]}


def fields(question: dict[str, Any]) -> Fields:
    return Fields(json.dumps(question).encode(), "a question", tuple(question))


@pytest.mark.parametrize(
    ("parse", "question", "name", "longest"),
    [
        (parse_connect, CONNECT, "key", KEY_BYTES_MAX),
        (parse_connect, CONNECT, "member", KEY_BYTES_MAX),
        (parse_connect, CONNECT, "credential", CREDENTIAL_CHARACTERS_MAX),
    ],
)
def test_texts_have_a_greatest_length(parse: Any, question: dict[str, Any], name: str, longest: int) -> None:
    assert getattr(parse(fields({**question, name: "x" * longest})), name) == "x" * longest
    with pytest.raises(Refusal, match=f"{name} must .*{longest}"):
        parse(fields({**question, name: "x" * (longest + 1)}))


def test_mail_has_a_greatest_number_of_recipients() -> None:
    question = {"key": "k", "connection": 1}
    assert len(parse_mail(fields({**question, "to": ["b"] * RECIPIENTS_MAX})).to) == RECIPIENTS_MAX
    with pytest.raises(Refusal, match=f"at most {RECIPIENTS_MAX} keys"):
        parse_mail(fields({**question, "to": ["b"] * (RECIPIENTS_MAX + 1)}))


def test_one_call_has_a_greatest_number_of_clients() -> None:
    wishes = [{**WISH, "key": f"k{number}"} for number in range(CLIENTS_MAX + 1)]
    assert len(parse_many(fields({"clients": wishes[1:]})).wishes) == CLIENTS_MAX
    with pytest.raises(Refusal, match=f"1 to {CLIENTS_MAX}"):
        parse_many(fields({"clients": wishes}))


@pytest.mark.parametrize(
    ("name", "unit", "longest"), [("content", b"x", CONTENT_BYTES_MAX), ("text", "x", TEXT_CHARACTERS_MAX)]
)
def test_a_message_has_a_greatest_size(name: str, unit: Any, longest: int) -> None:
    message: dict[str, Any] = {"to": "b", "sender": "a", "kind": "text", "id": "1"}
    assert len(getattr(checked(MailMessage(**message, **{name: unit * longest})), name)) == longest
    with pytest.raises(LocalProtocolError, match=f"at most {longest} are allowed"):
        checked(MailMessage(**message, **{name: unit * (longest + 1)}))
