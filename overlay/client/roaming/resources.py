"""Resources of a client: rows of tables that stand in its name until it replaces or removes them.

The row's version is the client's session and a counter: whoever moves to another node goes on with a greater session,
so that what it published there before never prevails, however late it comes.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import pyarrow as pa

from m4cast.overlay.client.asking.query import TopicQuery
from m4cast.overlay.client.asking.tables import OWNER, VERSION, TableWriter
from m4cast.overlay.client.tables import sql_text, table_of
from m4cast.overlay.errors import LocalProtocolError, RefusedError

if TYPE_CHECKING:
    from m4cast.overlay.client.roaming.client import Client

SYSTEM = {"name": pa.string(), "type": pa.string(), "size": pa.int64(), "path": pa.string(), "key": pa.string()}
"""Attributes that the library fills in; those of the language `diet`, and the path."""


class ClientResources:
    """The part of a `Client` that publishes resources and asks for those of others."""

    writers: dict[str, TableWriter]
    """Writers by topic, for the session in which they were made."""

    def _self(self) -> "Client":
        return cast("Client", self)

    def publish_resource(
        self,
        topic: str,
        name: str,
        *,
        file: str | None = None,
        title: str | None = None,
        author: str | None = None,
        acks: int | None = None,
        **attributes: Any,
    ) -> None:
        """Publish what this client has under a name, in place of what it had under it. `name`, `type`, `size`, `path`
        and `key` are filled in: from the name (`thesis.pdf`), from the file if there is one, and from the client. The
        content of the file is not read. Other attributes are columns. `acks` is as in `Channel.publish`.

        >>> client.publish_resource("resources", "thesis.pdf", title="P2P-DIET", pages=120)
        """
        taken = [each for each in attributes if each in SYSTEM or each.startswith("_")]
        if taken:
            raise LocalProtocolError(f"attribute {taken[0]!r} is filled in by the library: leave it out")
        stem, dot, kind = name.rpartition(".")
        path = None if file is None else Path(file)
        if path is not None and not path.is_file():
            raise LocalProtocolError(f"{file}: there is no such file: correct the path")
        system = {
            "name": stem if stem else name,
            "type": kind.lower() if dot and stem else None,
            "size": None if path is None else path.stat().st_size,
            "path": None if path is None else str(path.resolve()),
            "key": self._self().key,
        }
        columns = {each: pa.array([system[each]], kind) for each, kind in SYSTEM.items()}
        columns |= {each: pa.array([text], pa.string()) for each, text in (("title", title), ("author", author))}
        own = table_of([attributes]) if attributes else pa.table({})
        columns |= {each: own[each] for each in own.column_names}
        self._writer(topic).put_rows([name], pa.table(columns), acks=acks)

    def remove_resource(self, topic: str, name: str, *, acks: int | None = None) -> None:
        """Remove what this client published under a name; nothing else, and no file, is touched."""
        self._writer(topic).remove([name], acks=acks)

    def resources(self, topic: str, where: str | None = None, *, language: str | None = None) -> pa.Table:
        """The resources that stand at the access point and match: of all clients.

        >>> client.resources("resources", "type = pdf", language="diet").num_rows
        2
        """
        return self._self()._at_access_point().table(topic, where, language=language)

    def query(
        self,
        topic: str,
        where: str | None = None,
        *,
        language: str | None = None,
        scope: Literal["node", "channel"] = "node",
    ) -> TopicQuery:
        """Ask for the rows of a topic that match, as `Channel.query` does, at the access point first. The client's
        profiles are not touched, nothing is kept, and rows that are published later are not in the answer."""
        client = self._self()
        nodes = dict.fromkeys((client._connected_node(), *client.channel.nodes))
        return client.channel.through(list(nodes)).query(topic, where, language=language, scope=scope)

    def _writer(self, topic: str) -> TableWriter:
        """Return the writer of this session. Its counter continues from the one that the access point has: rows of the
        same session were published there."""
        client = self._self()
        channel, session = client._at_access_point(), client.memory.session
        writer = self.writers.get(topic)
        if writer is not None and writer.session >= session and writer.channel.nodes == channel.nodes:
            return writer
        try:
            rows = channel.table(topic, f"{OWNER} = {sql_text(client.key)}", removed=True)
            versions = [(each["session"], each["counter"]) for each in rows[VERSION].to_pylist()]
        except RefusedError as error:
            if error.code != "unknown-topic":
                raise
            versions = []
        known, counter = max(versions, default=(0, 0))
        writer = TableWriter(channel, topic, client.key, max(session, known))
        writer.counter = counter if known >= session else 0
        self.writers[topic] = writer
        return writer
