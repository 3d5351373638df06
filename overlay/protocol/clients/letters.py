"""Mail between clients: the fields of a message, and its kinds.

A message is a row of the topic `_mail`, for the client whose key is in `_to`, wherever that connects. Chat and files
are mail, too: their messages have kinds of their own, and one id for all messages of a chat or of a file.
"""

from m4cast.overlay.errors import LocalProtocolError
from m4cast.overlay.protocol.wire.interest import MAIL_TO
from m4cast.overlay.value import value

TO, FROM = MAIL_TO, "_from"
CONTENT_BYTES_MAX = 1_000_000
"""The maximum size of one message."""
TEXT_CHARACTERS_MAX = 100_000

TEXT = "text"
CHAT_ASK, CHAT_ACCEPT, CHAT_DENY = "chat-ask", "chat-accept", "chat-deny"
CHAT_TEXT, CHAT_END = "chat-text", "chat-end"
FILE_ASK, FILE_CANCEL, FILE_RECEIVED = "file-ask", "file-cancel", "file-received"
FILE_BEGIN, FILE_CHUNK, FILE_REFUSED = "file-begin", "file-chunk", "file-refused"
KINDS = (
    TEXT,
    CHAT_ASK,
    CHAT_ACCEPT,
    CHAT_DENY,
    CHAT_TEXT,
    CHAT_END,
    FILE_ASK,
    FILE_CANCEL,
    FILE_RECEIVED,
    FILE_BEGIN,
    FILE_CHUNK,
    FILE_REFUSED,
)


@value
class MailMessage:
    """A message from one client to another."""

    to: str
    sender: str
    kind: str
    id: str
    """The id of the message; for a chat or a file, it is the same in all its messages."""
    text: str = ""
    name: str = ""
    """The name of a file."""
    number: int = 0
    """The number of a chunk; with `file-begin`, the number of chunks; with `file-ask`, the first that is wanted."""
    size: int = 0
    """The size of a file, in bytes; with `file-ask`, the largest size that is accepted."""
    checksum: str = ""
    """SHA-256 of a file, in hex."""
    content: bytes = b""
    sent_ms: int = 0
    """The time of sending, by the clock of the sender."""


def mail_keys(key: str) -> tuple[str, ...]:
    """The keys whose mail a client gets: its own; of a device, also that of its client."""
    return tuple(dict.fromkeys((key.partition("/")[0], key)))


def mail_where(key: str) -> str:
    """The condition of a client's own mail."""
    keys = mail_keys(key)
    written = ", ".join("'" + each.replace("'", "''") + "'" for each in keys)
    return f"{TO} IN ({written})" if len(keys) > 1 else f"{TO} = {written}"


def checked(message: MailMessage) -> MailMessage:
    """The same, if it may be sent."""
    if message.kind not in KINDS:
        raise LocalProtocolError(f"mail of kind {message.kind!r}: must be one of {', '.join(KINDS)}")
    if len(message.content) > CONTENT_BYTES_MAX:
        size = len(message.content)
        raise LocalProtocolError(f"the content has {size} bytes, at most {CONTENT_BYTES_MAX} are allowed: offer a file")
    if len(message.text) > TEXT_CHARACTERS_MAX:
        raise LocalProtocolError(
            f"the text has {len(message.text)} characters, at most {TEXT_CHARACTERS_MAX} are allowed"
        )
    return message
