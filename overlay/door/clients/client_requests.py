"""Requests about clients: the bodies of their actions, as checked values."""

import hashlib
from dataclasses import dataclass

from m4cast.overlay.door.fields import Fields, checked_topic
from m4cast.overlay.door.refusals import bad_request
from m4cast.overlay.errors import LocalProtocolError
from m4cast.overlay.protocol.clients.packed_state import state_from
from m4cast.overlay.protocol.clients.state import ClientState

KEY_BYTES_MAX = 64
RECIPIENTS_MAX = 1_000
CREDENTIAL_CHARACTERS_MIN, CREDENTIAL_CHARACTERS_MAX = 16, 200
DIGEST_BYTES = 16


def digest_of(key: str, credential: str) -> bytes:
    return hashlib.sha256(f"{key}\0{credential}".encode(errors="surrogateescape")).digest()[:DIGEST_BYTES]


@dataclass(frozen=True, slots=True)
class ConnectRequest:
    key: str
    credential: str
    session: int
    state: ClientState | None
    create: bool
    member: str | None = None
    """The name of a group member."""
    take: bool = False
    """The group comes here, from an access point that is lost."""
    short: bool = False
    """The state is answered in its short form."""


@dataclass(frozen=True, slots=True)
class SaveRequest:
    key: str
    connection: int
    state: ClientState


@dataclass(frozen=True, slots=True)
class ClientQuestion:
    """Asks about one client, or for a page of all."""

    key: str | None
    after: str
    waiting: bool = False
    """Also what waits for the clients of this node."""


def parse_client_key(fields: Fields) -> str:
    key = fields.required_text("key", "the client's key")
    if len(key.encode()) > KEY_BYTES_MAX or not key.isprintable() or " " in key:
        raise bad_request(
            f"key must be printable text without spaces, of at most {KEY_BYTES_MAX} bytes, not {key!r:.100}"
        )
    return key


def parse_connect(fields: Fields) -> ConnectRequest:
    create = _flag(fields, "create")
    state = _state(fields.get("state")) if fields.has("state") else None
    session = fields.whole("session", 0, 2**62) or 0
    member, take = fields.text("member", None), _flag(fields, "take")
    if member is not None and not (member.isprintable() and 1 <= len(member.encode()) <= KEY_BYTES_MAX):
        raise bad_request(f"member must be printable text of 1 to {KEY_BYTES_MAX} bytes, not {member!r:.100}")
    if member is not None and state is not None and state.fills:
        raise bad_request("the state of a group has fills: a group's profiles begin at its position")
    return ConnectRequest(
        key=parse_client_key(fields),
        credential=parse_credential(fields),
        session=session,
        state=state,
        create=create,
        member=member,
        take=take,
        short=_flag(fields, "short"),
    )


def _flag(fields: Fields, name: str) -> bool:
    flag = fields.get(name, False)
    if not isinstance(flag, bool):
        raise bad_request(f"{name} must be true or false")
    return flag


def parse_credential(fields: Fields) -> str:
    credential = fields.required_text("credential", "the client's secret")
    if not CREDENTIAL_CHARACTERS_MIN <= len(credential) <= CREDENTIAL_CHARACTERS_MAX:
        limits = f"{CREDENTIAL_CHARACTERS_MIN} to {CREDENTIAL_CHARACTERS_MAX}"
        raise bad_request(f"credential must have {limits} characters, not {len(credential)}")
    return credential


def parse_save(fields: Fields) -> SaveRequest:
    return SaveRequest(parse_client_key(fields), parse_connection(fields), _state(fields.get("state")))


def parse_connection(fields: Fields) -> int:
    connection = fields.whole("connection", 0, 2**62)
    if connection is None:
        raise bad_request("connection is missing: set it to the number that client-connect answered")
    return connection


def parse_disconnect(fields: Fields) -> tuple[str, int]:
    return parse_client_key(fields), parse_connection(fields)


@dataclass(frozen=True, slots=True)
class MailRequest:
    """A client that is about to send mail."""

    key: str
    connection: int
    to: tuple[str, ...]


def parse_mail(fields: Fields) -> MailRequest:
    to = fields.get("to", [])
    if not isinstance(to, list) or len(to) > RECIPIENTS_MAX or not all(isinstance(each, str) for each in to):
        raise bad_request(f"to must be a list of at most {RECIPIENTS_MAX} keys of clients")
    return MailRequest(parse_client_key(fields), parse_connection(fields), tuple(to))


@dataclass(frozen=True, slots=True)
class StateQuestion:
    key: str
    credential: str
    short: bool


def parse_state_question(fields: Fields) -> StateQuestion:
    return StateQuestion(parse_client_key(fields), parse_credential(fields), _flag(fields, "short"))


def parse_clients(fields: Fields) -> ClientQuestion:
    key = parse_client_key(fields) if fields.has("key") else None
    waiting = fields.get("waiting", False)
    if not isinstance(waiting, bool):
        raise bad_request(f"waiting must be true or false, not {waiting!r:.100}")
    after = fields.text("after", "")
    if not after.isprintable():
        raise bad_request(f"after must be the key of a client, which is printable text, not {after!r:.100}")
    return ClientQuestion(key, after, waiting)


def _state(written: object) -> ClientState:
    try:
        state = state_from(written)
    except LocalProtocolError as error:
        raise bad_request(str(error)) from None
    for profile in (*state.profiles, *(fill.profile for fill in state.fills)):
        checked_topic(profile.topic)
    return state
