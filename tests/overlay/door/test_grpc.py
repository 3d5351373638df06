"""The door as gRPC carries it, for clients in languages whose Flight library keeps to gRPC's defaults.

`grpc` here is another implementation than the one inside pyarrow. It accepts messages of up to 4 MiB, as Go's does.
"""

import json
from collections.abc import Iterator
from typing import Any

import grpc  # type: ignore[import-untyped]
import pyarrow as pa
import pytest
from pyarrow import flight

from m4cast.overlay.door.flight import as_flight_error
from m4cast.overlay.door.refusals import Refusal
from m4cast.overlay.refusals import GRPC_STATUS, REFUSALS
from tests.overlay.door.plain import CALL, act, code_of, command, connect, path, put
from tests.overlay.door.served import Served, serving

MESSAGE_BYTES_MAX = 4 << 20


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("grpc"), 1) as served:
        yield served


def called(address: str, method: str, message: bytes) -> list[bytes]:
    """The answer's messages as they are."""
    with grpc.insecure_channel(address) as channel:
        call = channel.unary_stream(
            f"/arrow.flight.protocol.FlightService/{method}",
            request_serializer=lambda message: message,
            response_deserializer=lambda message: message,
        )
        return list(call(message, timeout=30))


def field(number: int, value: bytes) -> bytes:
    """A field of a protobuf message: bytes, shorter than 128."""
    return bytes([number << 3 | 2, len(value)]) + value


def descriptor(topic: str) -> bytes:
    return bytes([1 << 3, 1]) + field(3, topic.encode())  # of type PATH


# ---- sizes


def test_messages_of_a_read_are_not_larger_than_grpc_accepts(door: Served) -> None:
    rows = pa.record_batch({"n": range(100_000), "text": ["x" * 60] * 100_000})
    put(connect(door, 0), path("large"), rows)
    for form in ("rows", "batches"):
        ticket = json.dumps({"topic": "large", "end": "latest", "metadata": form}).encode()
        messages = called(door.addresses[0], "DoGet", field(1, ticket))
        assert sum(map(len, messages)) > rows.nbytes > MESSAGE_BYTES_MAX
        assert max(map(len, messages)) < MESSAGE_BYTES_MAX


# ---- errors


class Refusing(flight.FlightServerBase):  # type: ignore[misc]  # pyarrow ships no types
    """Refuses every read with the code that its ticket names, as the door does."""

    def do_get(self, context: Any, ticket: Any) -> Any:
        raise as_flight_error(Refusal(ticket.ticket.decode(), "which: and why"))


def test_every_code_has_the_error_and_the_status_of_the_table() -> None:
    kinds = {
        "server": flight.FlightServerError,
        "unavailable": flight.FlightUnavailableError,
        "timed out": flight.FlightTimedOutError,
        "unauthenticated": flight.FlightUnauthenticatedError,
        "unauthorized": flight.FlightUnauthorizedError,
        "cancelled": flight.FlightCancelledError,
        "internal": flight.FlightInternalError,
    }
    with Refusing("grpc://127.0.0.1:0") as server:
        client = flight.connect(f"grpc://127.0.0.1:{server.port}")
        for code, name, status in (
            (kind.code, kind.flight, GRPC_STATUS[kind.flight]) for kind in REFUSALS.values() if kind.flight
        ):
            with pytest.raises(flight.FlightError) as error:
                client.do_get(flight.Ticket(code.encode()), CALL).read_all()
            assert type(error.value) is kinds[name], code
            assert code_of(error) == code
            with pytest.raises(grpc.RpcError) as raw:
                called(f"127.0.0.1:{server.port}", "DoGet", field(1, code.encode()))
            assert raw.value.code().name == status, code
            said: str = raw.value.details()
            assert said.startswith(f"{code}: which: and why. Detail: "), (
                "the code is what stands before the first colon"
            )
            trailers = {each.key: each.value for each in raw.value.trailing_metadata()}
            assert json.loads(trailers["grpc-status-details-bin"]) == {"code": code, "detail": "which: and why"}
            assert trailers["x-arrow-status-message-bin"] == f"{code}: which: and why".encode()
        client.close()


def test_errors_amid_every_kind_of_call_carry_their_code(door: Served) -> None:
    here = connect(door, 0)
    for method, message in (
        ("DoGet", field(1, b'{"topic": "nowhere", "end": "latest"}')),
        ("GetFlightInfo", descriptor("nowhere")),
        ("GetSchema", descriptor("nowhere")),
        ("ListFlights", field(1, b'{"topics": ["nowhere"]}')),
        ("DoAction", field(1, b"topic") + field(2, b'{"topic": "nowhere"}')),
    ):
        with pytest.raises(grpc.RpcError) as error:
            called(door.addresses[0], method, message)
        assert error.value.code() is grpc.StatusCode.UNKNOWN, method
        assert error.value.details().startswith("unknown-topic: nothing was published under topic 'nowhere'"), method
        assert "Traceback" not in error.value.details(), method
    here.close()


# ---- GetSchema, and the calls that are not there


def test_the_schema_of_a_topic_is_the_one_of_its_flight(door: Served) -> None:
    here = connect(door, 0)
    put(here, path("schema"), pa.table({"n": [1], "text": ["a"]}))
    for asked in (path("schema"), command(topic="schema")):
        schema = here.get_schema(asked, CALL).schema
        assert schema.equals(here.get_flight_info(asked, CALL).schema)
        assert schema.names[:2] == ["n", "text"]
    for asked in (command(topic="schema", acks=1), flight.FlightDescriptor.for_path("a", "b")):
        with pytest.raises(flight.FlightServerError) as error:
            here.get_flight_info(asked, CALL)
        assert code_of(error) == "bad-request"
        with pytest.raises(OSError, match=r"^bad-request: ") as plain:
            here.get_schema(asked, CALL)
        assert "Traceback" not in str(plain.value)
    here.close()


def test_exchanges_are_refused_by_name(door: Served) -> None:
    here = connect(door, 0)
    writer, reader = here.do_exchange(path("t"), CALL)
    with pytest.raises(flight.FlightServerError, match="publish with DoPut, read with DoGet") as error:
        reader.read_chunk()
    assert code_of(error) == "not-implemented"
    with pytest.raises(flight.FlightServerError):
        writer.close()
    assert "t" not in act(here, "topics")
    here.close()


@pytest.mark.parametrize("method", ["Handshake", "PollFlightInfo", "NoSuchCall"])
def test_other_calls_are_not_implemented(door: Served, method: str) -> None:
    with pytest.raises(grpc.RpcError) as error:
        called(door.addresses[0], method, descriptor("t"))
    assert error.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert "Traceback" not in error.value.details()
