"""Requests about clients: the bodies of their actions, as checked values."""

from dataclasses import dataclass

from m4cast.overlay.door.fields import Fields, checked_topic
from m4cast.overlay.door.refusals import bad_request
from m4cast.overlay.errors import LocalProtocolError
from m4cast.overlay.protocol.clients.state import ClientState, state_of

KEY_BYTES_MAX = 64
CREDENTIAL_CHARACTERS_MIN, CREDENTIAL_CHARACTERS_MAX = 16, 200


@dataclass(frozen=True, slots=True)
class ConnectRequest:
    key: str
    credential: str
    session: int
    state: ClientState | None
    create: bool


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


def parse_client_key(fields: Fields) -> str:
    key = fields.required_text("key", "the client's key")
    if len(key.encode()) > KEY_BYTES_MAX or not key.isprintable() or " " in key:
        raise bad_request(
            f"key must be printable text without spaces, of at most {KEY_BYTES_MAX} bytes, not {key!r:.100}"
        )
    return key


def parse_connect(fields: Fields) -> ConnectRequest:
    create = fields.get("create", False)
    if not isinstance(create, bool):
        raise bad_request("create must be true or false")
    state = _state(fields.get("state")) if fields.has("state") else None
    session = fields.whole("session", 0, 2**62) or 0
    return ConnectRequest(parse_client_key(fields), parse_credential(fields), session, state, create)


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


def parse_state_question(fields: Fields) -> tuple[str, str]:
    return parse_client_key(fields), parse_credential(fields)


def parse_clients(fields: Fields) -> ClientQuestion:
    key = parse_client_key(fields) if fields.has("key") else None
    return ClientQuestion(key, fields.text("after", ""))


def _state(written: object) -> ClientState:
    try:
        state = state_of(written)
    except LocalProtocolError as error:
        raise bad_request(str(error)) from None
    for profile in (*state.profiles, *(fill.profile for fill in state.fills)):
        checked_topic(profile.topic)
    return state
