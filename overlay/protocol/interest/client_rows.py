"""The clients that are attached to this node, as items of its interest entry (PROTOCOL.md, 21.2)."""

from collections.abc import Mapping

from xxhash import xxh3_64_intdigest

from m4cast.overlay.protocol.effects import ClientRow
from m4cast.overlay.protocol.wire.interest import CLIENT_LANGUAGE, MAIL_HASH, InterestItem, InterestKey


class ClientRows:
    def __init__(self, rows: Mapping[str, ClientRow]) -> None:
        self.rows = dict(rows)
        """The rows by key, including those that are not durable yet."""
        self._keys = {self.key(key): key for key in rows}

    def key(self, client: str) -> InterestKey:
        return InterestKey(MAIL_HASH, xxh3_64_intdigest(client.encode()))

    def change(self, rows: tuple[tuple[str, ClientRow | None], ...]) -> dict[str, ClientRow | None]:
        """Take these rows; what those that changed were before."""
        before: dict[str, ClientRow | None] = {}
        for client, row in rows:
            if self.rows.get(client) != row:
                before[client] = self.rows.get(client)
                self._set(client, row)
        return before

    def undo(self, before: Mapping[str, ClientRow | None]) -> None:
        for client, row in before.items():
            self._set(client, row)

    def _set(self, client: str, row: ClientRow | None) -> None:
        if row is None:
            self.rows.pop(client, None)
            self._keys.pop(self.key(client), None)
        else:
            self.rows[client] = row
            self._keys[self.key(client)] = client

    def item(self, key: InterestKey) -> InterestItem | None:
        """Return what is announced under this key; None: no client."""
        client = self._keys.get(key)
        if client is None:
            return None
        row = self.rows[client]
        return InterestItem(
            topic_hash=key.topic_hash,
            profile_hash=key.profile_hash,
            epoch=2 * row.session + row.covered,
            since_ms=row.since_ms,
            earliest=False,
            language=CLIENT_LANGUAGE,
            version=1,
            text=f"{client} {row.digest.hex()}",
        )

    def items(self) -> list[InterestItem]:
        return [item for key in self._keys if (item := self.item(key)) is not None]
