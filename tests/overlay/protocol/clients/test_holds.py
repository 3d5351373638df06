"""Holds as text."""

from m4cast.overlay.ids import NodeId, StreamId
from m4cast.overlay.profiles import parse
from m4cast.overlay.protocol.clients.holds import hold_id, hold_of, hold_text

STREAM = StreamId(NodeId(b"0123456789abcdef"), "o'clock")


def test_a_hold_is_written_as_a_condition_and_read_again() -> None:
    text = hold_text(STREAM, 17)
    assert hold_of(text) == (STREAM, 17)
    assert hold_of(parse(text).written) == (STREAM, 17)
    assert hold_id(STREAM) == f"_hold/{STREAM.origin.hex()}/o'clock"


def test_other_texts_are_no_holds() -> None:
    for text in ("", "topic = 't'", "topic = 't' AND origin = 'ab' AND needed = 1", hold_text(STREAM, 1) + " OR a = 1"):
        assert hold_of(text) is None
