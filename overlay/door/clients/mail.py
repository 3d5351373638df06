"""Mail at the door: the topic that it needs, and whose name it may be sent in."""

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from m4cast.overlay.door.access.rights import Rights
from m4cast.overlay.door.admin.topics import TopicSetup
from m4cast.overlay.door.refusals import Refusal
from m4cast.overlay.protocol.clients.letters import FROM
from m4cast.overlay.protocol.wire.interest import MAIL_TO, MAIL_TOPIC

SETUP = TopicSetup(MAIL_TOPIC, 2, (MAIL_TO,))
"""Each node's mail is kept by two others, and goes where the clients are that it is for."""


class SignedMail:
    """Record batches of a put, refused unless each row is sent in the name of a client that the caller may connect."""

    def __init__(self, reader: Any, rights: Rights) -> None:
        self.schema: pa.Schema = reader.schema
        self._reader = reader
        self._rights = rights
        for name in (MAIL_TO, FROM):
            if name not in self.schema.names:
                raise Refusal("bad-schema", f"rows of topic {MAIL_TOPIC!r} need the column {name!r}: add it")

    def read_chunk(self) -> Any:
        chunk = self._reader.read_chunk()
        if chunk.data is not None:
            for sender in pc.unique(chunk.data.column(FROM)).to_pylist():
                self._rights.require_client(str(sender))
        return chunk
