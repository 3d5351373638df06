"""Tokens: secrets, and the rights that they grant.

    [[token]]
    name = "reports"                 # for logs and errors; the secret is in neither
    sha256 = "9f86d0...0a08"         # of the secret; or secret = "..."
    publish = ["orders", "events.*"] # topic patterns: * ? [abc]
    read = ["*"]
    subscribe = ["orders"]           # what may be registered as wanted at the node
    client = ["shop-*"]              # keys of clients that it may connect
    admin = false                    # actions that change the node or the channel
    filter_cpu = 0.5                 # how much of a core its filters may use; no limit if absent
    where = {orders = "country = 'PL'"}  # of topics that match a pattern, it reads only such rows

They are checked before the first byte of a call's payload is read. Secrets are compared by their digests, in constant
time. The file is checked with every call: a change applies from the next one on. A file that cannot be used is logged,
and the previous tokens stay in force.
"""

import hashlib
import hmac
import logging
import os
import threading
import tomllib
from pathlib import Path
from typing import Any

from m4cast.overlay.door.access.rights import Rights
from m4cast.overlay.errors import ConfigError
from m4cast.overlay.net.tls import file_stamp
from m4cast.overlay.profiles import FilterError, Profile, parse

log = logging.getLogger("m4cast.door")

TOKENS_MAX = 1_000
PATTERNS_MAX = 1_000
FILE_BYTES_MAX = 1 << 20
FILTERS_MAX = 100
"""Limit on the filters of one token. A call combines those that match its topics."""
CPU_MIN, CPU_MAX = 0.001, 64
SECRET_CHARACTERS_MIN = 16
"""Shorter ones can be guessed."""


class Tokens:
    """The tokens of a reference: `file:PATH` or `env:NAME`. Any thread may use it."""

    def __init__(self, reference: str) -> None:
        kind, _, self._where = reference.partition(":")
        self._path = Path(self._where) if kind == "file" else None
        self._lock = threading.Lock()
        self._looked = file_stamp(self._path) if self._path else None
        self._tokens = self._load()

    def rights_of(self, secret: str) -> Rights | None:
        """The rights of a secret, by the file as it is now. Not on a node's loop: filters may have to be parsed."""
        self.refresh()
        return self.known_rights_of(secret)

    def known_rights_of(self, secret: str) -> Rights | None:
        """The rights of a secret, by the file as it was read last."""
        digest = _digest(secret)
        found = None
        for known, rights in self._tokens:  # all of them, so that timing reveals nothing
            if hmac.compare_digest(known, digest):
                found = rights
        return found

    @property
    def is_stale(self) -> bool:
        """True if the file has changed since it was read."""
        return self._path is not None and file_stamp(self._path) != self._looked

    def refresh(self) -> None:
        """Read a file that has changed; what is wrong in it is logged, and the tokens before stay in force."""
        if self._path is None:
            return
        with self._lock:
            looked = file_stamp(self._path)
            if looked == self._looked:
                return
            try:
                self._tokens = self._load()
            except ConfigError as error:
                log.error("the new tokens are not used, the old ones stay in force: %s", error)
            else:
                log.info("%d tokens of %s are in force", len(self._tokens), self._path)
            self._looked = looked  # last: until then others see that the file is to be read

    def _load(self) -> list[tuple[bytes, Rights]]:
        if self._path is not None:
            try:
                with self._path.open("rb") as file:
                    written = file.read(FILE_BYTES_MAX + 1)
            except OSError as error:
                raise ConfigError(f"tokens: {self._path}: cannot be read: {error.strerror}") from error
        else:
            value = os.environ.get(self._where)
            if value is None:
                raise ConfigError(f"tokens: the environment has no {self._where}: set the variable")
            written = value.encode(errors="surrogateescape")
        try:
            return _parse(written)
        except ConfigError as error:
            raise ConfigError(f"tokens: {self._where}: {error}") from error


def _parse(written: bytes) -> list[tuple[bytes, Rights]]:
    if len(written) > FILE_BYTES_MAX:
        raise ConfigError(f"has more than {FILE_BYTES_MAX} bytes: shorten it")
    try:
        content = tomllib.loads(written.decode())
    except UnicodeDecodeError as error:
        raise ConfigError("is not UTF-8") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"is not TOML: {error}") from error
    tables = content.pop("token", [])
    if content or not isinstance(tables, list) or not 1 <= len(tables) <= TOKENS_MAX:
        raise ConfigError(f"must be 1 to {TOKENS_MAX} tables [[token]] and nothing else")
    return [_token(number, table) for number, table in enumerate(tables, 1)]


def _token(number: int, table: object) -> tuple[bytes, Rights]:
    if not isinstance(table, dict):
        raise ConfigError(f"token {number} is not a table: write it under [[token]]")
    fields: dict[str, Any] = dict(table)
    name = fields.pop("name", None)
    if not isinstance(name, str) or not name.isprintable() or not 1 <= len(name) <= 200:
        raise ConfigError(f"token {number}: name must be printable text of 1 to 200 characters")
    digest, secret = fields.pop("sha256", None), fields.pop("secret", None)
    patterns = {right: fields.pop(right, []) for right in ("publish", "read", "subscribe", "client")}
    admin = fields.pop("admin", False)
    where = _where(name, fields.pop("where", {}))
    filter_cpu = _filter_cpu(name, fields.pop("filter_cpu", None))
    if fields:
        known = "name, sha256, secret, publish, read, subscribe, client, admin, where, filter_cpu"
        raise ConfigError(f"token {name!r}: unknown field {next(iter(fields))!r}; known are {known}")
    for right, value in patterns.items():
        if (
            not isinstance(value, list)
            or len(value) > PATTERNS_MAX
            or not all(isinstance(pattern, str) and pattern for pattern in value)
        ):
            of = "patterns of keys" if right == "client" else "topic patterns"
            raise ConfigError(f"token {name!r}: {right} must be a list of at most {PATTERNS_MAX} {of}")
    if not isinstance(admin, bool):
        raise ConfigError(f"token {name!r}: admin must be true or false")
    rights = Rights(
        name=name,
        publish=tuple(patterns["publish"]),
        read=tuple(patterns["read"]),
        admin=admin,
        where=where,
        filter_cpu=filter_cpu,
        subscribe=tuple(patterns["subscribe"]),
        client=tuple(patterns["client"]),
    )
    return _known_digest(name, digest, secret), rights


def _where(name: str, table: object) -> tuple[tuple[str, Profile], ...]:
    if not isinstance(table, dict) or len(table) > FILTERS_MAX or not all(isinstance(t, str) for t in table.values()):
        raise ConfigError(
            f"token {name!r}: where must be a table of at most {FILTERS_MAX} topic patterns with a filter"
        )
    found = []
    for pattern, text in table.items():
        try:
            found.append((pattern, parse(text)))
        except FilterError as error:
            raise ConfigError(f"token {name!r}: where of {pattern!r}: {error}") from error
    return tuple(found)


def _filter_cpu(name: str, share: object) -> float | None:
    if share is None:
        return None
    if isinstance(share, bool) or not isinstance(share, int | float) or not CPU_MIN <= share <= CPU_MAX:
        raise ConfigError(f"token {name!r}: filter_cpu must be a share of a core from {CPU_MIN} to {CPU_MAX}")
    return float(share)


def _known_digest(name: str, digest: object, secret: object) -> bytes:
    """The messages do not quote the values: they are secrets, or nearly."""
    if (digest is None) == (secret is None):
        raise ConfigError(f"token {name!r}: needs either sha256 or secret")
    if secret is not None:
        if not isinstance(secret, str) or len(secret) < SECRET_CHARACTERS_MIN or not secret.isascii():
            raise ConfigError(f"token {name!r}: secret must be {SECRET_CHARACTERS_MIN} ASCII characters or more")
        return _digest(secret)
    try:
        known = bytes.fromhex(digest) if isinstance(digest, str) else b""
    except ValueError:
        known = b""
    if len(known) != hashlib.sha256().digest_size:
        raise ConfigError(f"token {name!r}: sha256 must be 64 hex digits")
    return known


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode(errors="surrogateescape")).digest()
