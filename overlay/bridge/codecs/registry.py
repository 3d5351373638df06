"""A client of a schema registry: looks schemas up by their id, and registers schemas. Answers are cached.

`MissingSchemaError`: the registry has no such schema, or refuses it; the record cannot be read or written.
`RegistryError`: the registry could not be reached or failed; the caller retries.
"""

import base64
import json
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

from m4cast.overlay.bridge.codecs.avro_values import AvroReader, Schema
from m4cast.overlay.errors import M4castError

TIMEOUT_S = 10
ANSWER_BYTES_MAX = 16 << 20
KEPT_MAX = 10_000
"""Schemas in memory; at the limit, all are dropped and looked up again. Guess."""
MEDIA_TYPE = "application/vnd.schemaregistry.v1+json"


class RegistryError(M4castError):
    """The registry cannot be reached, or failed."""


class MissingSchemaError(M4castError):
    """The registry has no such schema."""


class Registry:
    """`url` may contain a user and a password: `https://user:password@host:port/path`."""

    def __init__(self, url: str) -> None:
        parts = urllib.parse.urlsplit(url)
        host = parts.netloc.rpartition("@")[2]
        self.url = urllib.parse.urlunsplit((parts.scheme, host, parts.path.rstrip("/"), "", ""))
        self._headers = {"Accept": MEDIA_TYPE, "Content-Type": MEDIA_TYPE}
        if parts.username is not None:
            who = f"{urllib.parse.unquote(parts.username)}:{urllib.parse.unquote(parts.password or '')}"
            self._headers["Authorization"] = f"Basic {base64.b64encode(who.encode()).decode()}"
        self._readers: dict[int, AvroReader] = {}
        self._numbers: dict[tuple[str, str], int] = {}

    def reader(self, number: int) -> AvroReader:
        """A reader for values of the schema with this id."""
        reader = self._readers.get(number)
        if reader is None:
            answer = self._ask(f"/schemas/ids/{number}")
            if answer.get("schemaType", "AVRO") != "AVRO":
                raise MissingSchemaError(f"schema {number} at {self.url} is {answer['schemaType']}, not Avro")
            reader = AvroReader(json.loads(answer["schema"]))
            self._keep(self._readers, number, reader)
        return reader

    def register(self, subject: str, schema: Schema) -> int:
        """The id of a schema; registers it under the subject if necessary."""
        text = json.dumps(schema)
        number = self._numbers.get((subject, text))
        if number is None:
            path = f"/subjects/{urllib.parse.quote(subject, safe='')}/versions"
            number = int(self._ask(path, {"schema": text})["id"])
            self._keep(self._numbers, (subject, text), number)
        return number

    def _keep(self, kept: dict[Any, Any], key: object, value: object) -> None:
        if len(kept) >= KEPT_MAX:
            kept.clear()
        kept[key] = value

    def _ask(self, path: str, question: object = None) -> dict[str, Any]:
        body = None if question is None else json.dumps(question).encode()
        request = urllib.request.Request(self.url + path, body, self._headers)
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
                answer = json.loads(response.read(ANSWER_BYTES_MAX))
        except urllib.error.HTTPError as error:
            text = error.read(1_000).decode(errors="replace")
            error.close()
            if error.code in (404, 409, 422):
                raise MissingSchemaError(f"{self.url}{path}: {error.code} {text}") from None
            raise RegistryError(f"{self.url}{path}: {error.code} {text}") from None
        except (OSError, ValueError) as error:
            raise RegistryError(f"{self.url}{path}: {error}") from None
        if not isinstance(answer, dict):
            raise RegistryError(f"{self.url}{path}: the answer is not a JSON object")
        return answer
