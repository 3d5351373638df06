"""How a node writes its log: lines for people, or one JSON object a line for programs.

A JSON line has `at` (UTC, with milliseconds), `level`, `node` (its name), `logger` and `message`; `error` is the
traceback, where there is one.
"""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Literal

LogFormat = Literal["text", "json"]


class JsonFormatter(logging.Formatter):
    def __init__(self, node: str) -> None:
        super().__init__()
        self._node = node

    def format(self, record: logging.LogRecord) -> str:
        said = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "node": self._node,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            said["error"] = self.formatException(record.exc_info)
        return json.dumps(said, ensure_ascii=False)


def log_to_stderr(node: str, log_format: LogFormat, *, verbose: bool) -> None:
    """Set up the log of this process, which is the node's alone."""
    handler = logging.StreamHandler(sys.stderr)
    text = logging.Formatter(f"%(asctime)s {node} %(levelname)s %(message)s")
    handler.setFormatter(JsonFormatter(node) if log_format == "json" else text)
    logging.basicConfig(level=logging.DEBUG if verbose else logging.INFO, handlers=[handler])
    logging.getLogger("asyncio").setLevel(logging.WARNING)
