"""The door's calls by plain `pyarrow.flight`, as somebody writes them who has only read `docs/PROTOCOL.md`."""

import json
from typing import Any

import pyarrow as pa
from pyarrow import flight

from tests.overlay.door.served import Served

CALL = flight.FlightCallOptions(timeout=30)


def connect(served: Served, at: int) -> Any:
    return flight.connect(f"grpc://{served.addresses[at]}")


def put(client: Any, descriptor: Any, rows: pa.Table | pa.RecordBatch) -> list[dict[str, Any]]:
    """Write everything, then listen: the acknowledgements."""
    batches = [rows] if isinstance(rows, pa.RecordBatch) else rows.to_batches()
    writer, reader = client.do_put(descriptor, rows.schema, CALL)
    with writer:
        for batch in batches:
            writer.write_batch(batch)
        writer.done_writing()
        acks = []
        while (ack := reader.read()) is not None:
            acks.append(json.loads(ack.to_pybytes()))
    return acks


def command(**fields: object) -> Any:
    return flight.FlightDescriptor.for_command(json.dumps(fields).encode())


def path(topic: str) -> Any:
    return flight.FlightDescriptor.for_path(topic)


def get(client: Any, **ticket: object) -> pa.Table:
    return client.do_get(flight.Ticket(json.dumps(ticket).encode()), CALL).read_all()


def act(client: Any, action: str, **body: object) -> Any:
    (result,) = client.do_action(flight.Action(action, json.dumps(body).encode()), CALL)
    return json.loads(result.body.to_pybytes())


def frontier(client: Any, topic: str) -> dict[str, dict[str, int]]:
    ends = act(client, "frontier", topic=topic)
    return {topic: {origin: end[1] for origin, end in ends[topic].items()}}


def code_of(error: Any) -> str:
    code: str = json.loads(error.value.extra_info)["code"]
    assert str(error.value).startswith(f"{code}: ")
    return code
