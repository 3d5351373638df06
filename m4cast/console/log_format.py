"""The log of a long-running command: text for people, or one JSON object per line for programs.

A JSON line has `at` (UTC, with milliseconds), `level`, `node` (its name), `logger` and `message`, and `error` (the
traceback) if there is one. In a process that runs several nodes, each line has the name of the node it concerns; a line
that concerns all of them has all names, as in `n1+n2`.
"""

import json
import logging
import sys
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Literal

LogFormat = Literal["text", "json"]
current_node: ContextVar[str] = ContextVar("current_node")
"""The node that log lines concern; set in the context in which the node runs."""


class JsonFormatter(logging.Formatter):
    def __init__(self, node: str) -> None:
        super().__init__()
        self._node = node

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "node": current_node.get(self._node),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


class TextFormatter(logging.Formatter):
    def __init__(self, node: str) -> None:
        super().__init__("%(asctime)s %(node)s %(levelname)s %(message)s")
        self._node = node

    def format(self, record: logging.LogRecord) -> str:
        record.node = current_node.get(self._node)
        return super().format(record)


def log_to_stderr(node: str, log_format: LogFormat, *, verbose: bool) -> None:
    """Set up the log of this process; `node` is the name for lines that concern no single node."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(node) if log_format == "json" else TextFormatter(node))
    logging.basicConfig(level=logging.DEBUG if verbose else logging.INFO, handlers=[handler])
    logging.getLogger("asyncio").setLevel(logging.WARNING)
