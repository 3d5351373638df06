"""How a node writes its log: lines for people, or one JSON object a line for programs.

A JSON line has `at` (UTC, with milliseconds), `level`, `node` (its name), `logger` and `message`; `error` is the
traceback, where there is one. Where a process runs several nodes, each line has the name of the one it is about; lines
that are about none of them alone have all names, as `n1+n2`.
"""

import json
import logging
import sys
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Literal

LogFormat = Literal["text", "json"]
speaking: ContextVar[str] = ContextVar("speaking")
"""The node that a line is about; set in the context in which it runs."""


class JsonFormatter(logging.Formatter):
    def __init__(self, node: str) -> None:
        super().__init__()
        self._node = node

    def format(self, record: logging.LogRecord) -> str:
        said = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "node": speaking.get(self._node),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            said["error"] = self.formatException(record.exc_info)
        return json.dumps(said, ensure_ascii=False)


class TextFormatter(logging.Formatter):
    def __init__(self, node: str) -> None:
        super().__init__("%(asctime)s %(node)s %(levelname)s %(message)s")
        self._node = node

    def format(self, record: logging.LogRecord) -> str:
        record.node = speaking.get(self._node)
        return super().format(record)


def log_to_stderr(node: str, log_format: LogFormat, *, verbose: bool) -> None:
    """Set up the log of this process; `node` is the name in lines of no other."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(node) if log_format == "json" else TextFormatter(node))
    logging.basicConfig(level=logging.DEBUG if verbose else logging.INFO, handlers=[handler])
    logging.getLogger("asyncio").setLevel(logging.WARNING)
