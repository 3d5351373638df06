"""The commit primitive: turns client requests into numbered batches, exactly once.

Payloads are staged first, each under an id of its own, and numbered by one commit, which also moves publisher keys
by compare-and-set. Batches, keys and consumed stage ids go to the store in one `Append`, so a commit happens whole
or not at all. A client that missed the answer repeats the request with the same keys: a key that is already at `next`
answers with the ranges of the first commit, and nothing is written again.

The machine keeps two ledgers. `durable` is what the store holds for certain; `view` is that plus every append still
under way. Requests are checked and numbered against the view, so that many commits share one sync (refusals refer to
the view as well); results are reported only when they are durable. When an append fails, the view is rebuilt from the
durable ledger: the numbers that were assigned meanwhile have never left the node and are assigned again.

A stage is answered when it is durable. From then on only its size and checksum are in memory: a commit may be larger
than that, and numbers what was staged without reading it.

Guarantees (`docs/PROTOCOL.md`, the commit primitive)
3. Nothing is answered, and no batch leaves the node, before its append is durable: `Committed` reports both.
5. A keyed commit enters the log once and whole, whatever is repeated, reordered or cut short by a crash.
7. Staged and unsynced payload, waiting requests, topics and keys are limited; what exceeds a limit is refused by name.
   Topics and keys are limited for each client, too: `owner` is opaque text that the door gives with a request.

Refusals change nothing. The machine's limits (unkeyed commits, expiring keys, topics, rollbacks, clocks) are listed in
`docs/PROTOCOL.md`, section 10.

Cost: per batch one seal and a few dictionary updates (30 us in a commit of 50, 80 us alone with a key, on a busy
core); payloads are passed on, never copied. A failure costs a copy of the ledger.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

from m4cast.overlay.ids import StreamId
from m4cast.overlay.protocol.effects import (
    Abort,
    Append,
    AppendBatch,
    Commit,
    Disown,
    DropStaged,
    FormerPartRecord,
    InsertBatch,
    KeyMove,
    KeyRemoved,
    Publish,
    PublisherRecord,
    PublisherState,
    Range,
    Recovered,
    Refused,
    RemoveKey,
    SetOwner,
    SpreadRecord,
    Stage,
    Staged,
    StageDone,
    StagePayload,
    UpTimeRecord,
    Write,
)
from m4cast.overlay.protocol.publishing.commit_limits import CommitLimits
from m4cast.overlay.protocol.publishing.former_commits import FormerCommits, Recovery, joined, rows_of
from m4cast.overlay.protocol.publishing.keys import Expiry
from m4cast.overlay.protocol.publishing.ledger import NEW_STREAM, StreamTail, kept, ledger_of, own_delivery, tail_after
from m4cast.overlay.protocol.wire.batch import Batch, Extension
from m4cast.overlay.value import value


@value
class Answer:
    """The answer to a request, sent as `Published` once `acks` other nodes have `ranges` on disk."""

    request: int
    acks: int
    ranges: tuple[Range, ...]


@value
class Committed:
    """Durable here. The batches may leave the node now; the answers wait only for other nodes.

    There are no batches for a repeat of a finished commit.
    """

    batches: tuple[AppendBatch, ...]
    answers: tuple[Answer, ...]


Outcome = Append | StageDone | KeyRemoved | Refused | Committed


@dataclass(slots=True)
class _Pending:
    """An append under way, and who waits for it."""

    append: Append
    answers: list[Answer]
    done: list[StageDone | KeyRemoved] = field(default_factory=list)

    def requests(self) -> list[int]:
        return [done.request for done in self.done] + [answer.request for answer in self.answers]


class CommitMachine:
    """Numbers the batches of one node and moves its publishers' keys.

    Its owner performs the outcomes in order; passes appends of received batches through `recover` before they go
    out; and tells it of *every* append of the node, whosever it is, that is `durable` or `failed` - of a failure
    before anyone asks for a new append. Tokens from `next_token` rise in the order in which appends are asked for.
    """

    def __init__(
        self,
        recovered: Recovered,
        limits: CommitLimits,
        *,
        seal: Callable[[Batch, int | None], Batch],
        next_token: Callable[[], int],
    ) -> None:
        self._node_id = recovered.node_id
        self._incarnation = recovered.incarnation
        self._limits = limits
        self._seal = seal
        self._next_token = next_token
        self._durable = ledger_of(recovered)
        self._view = self._durable.ahead()
        self._outstanding: dict[int, _Pending] = {}
        self._waiting = 0
        self._unsynced_bytes = 0
        self._failed_through = -1
        self._staged_at_ms: dict[str, int] = {}
        self._former = FormerCommits(recovered, limits.recovering_max)
        keys = self._durable.publishers
        self.spreads: dict[str, Extension] = {}
        """Topics whose own streams are selective, or will be: what their batches carry."""
        self._expiry = Expiry(
            keys, recovered.of(UpTimeRecord).get("", 0), limits.publisher_expire_ms, limits.sweep_keys
        )

    # ---- requests

    def stage(self, request: Stage, now_ms: int) -> list[Outcome]:
        """Keep a payload until a commit names it. The same id with the same content is the same stage."""
        if refused := self._limits.refuse_stage(request, self.spreads):
            return [refused]
        stage_id, staged = request.stage_id, request.staged
        present = self._view.staged.get(stage_id)
        if present is None and (refused := self._refuse_more_staged(request)):
            return [refused]
        if present is not None and present != kept(staged):
            detail = f"stage id {stage_id!r} is taken by another payload: use a new id for each attempt"
            return [Refused(request.request, "stage-conflict", detail)]
        self._staged_at_ms[stage_id] = now_ms
        done = StageDone(request.request)
        if present is None:
            append = self._write(Append(self._next_token(), (StagePayload(stage_id, staged),)))
            self._outstanding[append.token].done.append(done)
            return [append]
        for pending in self._outstanding.values():
            if any(stage_id == write.stage_id for write in pending.append.of(StagePayload)):
                pending.done.append(done)
                return []
        return [done]

    def staged(self, stage_ids: Iterable[str]) -> Iterator[Staged]:
        """The payloads of those ids that are staged."""
        known = (self._view.staged.get(stage_id) for stage_id in stage_ids)
        return (staged for staged in known if staged is not None)

    def staged_topics(self, stage_ids: Iterable[str]) -> tuple[str, ...]:
        """The topics of those ids that are staged, each once."""
        return tuple(dict.fromkeys(staged.topic for staged in self.staged(stage_ids)))

    def position(self, key: str) -> PublisherState | None:
        """The durable position of a key. Asking for it counts as using it."""
        state = self._durable.publishers.get(key)
        if state is not None:
            self._expiry.use((key,))
        return state

    def key_count(self) -> int:
        return len(self._durable.publishers.states)

    def keys_bytes(self) -> int:
        """Memory of the publisher keys, as the limits count it."""
        return self._view.publishers.size_bytes

    def has_stream(self, stream: StreamId) -> bool:
        return stream in self._view.tails

    def topic_count(self) -> int:
        """Own topics."""
        return len(self._view.tails)

    def commit(self, request: Commit, now_ms: int) -> list[Outcome]:
        """Number what was staged, in the given order, and move the keys; or refuse and consume nothing."""
        if refused := self._limits.refuse_commit(request):
            return [refused]
        if self._arrived(request.moves):
            return self._repeat(request, request.stage_ids)
        if refused := self._refuse_moves(request) or self._refuse_missing(request):
            return [refused]
        payloads = tuple(self._view.staged[stage_id] for stage_id in request.stage_ids)
        return self._number(request, payloads, request.stage_ids, now_ms)

    def publish(self, request: Publish, now_ms: int) -> list[Outcome]:
        """Stage and commit in one step: the payloads go to the log without passing through the stage."""
        if refused := self._limits.refuse_commit(request):
            return [refused]
        for staged in request.payloads:
            if refused := self._limits.refuse_payload(request, staged, self.spreads):
                return [refused]
        if self._arrived(request.moves):
            return self._repeat(request, ())
        payload_bytes = sum(len(staged.payload) for staged in request.payloads)
        if refused := self._refuse_moves(request) or self._limits.refuse_bytes(
            request, payload_bytes, self._unsynced_bytes
        ):
            return [refused]
        return self._number(request, request.payloads, (), now_ms)

    def abort(self, request: Abort) -> list[Outcome]:
        """Forget the listed payloads, except those that a commit has taken, durable yet or not."""
        return self._release(request.stage_ids)

    def remove_key(self, request: RemoveKey) -> list[Outcome]:
        """Forget a publisher key: what it numbered stays, and its next move is that of a new key."""
        if self._is_moving(request.key):
            detail = f"a commit of key {request.key!r} is on its way to the disk: try again when it is answered"
            return [Refused(request.request, "busy", detail)]
        state = self._view.publishers.get(request.key)
        if state is None:
            return [KeyRemoved(request.request, None)]
        if request.owner is not None and request.owner != state.owner:
            creator = f"client {state.owner!r}" if state.owner else "a client that is not known"
            detail = f"key {request.key!r} was created by {creator}, not by {request.owner!r}: ask an administrator"
            return [Refused(request.request, "forbidden", detail)]
        self._expiry.forget(request.key)
        append = self._write(Append(self._next_token(), (PublisherRecord(request.key, None),)))
        self._outstanding[append.token].done.append(KeyRemoved(request.request, state.position))
        return [append]

    def disown(self, request: Disown) -> list[Outcome]:
        """The topic counts towards its client's share no longer. It stays one of the node's topics."""
        stream = StreamId(self._node_id, request.topic)
        if stream not in self._view.owners:
            return []
        return [self._write(Append(self._next_token(), (SetOwner(stream, ""),)))]

    def forget(self, request: int) -> None:
        """The request is on its way to the disk and its client is gone: it need not wait for other nodes."""
        for pending in self._outstanding.values():
            pending.answers = [
                replace(answer, acks=0) if answer.request == request else answer for answer in pending.answers
            ]

    def expire(self, now_ms: int) -> list[Outcome]:
        """Forget payloads whose commit never came. What a restart found counts from the first call after it."""
        self._staged_at_ms = {stage_id: self._staged_at_ms.get(stage_id, now_ms) for stage_id in self._view.staged}
        old_ms = now_ms - self._limits.stage_expire_ms
        return self._release(stage_id for stage_id, at_ms in self._staged_at_ms.items() if at_ms <= old_ms)

    def sweep_keys(self, now_ms: int) -> tuple[list[Outcome], bool]:
        """One step through the publisher keys: those that were not used for too long are removed, for those that were
        asked for it is written down. Also says whether there are more to look at; then it has to be called again."""
        if not self._durable.publishers.states:
            return [], False
        step = self._expiry.sweep(now_ms, self._is_moving)
        if not (step.used or step.unused or step.is_last):
            return [], True
        writes = (
            *(PublisherRecord(key, None) for key in step.unused),
            *(PublisherRecord(key, state) for key, state in step.used),
            *((UpTimeRecord("", step.up_ms),) if step.up_ms else ()),
        )
        return [self._write(Append(self._next_token(), writes))], not step.is_last

    def up_ms(self, now_ms: int) -> int:
        """The time for which nodes have run on this store; keys expire by it."""
        return self._expiry.up_ms(now_ms)

    # ---- the store's word

    def durable(self, token: int) -> list[Outcome]:
        pending = self._outstanding.get(token)
        if pending is None:
            return []
        assert next(iter(self._outstanding)) == token, "appends become durable in order"
        del self._outstanding[token]
        self._durable.apply(pending.append)
        batches: list[AppendBatch] = []
        moves_keys = False
        for write in pending.append.writes:
            if isinstance(write, AppendBatch):
                batches.append(write)
            elif isinstance(write, PublisherRecord):
                moves_keys = True
        if moves_keys:
            self._view.settle(pending.append)
        self._waiting -= len(pending.answers)
        self._unsynced_bytes -= pending.append.payload_bytes()
        if not pending.answers:
            return list(pending.done)
        return [Committed(tuple(batches), tuple(pending.answers))]

    def failed(self, token: int, reason: str) -> list[Outcome]:
        """An append failed, and with it every append that was asked for after it, up to now.

        All of them are undone by the first report, since the next request is numbered from what is left. A token
        drawn here marks "now": reports of older ones are echoes of the same failure.
        """
        if token <= self._failed_through:
            return []
        self._failed_through = self._next_token()
        lost = [pending for at, pending in self._outstanding.items() if at >= token]
        self._outstanding = {at: pending for at, pending in self._outstanding.items() if at < token}
        self._waiting = sum(len(pending.answers) for pending in self._outstanding.values())
        self._unsynced_bytes = sum(pending.append.payload_bytes() for pending in self._outstanding.values())
        self._view = self._durable.ahead()
        for pending in self._outstanding.values():
            self._view.apply(pending.append)
        detail = f"the store failed ({reason}) and kept nothing of this request: try again"
        return [Refused(request, "store", detail) for pending in lost for request in pending.requests()]

    # ---- after a rollback

    def recover(self, append: Append) -> Append:
        """Add to an append of received batches the keys that their commits have moved (`former_commits.py`)."""
        recovery = None
        for write in append.writes:
            if isinstance(write, AppendBatch | InsertBatch):
                batch = write.batch
                if batch.publisher and self._former.is_former(batch.stream.origin):
                    recovery = recovery or Recovery()
                    self._former.collect(batch, recovery, self._view.publishers.get)
        if recovery is None:
            return append
        moved = tuple(PublisherRecord(key, state) for key, state in recovery.states.items())
        if moved:
            self._write(Append(append.token, moved))
        parts = (FormerPartRecord((part.origin, part.first_batch, part.part), part) for part in recovery.parts)
        done = (FormerPartRecord(key, None) for key in recovery.done)
        return Append(append.token, (*append.writes, *moved, *parts, *done))

    # ---- reasons to refuse that lie in the state of the node

    def _refuse_moves(self, request: Commit | Publish) -> Refused | None:
        positions = [self._position(move.key) for move in request.moves]
        for move, actual in zip(request.moves, positions, strict=True):
            if actual not in (move.expect, move.next):
                detail = (
                    f"key {move.key!r}: expected {_shown(move.expect)}, actual {_shown(actual)}, next {move.next!r}; "
                    f"{self._limits.cure_of(actual)}"
                )
                return Refused(request.request, "wrong-position", detail)
        if done := [move.key for move, actual in zip(request.moves, positions, strict=True) if actual == move.next]:
            detail = f"keys {done[:3]!r} are at their next position already, others are not: commit them apart"
            return Refused(request.request, "partly-moved", detail)
        return self._limits.refuse_waiting(request, self._waiting)

    def _refuse_keys(self, request: Commit | Publish, streams: list[StreamId]) -> Refused | None:
        topics = [stream.topic for stream in dict.fromkeys(streams)]
        excess = self._view.publishers.excess(
            request.moves,
            topics,
            request.owner,
            bytes_max=self._limits.publisher_bytes_max,
            client_bytes_max=self._limits.client_publisher_bytes_max,
        )
        return None if excess is None else Refused(request.request, "too-many", excess)

    def _refuse_missing(self, request: Commit) -> Refused | None:
        missing = [stage_id for stage_id in request.stage_ids if stage_id not in self._view.staged]
        if not missing:
            return None
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        detail = f"stage ids {missing[:3]!r}{more} are not staged (any more): stage them again, then commit"
        return Refused(request.request, "missing-stage", detail)

    def _refuse_more_staged(self, request: Stage) -> Refused | None:
        staged = self._view.staged
        return self._limits.refuse_more_staged(
            request, len(staged), self._view.staged_bytes
        ) or self._limits.refuse_bytes(request, len(request.staged.payload), self._unsynced_bytes)

    def _refuse_topics(self, request: Commit | Publish, new: int) -> Refused | None:
        own = sum(each == request.owner for each in self._view.owners.values())
        return self._limits.refuse_topics(request, new, topics=len(self._view.tails), own_topics=own)

    # ---- doing it

    def _position(self, key: str) -> str | None:
        state = self._view.publishers.get(key)
        return None if state is None else state.position

    def _is_moving(self, key: str) -> bool:
        """An append under way changes the key."""
        return key in self._view.publishers.states

    def _arrived(self, moves: tuple[KeyMove, ...]) -> bool:
        return bool(moves) and all(self._position(move.key) == move.next for move in moves)

    def _repeat(self, request: Commit | Publish, stage_ids: tuple[str, ...]) -> list[Outcome]:
        """Answer with the first result, once that is durable; what was staged for this attempt is not needed."""
        keys = [move.key for move in request.moves]
        self._expiry.use(keys)
        ranges = tuple(dict.fromkeys(rows for key in keys for rows in self._view.publishers[key].ranges))
        answer = Answer(request.request, request.acks, ranges)
        movers = [
            pending
            for pending in self._outstanding.values()
            if any(record.key in keys and record.content for record in pending.append.of(PublisherRecord))
        ]
        if not movers:
            return [*self._release(stage_ids), Committed((), (answer,))]
        if refused := self._limits.refuse_waiting(request, self._waiting):
            return [refused]
        movers[-1].answers.append(answer)
        self._waiting += 1
        return self._release(stage_ids)

    def _number(
        self, request: Commit | Publish, payloads: tuple[Staged, ...], stage_ids: tuple[str, ...], now_ms: int
    ) -> list[Outcome]:
        streams = [StreamId(self._node_id, staged.topic) for staged in payloads]
        new = dict.fromkeys(stream for stream in streams if stream not in self._view.tails)
        if new and (refused := self._refuse_topics(request, len(new))):
            return [refused]
        if request.moves and (refused := self._refuse_keys(request, streams)):
            return [refused]
        batches: list[Batch] = []
        tails: dict[StreamId, StreamTail] = {}
        for part, (stream, staged) in enumerate(zip(streams, payloads, strict=True)):
            tail = tails.get(stream) or self._view.tails.get(stream, NEW_STREAM)
            move = request.moves[part % len(request.moves)] if request.moves else None
            batch = Batch(
                stream=stream,
                incarnation=self._incarnation,
                first_sequence=tail.next_sequence,
                row_count=staged.row_count,
                origin_batch=self._view.origin_batch + part + 1,
                schema_id=staged.schema_id,
                published_at_ms=max(now_ms, tail.published_at_ms),
                publisher=move.key if move else "",
                position=move.next if move else "",
                part=part,
                parts=len(payloads),
                previous_checksum=tail.checksum,
                payload=staged.payload,
                extensions=staged.extensions,
            )
            if self.spreads and (spread := self.spreads.get(staged.topic)):
                batch = replace(batch, extensions=(*staged.extensions, spread))
            batches.append(self._seal(batch, staged.checksum))
            tails[stream] = tail_after(batches[-1])
        ranges = joined(rows_of(batch) for batch in batches)
        origin_batch = self._view.origin_batch + len(batches)
        keys = self._view.publishers
        up_ms = self.up_ms(now_ms) if request.moves else 0
        sources = stage_ids or (None,) * len(batches)
        writes: list[Write] = [
            AppendBatch(batch, own_delivery(batch, now_ms), stage_id)
            for batch, stage_id in zip(batches, sources, strict=True)
        ]
        for stream in new:
            writes.append(SetOwner(stream, request.owner))
            if self.spreads and (spread := self.spreads.get(stream.topic)):
                writes.append(SpreadRecord(stream.topic, spread.value[1]))
        for move in request.moves:
            state = PublisherState(
                position=move.next,
                ranges=ranges,
                origin=self._node_id,
                origin_batch=origin_batch,
                owner=keys.owner_of(move.key, request.owner),
                used_ms=up_ms,
            )
            writes.append(PublisherRecord(move.key, state))
        append = Append(self._next_token(), tuple(writes))
        return [self._write(append, Answer(request.request, request.acks, ranges))]

    def _release(self, stage_ids: Iterable[str]) -> list[Outcome]:
        present = [stage_id for stage_id in dict.fromkeys(stage_ids) if stage_id in self._view.staged]
        if not present:
            return []
        return [self._write(Append(self._next_token(), tuple([DropStaged(stage_id) for stage_id in present])))]

    def _write(self, append: Append, *answers: Answer) -> Append:
        assert append.token > max(self._failed_through, next(reversed(self._outstanding), -1)), "tokens rise"
        pending = _Pending(append, list(answers))
        self._outstanding[append.token] = pending
        self._waiting += len(answers)
        self._unsynced_bytes += pending.append.payload_bytes()
        self._view.apply(append)
        return append


def _shown(position: str | None) -> str:
    return "none (a new key)" if position is None else repr(position)
