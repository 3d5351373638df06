"""Server-sent events, read as a browser reads them, over a plain socket that can be cut at any byte."""

import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.overlay.net.running import TIMEOUT_S


class Event(NamedTuple):
    id: str
    name: str
    data: str


@dataclass
class EventSource:
    """The state that a browser keeps: the last id survives its connections."""

    address: str
    path: str
    last_id: str = ""
    status: str = ""
    headers: Mapping[str, str] | None = None
    answered: dict[str, str] = field(default_factory=dict)
    """The headers of the last answer."""

    def events(self, cut_after: int | None = None) -> Iterator[Event]:
        """The events of one connection, which ends after so many bytes of its body, or when the server ends it."""
        host, _, port = self.address.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=TIMEOUT_S) as connection:
            shown = {"Accept": "text/event-stream", **(self.headers or {})}
            if self.last_id:
                shown["Last-Event-ID"] = self.last_id
            head = "".join(f"{name}: {value}\r\n" for name, value in shown.items())
            connection.sendall(f"GET {self.path} HTTP/1.1\r\nHost: {self.address}\r\n{head}\r\n".encode())
            stream = connection.makefile("rb")
            self.status = stream.readline().decode().strip()
            while line := stream.readline().decode().strip():
                name, _, value = line.partition(": ")
                self.answered[name] = value
            yield from self._parsed(self._body(stream, cut_after))

    def _body(self, stream: object, cut_after: int | None) -> Iterator[bytes]:
        """The body byte run by byte run: chunks of the transfer coding, cut where it is said."""
        left = cut_after
        read = stream.readline, stream.read  # type: ignore[attr-defined]
        while size := int(read[0]() or b"0", 16):
            chunk = read[1](size)
            read[0]()
            if left is not None:
                chunk = chunk[:left]
                left -= len(chunk)
            yield chunk
            if left == 0:
                return

    def _parsed(self, pieces: Iterator[bytes]) -> Iterator[Event]:
        text = b""
        for piece in pieces:
            text += piece
            while b"\n\n" in text:
                block, _, text = text.partition(b"\n\n")
                fields = {"event": "message", "data": ""}
                for line in block.decode().split("\n"):
                    name, _, value = line.partition(": ")
                    if name:
                        fields[name] = value
                self.last_id = fields.get("id", self.last_id)
                if fields["data"]:
                    yield Event(self.last_id, fields["event"], fields["data"])
