"""The errors of the connector: each has a stable id, the problem and the fix.

Texts name options, streams, nodes and columns, but never the value of a secret.
"""

from typing import Literal

from m4cast.overlay.errors import M4castError

ErrorId = Literal[
    "M4CAST_UNKNOWN_OPTION",
    "M4CAST_MISSING_OPTION",
    "M4CAST_BAD_OPTION",
    "M4CAST_CONFLICTING_OPTIONS",
    "M4CAST_NO_TABLES",
    "M4CAST_UNKNOWN_TOPIC",
    "M4CAST_SCHEMA_CONFLICT",
    "M4CAST_UNSUPPORTED_TYPE",
    "M4CAST_NEW_COLUMNS",
    "M4CAST_COLUMN_TYPE",
    "M4CAST_RESERVED_COLUMN",
    "M4CAST_NO_TOPIC",
    "M4CAST_APPEND_ONLY",
    "M4CAST_SINK_TAKEN",
    "M4CAST_CHECKPOINT_BEHIND",
    "M4CAST_STAGE_LOST",
    "M4CAST_RECEIPT",
    "M4CAST_FANOUT",
    "M4CAST_DATA_LOSS",
    "M4CAST_TOO_MANY_PARTITIONS",
    "M4CAST_NOT_CERTIFIED",
    "M4CAST_NOT_ARROW",
    "M4CAST_UNKNOWN_NODE",
    "M4CAST_CLIENT",
    "M4CAST_BEHIND",
    "M4CAST_NOT_ACTIVE",
    "M4CAST_UNREACHABLE",
    "M4CAST_REFUSED",
]


class ConnectorError(M4castError):
    """`id` is stable; the text is `[id] problem: fix`."""

    def __init__(self, error_id: ErrorId, problem: str, fix: str) -> None:
        super().__init__(error_id, problem, fix)  # all in args, so that it survives pickling
        self.id = error_id
        self.problem = problem
        self.fix = fix

    def __str__(self) -> str:
        return f"[{self.id}] {self.problem}: {self.fix}"
