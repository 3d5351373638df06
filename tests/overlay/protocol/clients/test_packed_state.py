"""The short form of a client's state: the same state, in few bytes, and nothing that a stranger can abuse."""

import base64
import json
import subprocess
import sys
from random import Random

import pytest

from m4cast.overlay.errors import LocalProtocolError
from m4cast.overlay.protocol.clients import packed_state
from m4cast.overlay.protocol.clients.packed_state import packed_of, state_from
from m4cast.overlay.protocol.clients.state import ClientProfile, ClientState, json_of

SHIPPED_BYTES_MAX = 2_048
STREAMS = 64


def origin(number: int) -> str:
    return Random(number).randbytes(16).hex()


def over_the_wire(state: ClientState) -> tuple[ClientState, int]:
    written = json.dumps(packed_of(state))
    return state_from(json.loads(written)), len(written)


def changed_at_random(seed: int) -> ClientState:
    """A state after some subscribing, reading and giving up, on topics with different streams."""
    rng, state = Random(seed), ClientState()
    here = {topic: {origin(rng.randrange(9)): rng.randrange(1, 2**40) for _ in range(6)} for topic in "ab"}
    for step in range(12):
        topic = rng.choice("ab")
        match rng.randrange(4):
            case 0:
                state = state.unsubscribed(rng.choice("pqr"))
            case 1:
                begin = {each: rng.randrange(1, until + 1) for each, until in here[topic].items()}
                profile = ClientProfile(rng.choice("pqr"), topic, rng.choice((None, "n > 1")), None, begin)
                state = state.subscribed(profile, here[topic])
            case 2 if state.fills:
                moved, (first, until) = rng.choice(sorted(state.fills[0].ranges.items()))
                state = state.shortened(0, moved, rng.randrange(first, until + 1))
            case _ if topic in state.topics:
                state = state.passed(topic, origin(rng.randrange(9)), step * 1_000_000)
    return state


@pytest.mark.parametrize("seed", range(60))
def test_the_short_form_is_the_same_state(seed: int) -> None:
    state = changed_at_random(seed)
    assert over_the_wire(state)[0] == state
    assert state_from(json.loads(json.dumps(json_of(state)))) == state, "the long form is read as before"


def test_a_state_of_64_streams_takes_at_most_2_kilobytes() -> None:
    """Streams of up to four billion rows each, which were followed from different rows on."""
    rng = Random(1)
    begin = {origin(number): rng.randrange(1, 2**32) for number in range(STREAMS)}
    profile = ClientProfile("default", "orders", "price > 100 AND country = 'PL'", None, begin)
    state = ClientState().subscribed(profile, begin)
    for each, first in begin.items():
        state = state.passed("orders", each, rng.randrange(first, 2**32))
    found, size = over_the_wire(state)
    assert found == state
    assert size <= SHIPPED_BYTES_MAX


def test_a_state_with_too_many_positions_stays_in_the_long_form(monkeypatch: pytest.MonkeyPatch) -> None:
    here = {origin(number): 7 for number in range(10)}
    state = ClientState().subscribed(ClientProfile("p", "t", None, None, here), here)
    monkeypatch.setattr(packed_state, "ENTRIES_MAX", 20)
    assert "short" in packed_of(state)
    monkeypatch.setattr(packed_state, "ENTRIES_MAX", 19)
    assert packed_of(state) == json_of(state)
    monkeypatch.undo()
    short = packed_of(state)
    monkeypatch.setattr(packed_state, "ENTRIES_MAX", 19)
    with pytest.raises(LocalProtocolError, match="more than 19 positions"):
        state_from(short)


HERE = {origin(1): 7, origin(2): 300}
SHORT = base64.b85decode(packed_of(ClientState().subscribed(ClientProfile("p", "t", None, None, HERE), HERE))["short"])


@pytest.mark.parametrize("length", range(len(SHORT)))
def test_a_short_form_that_was_cut_is_refused(length: int) -> None:
    with pytest.raises(LocalProtocolError, match="is damaged"):
        state_from({"short": base64.b85encode(SHORT[:length]).decode()})


@pytest.mark.parametrize("seed", range(100))
def test_a_short_form_with_other_bytes_is_refused_or_another_state(seed: int) -> None:
    rng, changed = Random(seed), bytearray(SHORT)
    for _ in range(rng.randrange(1, 4)):
        changed[rng.randrange(len(changed))] = rng.randrange(256)
    try:
        found = state_from({"short": base64.b85encode(changed).decode()})
    except LocalProtocolError:
        return
    assert state_from(packed_of(found)) == found


@pytest.mark.parametrize("short", [None, 7, '"', [], "\u017c", base64.b85encode(SHORT + b"x").decode()])
def test_what_is_no_short_form_is_refused(short: object) -> None:
    with pytest.raises(LocalProtocolError, match="is damaged"):
        state_from({"short": short})


AMID_THE_FIRST = """
import json, sys
from m4cast.overlay.protocol.clients.packed_state import state_from

short, lines = json.loads(sys.argv[1]), 0

def traced(frame, event, _):
    global lines
    if frame.f_code.co_name != "b85decode":
        return None if lines else traced
    if event == "line":
        lines += 1
        if lines > 2:
            state_from(short)  # is not traced itself
    return traced

sys.settrace(traced)
state_from(short)
"""
"""Reads a short form while the first one of the process is being read, as another thread may at any line."""


def test_a_short_form_is_read_while_the_first_of_the_process_is() -> None:
    short = json.dumps({"short": base64.b85encode(SHORT).decode()})
    done = subprocess.run([sys.executable, "-c", AMID_THE_FIRST, short], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
