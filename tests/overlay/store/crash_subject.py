"""A process that appends without end and says what is durable, to be killed: `python -m ... FOLDER SEED`.

`life` gives the same appends for the same node id and seed, so that whoever looks at the store afterwards can tell
which of them it holds: append number n moves the key "at" to position n.
"""

import os
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from random import Random

from m4cast.overlay.ids import NodeId, StreamId
from m4cast.overlay.protocol.effects import Append, PublisherRecord, PublisherState, Range, Staged
from m4cast.overlay.protocol.publishing.ledger import kept
from m4cast.overlay.protocol.wire.batch import Batch, Payload, Skip, SkipReason, StoredPayload
from m4cast.overlay.protocol.wire.frame import seal
from m4cast.overlay.store.store import Callbacks, ChannelName, Store, StoreLimits
from tests.overlay.protocol.append_parts import append_of, with_writes
from tests.overlay.protocol.stream_parts import chain, node_id, stream_id
from tests.overlay.store.store_parts import received

WAITING_MAX = 200
SIZES = (10, 1_000, 20_000, 50_000)


def life(me: NodeId, seed: int) -> Iterator[Append]:
    random = Random(seed)
    last: dict[StreamId, Batch] = {}
    skipped = stream_id("skipped")
    skipped_next = 1
    waiting: list[tuple[str, Staged]] = []
    token = 0
    while True:
        token += 1
        match random.randrange(6):
            case 0:
                staged = Staged("staged", 1, 1, random.randbytes(random.choice(SIZES)))
                waiting.append((f"s{token}", staged))
                append = append_of(token, stage=(waiting[-1],))
            case 1 if waiting:
                ids = tuple(stage_id for stage_id, _ in waiting)
                batches = []
                for _, staged in waiting:
                    stream = StreamId(me, "staged")
                    batches.append(_next(last, stream, kept(staged).payload))
                append = received(token, *batches, unstage=ids)
                waiting = []
            case 2:
                append = append_of(token, skips=(Skip(skipped, skipped_next, skipped_next + 1, SkipReason.LOST, me),))
                skipped_next += 2
            case _:
                streams = [StreamId(me, "t"), stream_id("o", "t"), stream_id("o", "u")]
                chosen = [random.choice(streams) for _ in range(random.randrange(1, 4))]
                append = received(token, *(_next(last, s, random.randbytes(random.choice(SIZES))) for s in chosen))
        state = PublisherState(str(token), (Range(stream_id("o", "t"), 1, 2),), node_id("me"), token)
        yield with_writes(append, after=(PublisherRecord("at", state),))


def _next(last: dict[StreamId, Batch], stream: StreamId, payload: Payload | StoredPayload) -> Batch:
    [batch] = chain(1, stream=stream, size=0, after=last.get(stream))
    last[stream] = seal(replace(batch, payload=payload, checksum=0))
    return last[stream]


def main(folder: str, seed: int) -> None:
    room = threading.Semaphore(WAITING_MAX)
    covered = 0

    def on_durable(token: int) -> None:
        nonlocal covered
        os.write(1, b"%d\n" % token)
        room.release(token - covered)
        covered = token

    def stop(*_: object) -> None:
        os._exit(3)

    callbacks = Callbacks(on_durable, stop, stop)
    store = Store.open(folder, ChannelName("m4cast", "test"), callbacks, limits=StoreLimits(map_bytes=1 << 30))
    for append in life(store.recovered.node_id, seed):
        room.acquire()
        store.append(append)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
