"""Single rows, open loop: a process that sends them when they are due, and one that says how late they came.

    python -m tests.bench.open_loop send m4cast 127.0.0.1:7501 TOPIC RATE SECONDS WARM_S
    python -m tests.bench.open_loop receive jetstream 127.0.0.1:4222 TOPIC RATE SECONDS WARM_S

Rows carry the time at which they were due, so a sender that is held up does not hide it (no coordinated omission).
Sender and receiver are processes of their own: neither waits for the other's interpreter. The receiver says `ready`,
and in the end percentiles in ms, as JSON, without the first `WARM_S` of its seconds, in which clients get going. So
does the sender, of how late it was itself: what of a row's delay is not the channel's.
"""

import asyncio
import json
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from statistics import quantiles
from typing import Any

WARM_S = 4
FILLER = os.urandom(92)
TIMEOUT_S = 60.0
IDLE_MS = 5_000


def due_times(rate: int, seconds: int) -> list[int]:
    """The time at which a row is due, in ns after the start."""
    return [number * 1_000_000_000 // rate for number in range(rate * seconds)]


def paced(rate: int, seconds: int, late_ns: list[int]) -> Iterator[int]:
    """Each row's time when it is due; how late that was is added to the list."""
    started_ns = time.time_ns()
    for due in due_times(rate, seconds):
        due_ns = started_ns + due
        while (left_ns := due_ns - time.time_ns()) > 0:
            time.sleep(left_ns / 1e9)
        late_ns.append(-left_ns)
        yield due_ns


# ---- m4cast: the client's publisher, or a plain Flight client with a record batch for each row; and a tail


def send_m4cast(address: str, topic: str, rate: int, seconds: int) -> list[int]:
    import pyarrow as pa

    from m4cast.overlay.client import Channel

    schema = pa.schema([("due_ns", pa.int64()), ("v", pa.binary())])
    late_ns: list[int] = []
    with Channel([address]).publisher(topic, schema=schema) as publisher:
        for due_ns in paced(rate, seconds, late_ns):
            publisher.send({"due_ns": due_ns, "v": FILLER})
    return late_ns


def send_flight(address: str, topic: str, rate: int, seconds: int) -> list[int]:
    import pyarrow as pa
    from pyarrow import flight

    schema = pa.schema([("due_ns", pa.int64()), ("v", pa.binary())])
    with flight.connect(f"grpc://{address}") as client:
        pa.array([1]).to_pylist()  # now it imports what it needs for it, and not while rows wait
        writer, acks = client.do_put(flight.FlightDescriptor.for_path(topic), schema)

        def listen() -> None:
            while acks.read() is not None:
                pass

        listener = threading.Thread(target=listen)
        listener.start()
        late_ns: list[int] = []
        for due_ns in paced(rate, seconds, late_ns):
            writer.write_batch(pa.record_batch([pa.array([due_ns]), pa.array([FILLER])], schema=schema))
        writer.done_writing()
        listener.join()
        writer.close()
    return late_ns


def receive_m4cast(address: str, topic: str, rows: int) -> list[int]:
    """A tail ends before the first rows of a topic, and is asked again."""
    import pyarrow as pa
    from pyarrow import flight

    pa.array([1]).to_pylist()  # now it imports what it needs for it, and not while rows wait
    late_ns: list[int] = []
    at: dict[str, dict[str, int]] = {}
    deadline = time.monotonic() + TIMEOUT_S
    print("ready", flush=True)
    with flight.connect(f"grpc://{address}") as client:
        while len(late_ns) < rows and time.monotonic() < deadline:
            ticket = {"topic": topic, "start": at, "idle_ms": IDLE_MS}
            reader: Any = client.do_get(flight.Ticket(json.dumps(ticket).encode()))
            while len(late_ns) < rows:
                try:
                    chunk = reader.read_chunk()
                except StopIteration:
                    break
                now_ns = time.time_ns()
                where = json.loads(chunk.app_metadata.to_pybytes())
                at.setdefault(where["topic"], {})[where["origin"]] = where["next"]
                late_ns += (now_ns - due for due in chunk.data.column("due_ns").to_pylist())
            reader.cancel()
    return late_ns


# ---- m4cast over /live: a WebSocket, with rows as JSON, one in each frame


async def send_live(address: str, topic: str, rate: int, seconds: int, acks: int) -> list[int]:
    import aiohttp

    filler = FILLER.hex()[: len(FILLER)]
    late_ns: list[int] = []
    async with aiohttp.ClientSession() as session, session.ws_connect(f"http://{address}/live") as socket:
        due = due_times(rate, seconds)

        async def listen() -> None:
            async for message in socket:
                said = json.loads(message.data)
                assert said["type"] == "acked", said
                if said["id"] == len(due):
                    return

        listening = asyncio.get_running_loop().create_task(listen())
        started_ns = time.time_ns()
        for number, after in enumerate(due, 1):
            due_ns = started_ns + after
            while (left_ns := due_ns - time.time_ns()) > 0:
                await asyncio.sleep(left_ns / 1e9)
            late_ns.append(-left_ns)
            row = f'{{"due_ns":{due_ns},"v":"{filler}"}}'
            await socket.send_str(f'{{"type":"publish","id":{number},"topic":"{topic}","acks":{acks},"rows":[{row}]}}')
            await asyncio.sleep(0)
        await asyncio.wait_for(listening, TIMEOUT_S)
    return late_ns


async def receive_live(address: str, topic: str, rows: int, *, early: bool) -> list[int]:
    import aiohttp

    late_ns: list[int] = []
    async with aiohttp.ClientSession() as session, session.ws_connect(f"http://{address}/live") as socket:
        subscribe = {"type": "subscribe", "id": "s", "topic": topic, "from": "-", "credit": 1 << 20, "early": early}
        await socket.send_str(json.dumps(subscribe))
        async with asyncio.timeout(TIMEOUT_S):
            while len(late_ns) < rows:
                said = await socket.receive_json()
                now_ns = time.time_ns()
                if said["type"] == "subscribed":
                    print("ready", flush=True)
                else:
                    late_ns += (now_ns - row["due_ns"] for row in said["rows"])
    return late_ns


# ---- NATS: core, and JetStream with acknowledgements that are not waited for one by one


async def send_nats(address: str, topic: str, rate: int, seconds: int, *, with_acks: bool) -> list[int]:
    import nats

    client = await nats.connect(f"nats://{address}")
    stream = client.jetstream()
    publish: Callable[[str, bytes], Awaitable[object]] = stream.publish_async if with_acks else client.publish
    late_ns: list[int] = []
    started_ns = time.time_ns()
    for due in due_times(rate, seconds):
        due_ns = started_ns + due
        while (left_ns := due_ns - time.time_ns()) > 0:
            await asyncio.sleep(left_ns / 1e9)
        late_ns.append(-left_ns)
        await publish(topic, due_ns.to_bytes(8, "big") + FILLER)
        # Else the client gathers what it has for as long as it is kept busy.
        await asyncio.sleep(0)
    if with_acks:
        await asyncio.wait_for(stream.publish_async_completed(), TIMEOUT_S)
    await client.flush()
    await client.close()
    return late_ns


async def receive_nats(address: str, topic: str, rows: int, *, from_stream: bool) -> list[int]:
    import nats

    client = await nats.connect(f"nats://{address}", pending_size=64 << 20)
    late_ns: list[int] = []
    done = asyncio.Event()

    async def take(message: Any) -> None:
        late_ns.append(time.time_ns() - int.from_bytes(message.data[:8], "big"))
        if len(late_ns) >= rows:
            done.set()

    if from_stream:
        await client.jetstream().subscribe(topic, cb=take, ordered_consumer=True)
    else:
        await client.subscribe(topic, cb=take)
    await client.flush()
    print("ready", flush=True)
    try:
        await asyncio.wait_for(done.wait(), TIMEOUT_S)
    except TimeoutError:
        print(f"{len(late_ns)} of {rows} rows came", file=sys.stderr)
    await client.close()
    return late_ns


def main(role: str, system: str, address: str, topic: str, rate: int, seconds: int, warm_s: int) -> None:
    rows = rate * seconds
    match role, system:
        case "send", "m4cast":
            late_ns = send_m4cast(address, topic, rate, seconds)
        case "send", "flight":
            late_ns = send_flight(address, topic, rate, seconds)
        case "send", "live" | "live-early":
            late_ns = asyncio.run(send_live(address, topic, rate, seconds, acks=1))
        case "send", _:
            late_ns = asyncio.run(send_nats(address, topic, rate, seconds, with_acks=system == "jetstream"))
        case _, "live" | "live-early":
            late_ns = asyncio.run(receive_live(address, topic, rows, early=system == "live-early"))
        case _, "m4cast" | "flight":
            late_ns = receive_m4cast(address, topic, rows)
        case _:
            late_ns = asyncio.run(receive_nats(address, topic, rows, from_stream=system == "jetstream"))
    assert len(late_ns) == rows, f"{len(late_ns)} of {rows} rows came"
    cuts = quantiles((late / 1e6 for late in late_ns[rate * warm_s :]), n=1_000)
    print(json.dumps({"p50": cuts[499], "p99": cuts[989], "p99.9": cuts[998]}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4], int(sys.argv[5]), int(sys.argv[6]), int(sys.argv[7]))
