"""A client's own file: who it is, and where it stands. With it a process continues exactly where the last one was."""

import json
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from m4cast.overlay.errors import LocalProtocolError


@dataclass(frozen=True, slots=True)
class ClientFile:
    path: Path

    def kept(self, key: str, credential: str) -> dict[str, Any]:
        """Return the content for the client `key`, or for whichever it is of (`""`). There may be no file yet for one
        whose key and credential are given."""
        if key and credential and not self.path.exists():
            return {}
        content = self.read()
        if key and content["key"] != key:
            raise LocalProtocolError(f"{self.path}: is the file of client {content['key']!r}, not of {key!r}")
        return content

    def require_none(self) -> None:
        if self.path.exists():
            raise LocalProtocolError(f"{self.path} exists: choose another name, or open its client: Client(file=...)")

    def read(self) -> dict[str, Any]:
        try:
            content = json.loads(self.path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise LocalProtocolError(f"{self.path}: there is no such file: make one with m4cast client new") from None
        except (OSError, ValueError) as error:
            raise LocalProtocolError(f"{self.path}: cannot be read as a client's file: {error}") from None
        if not isinstance(content, dict) or not {"key", "credential"} <= content.keys():
            raise LocalProtocolError(f"{self.path}: is not a client's file: key or credential is missing")
        return content

    def write(self, content: dict[str, Any]) -> None:
        """All or nothing. Only its owner may read it: the credential is a secret."""
        beside = self.path.with_name(f"{self.path.name}.{os.getpid()}.new")
        with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            json.dump(content, file)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(self.path)


def new_key() -> str:
    """128 random bits: no two nodes, and no two clients, make the same."""
    return secrets.token_hex(16)


def new_credential() -> str:
    return secrets.token_urlsafe(24)
