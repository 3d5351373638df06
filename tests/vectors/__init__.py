"""Golden vectors: frames byte for byte, beside what they mean. They are the wire format; the code has to agree.

`control/<Message>.json` has the fields of a message, `batch/*.json` those of a batch and its hop part; ids and bytes
are in hexadecimal, and so is `frame`, in pieces. A vector with `refused` must not be accepted; the text is part of
the error. One with `skipped` has extensions that are skipped, so what it decodes to encodes to fewer bytes. To add a
vector, write what it means: the test that encodes it shows the bytes.
"""

import json
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

from m4cast.overlay.ids import NodeId
from m4cast.overlay.protocol.wire.batch import Batch, BatchFrame, How, Payload, StoredPayload
from m4cast.overlay.protocol.wire.control import MESSAGE_CLASSES, ROUTED_CLASSES
from m4cast.overlay.protocol.wire.messages import Message
from m4cast.overlay.protocol.wire.selective import Destination, RoutedFrame


class Vector(NamedTuple):
    name: str
    frame: bytes
    message: Message | BatchFrame | None
    refused: str
    skipped: bool


def read_vectors() -> list[Vector]:
    return [_vector(path) for folder in ("batch", "control") for path in _paths(folder)]


def read_routed_vectors() -> list[tuple[str, bytes, RoutedFrame]]:
    """Name, bytes and meaning of each routed frame: `routed/*.json`, with the destinations beside message or batch."""
    found = []
    for path in _paths("routed"):
        content = json.loads(path.read_text(encoding="utf-8"))
        kind = ROUTED_CLASSES[content["record"]] if "record" in content else Batch
        frame = RoutedFrame(
            speaker=_value(NodeId, content["speaker"]),
            destinations=_value(tuple[Destination, ...], content["destinations"]),
            content=_value(kind, content["message" if "record" in content else "batch"]),
            hops=content["hops"],
            how=How[content["how"]],
        )
        found.append((path.stem, bytes.fromhex("".join(content["frame"])), frame))
    return found


def _paths(folder: str) -> list[Path]:
    return sorted((Path(__file__).parent / folder).glob("*.json"))


def _vector(path: Path) -> Vector:
    content = json.loads(path.read_text(encoding="utf-8"))
    message: Message | BatchFrame | None = None
    if "message" in content:
        message = _value(MESSAGE_CLASSES[content["record"]], content["message"])
    elif "batch" in content:
        message = _value(BatchFrame, {"batch": content["batch"], "hops": content["hops"], "how": content["how"]})
    return Vector(
        name=f"{path.parent.name}/{path.stem}",
        frame=bytes.fromhex("".join(content["frame"])),
        message=message,
        refused=content.get("refused", ""),
        skipped=content.get("skipped", False),
    )


def _value(kind: Any, content: Any) -> Any:
    """The value of this type that the JSON describes."""
    if kind in (bytes, Payload | StoredPayload, NodeId):
        return bytes.fromhex(content)
    if kind is How:
        return How[content]
    if kind in (int, str, bool):
        assert type(content) is kind
        return content
    if get_origin(kind) is tuple:
        return tuple(_value(get_args(kind)[0], item) for item in content)
    made_of_others = {field.name for field in fields(kind) if not field.init} if is_dataclass(kind) else set()
    hints = {name: hint for name, hint in get_type_hints(kind).items() if name not in made_of_others}
    # A frame's extension is a field with a default, which vectors from before it do not name.
    of_class = fields(kind) if is_dataclass(kind) else ()
    with_default = {field.name for field in of_class if field.default is not MISSING}
    assert hints.keys() - with_default <= content.keys() <= hints.keys(), f"{kind.__name__}: {[*hints]}, {[*content]}"
    return kind(**{field: _value(hint, content[field]) for field, hint in hints.items() if field in content})
