"""The services of a node for its clients, whichever transport they use: one object that composes the door's machines.

A transport (`flight`, and others) turns its calls into requests and a `Caller`, and hands them over here: rows by `put`
and `read`, everything else by the table of `actions`. It runs each call inside `answer`, which counts how calls end and
turns every error into a `Refusal`. So rights, quotas, refusals and metrics are the same for all transports.

Calls that change something or inspect the node go to its loop and wait for the answer; reads go to the store.
Whatever a client sends, the node is unharmed (guarantee 8): a mistake of ours is logged and refused as `internal`.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa

from m4cast.overlay.door.access.rights import Caller, Rights
from m4cast.overlay.door.admin.interest import InterestAdmin
from m4cast.overlay.door.admin.keys import PublisherKeys
from m4cast.overlay.door.admin.leases import Readers
from m4cast.overlay.door.admin.leaving import Leaving
from m4cast.overlay.door.admin.topics import TopicAdmin
from m4cast.overlay.door.call_counts import CallCounts
from m4cast.overlay.door.clients.attachments import ClientAdmin
from m4cast.overlay.door.clients.client_wants import is_own_mail
from m4cast.overlay.door.clients.group_shares import SharedFrontiers
from m4cast.overlay.door.clients.mail import SignedMail
from m4cast.overlay.door.fields import Frontier
from m4cast.overlay.door.frontiers import Frontiers
from m4cast.overlay.door.limits import DoorLimits
from m4cast.overlay.door.node_handle import NodeHandle
from m4cast.overlay.door.publish.puts import PutService
from m4cast.overlay.door.quotas import CallQuota, ChunkQuota
from m4cast.overlay.door.read.deliveries import Deliveries
from m4cast.overlay.door.read.explaining import Explaining
from m4cast.overlay.door.read.extents import StreamExtents
from m4cast.overlay.door.read.filtering import FilteredReading
from m4cast.overlay.door.read.live_matching import SharedMatches
from m4cast.overlay.door.read.pacing import Pacing
from m4cast.overlay.door.read.portions import PortionReader
from m4cast.overlay.door.read.reading import Reading, whole_streams
from m4cast.overlay.door.refusals import Refusal, bad_request, internal
from m4cast.overlay.door.requests import Get, GetDeliveries, GetInterest, GetRoster, Put, filter_clock
from m4cast.overlay.door.rows import payload
from m4cast.overlay.door.rows.catalogue import Catalogue
from m4cast.overlay.door.rows.summaries import FilteredColumns, Summaries
from m4cast.overlay.door.selected.begins import Start
from m4cast.overlay.door.selected.costs import FilterCosts
from m4cast.overlay.door.selected.reads import SelectiveReads
from m4cast.overlay.errors import StoreError
from m4cast.overlay.net.driver import Driver
from m4cast.overlay.profiles import Profile
from m4cast.overlay.protocol.clients.state import MAIL
from m4cast.overlay.store.store import Store
from m4cast.schemas.arrow_types import DELIVERIES, INTEREST, ROSTER

T = TypeVar("T")
DELIVERIES_COVER_ALL = "delivery records cover all rows"


@dataclass(frozen=True, slots=True)
class TopicContent:
    """The content of a topic: what a read from `earliest` to `latest` returns now."""

    schema: pa.Schema
    start: Frontier
    end: Frontier
    is_whole: bool
    """True if the caller may read all rows."""

    @property
    def rows(self) -> int:
        """The number of rows; -1 if the caller may not know it."""
        return sum(until - self.start[stream] for stream, until in self.end.items()) if self.is_whole else -1


class Services:
    """Made on the driver's loop. Afterwards any thread may use it."""

    def __init__(self, driver: Driver, store: Store, limits: DoorLimits) -> None:
        self.calls = CallCounts()
        self.store = store
        self.timeout_s = timeout_s = limits.timeout_ms / 1000
        self.node = NodeHandle(driver, asyncio.get_running_loop())
        self.frontiers = Frontiers()
        driver.watchers.append(self.frontiers.watch)
        self.frontiers.advance({stream: until for stream, (_, until) in store.streams().items()})
        self._catalogue = Catalogue(store)
        columns = FilteredColumns()
        summaries = Summaries(store.summarised(), columns)
        self.publishing = PutService(store, self.node, self._catalogue, self.frontiers, summaries, limits)
        chunks = ChunkQuota(limits.chunk_bytes, limits.read_bytes_max)
        self._reading = Reading(store, self._catalogue, self.frontiers, chunks, timeout_s=timeout_s)
        portions = PortionReader(store, chunks)
        pacing = Pacing(self.calls.filter_cpu, self.frontiers)
        self.explaining = Explaining(store, portions, self._catalogue, self.frontiers, pacing)
        self._filtered_reading = FilteredReading(
            portions,
            self._catalogue,
            self.frontiers,
            self._reading,
            pacing,
            columns,
        )
        self.open_calls = CallQuota(limits.calls_max)
        self.open_actions = CallQuota(limits.calls_max)
        self._deliveries = Deliveries(store, self.node, self.frontiers, timeout_s)
        self.extents = StreamExtents(store, self.frontiers)
        selective = SelectiveReads(self.node, self.frontiers, summaries, store, timeout_s)
        tables = self._filtered_reading.tables
        self.topics = TopicAdmin(store, self.node, self._catalogue, summaries, tables, selective)
        self.keys = PublisherKeys(store, self.node, timeout_s)
        costs = FilterCosts(self.node, portions, self._catalogue, pacing, timeout_s)
        self.interest = InterestAdmin(self.node, self.frontiers.topics, costs, timeout_s)
        self.interest.selected = selective.watch  # not a watcher of its own: rows of broadcast topics pay for none
        driver.watchers.append(self.interest.watch)
        self.readers = Readers(store, self.node, timeout_s)
        self.clients = ClientAdmin(store, self.node, self.frontiers, selective)
        driver.watchers.append(self.clients.watch)
        self.leaving = Leaving(self.node, timeout_s, store.delivery_range)

    @property
    def filtered_columns(self) -> FilteredColumns:
        return self._filtered_reading.columns

    @property
    def channel(self) -> str:
        return self.node.channel_name

    def close(self) -> None:
        """End every wait. Calls in progress are refused as `stopping`."""
        self.frontiers.close()
        self.publishing.close()
        self.clients.close()

    async def ended(self) -> None:
        """Wait for the threads that work for clients, after `close`: what they do needs the loop."""
        await asyncio.to_thread(self.clients.ended)
        await asyncio.to_thread(self.topics.compaction.close, self.timeout_s)

    def answer(self, call: str, function: Callable[[], T], lost: type[Exception]) -> T:
        """The function's result. An error ends the call and is counted here; the caller counts a good end. `lost` is
        what the transport raises when its client has disconnected: it passes through."""
        try:
            return function()
        except StopIteration:
            raise
        except lost:
            self.calls.ended(call, "cancelled")
            raise
        except Refusal as error:
            refusal = error
            if refusal.code == "forbidden":
                self.node.count_refusal(refusal)
        except StoreError as error:
            refusal = Refusal("store", str(error))
        except MemoryError as error:  # Arrow's own among them
            refusal = internal(error)
        except pa.ArrowException as error:  # the client's own stream: stored payload is refused where it is read
            refusal = bad_request(f"the Arrow stream cannot be read: {error}")
        except Exception as error:
            refusal = internal(error)
        self.calls.ended(call, refusal.code)
        raise refusal

    def parsed(self, work: Callable[[], T], caller: Caller) -> T:
        """The result of the work. If it parses filters, refused ones included, the caller pays for that."""
        before_s = filter_clock.parsing_s
        try:
            return work()
        finally:
            if filter_clock.parsing_s > before_s:
                self._filtered_reading.pacing.pay(caller, filter_clock.parsing_s - before_s)

    # ---- rows

    def put(self, put: Put, reader: Any, writer: Any, caller: Caller) -> None:
        """`reader` has a `schema`, and `read_chunk()` returns an object whose `data` is the next record batch and
        raises `StopIteration` at the end. `writer.write(bytes)` sends the client an acknowledgement."""
        if put.restore is None and put.topic == MAIL and not caller.rights.may("publish", MAIL):
            caller.rights.require("client")
            reader = SignedMail(reader, caller.rights)
        elif put.restore is None:
            caller.rights.require_topics("publish", (put.topic,))
        with self.open_calls.admitted(caller.name):
            self.publishing.put(put, reader, writer, caller)

    def read(
        self, get: Get | GetDeliveries | GetRoster | GetInterest, caller: Caller
    ) -> tuple[pa.Schema, Iterator[Any]]:
        """The schema, and record batches with their metadata. The transport counts the call in `open_calls`: it lasts
        until nobody takes record batches any more."""
        match get:
            case GetDeliveries():
                caller.rights.require_all("read")
                caller.rights.require_no_filter(DELIVERIES_COVER_ALL)
                return DELIVERIES, self._deliveries.read(get, caller.is_cancelled)
            case GetRoster():
                return ROSTER, self._deliveries.roster()
            case GetInterest():
                return INTEREST, self._deliveries.interest(get, caller.rights.may_see)
            case Get():
                self._require_topics(get, caller)
                whose = {} if get.form == "rows" else {"node_id": self.node_id(), "channel": self.channel}
                if get.wanted is not None:
                    return self._read_wanted(get, get.wanted, caller)
                selective = self.topics.selective
                if selective.topics and selective.among(get.topics) and not selective.is_own(get):
                    return self._read_selected(get, caller, whose)
                if get.profile is not None or get.is_table or caller.rights.where:
                    return self._read_filtered(get, caller, whose)
                return self._reading.read(get, caller.is_cancelled, whose)

    def _require_topics(self, get: Get, caller: Caller) -> None:
        """Refuse what the caller may not read. A client may read its own mail, if it is connected."""
        own = _own_topics(get)
        caller.rights.require_topics("read", tuple(topic for topic in get.topics if topic not in own))

    def _read_filtered(self, get: Get, caller: Caller, whose: Mapping[str, str]) -> tuple[pa.Schema, Iterator[Any]]:
        if get.form == "raw":
            caller.rights.require_whole(get.topics, "a raw batch has all rows")
        profiles = caller.rights.filters(get.topics, get.profile)
        if not profiles and not get.is_table:
            return self._reading.read(get, caller.is_cancelled, whose)
        return self._filtered_reading.read(get, profiles, caller, whose)

    def _read_selected(self, get: Get, caller: Caller, whose: Mapping[str, str]) -> tuple[pa.Schema, Iterator[Any]]:
        """Read selective topics, up to where a registration that covers the read is covered itself."""
        selective = self.topics.selective
        profiles = caller.rights.filters(get.topics, get.profile) or {}
        view = selective.view(get.topics, profiles, caller, get.start)
        get = selective.positioned(get, self.store.lows)
        reading = self._reading.under(view)
        if not profiles and not get.is_table:
            return reading.read(get, caller.is_cancelled, whose)
        if get.form == "raw":
            caller.rights.require_whole(get.topics, "a raw batch has all rows")
        return self._filtered_reading.under(view, reading).read(get, profiles, caller, whose)

    def _read_wanted(self, get: Get, wanted: Mapping[str, Profile], caller: Caller) -> tuple[pa.Schema, Iterator[Any]]:
        """The rows that a caller may see, filtered. A client's read ends when its connection does."""
        profiles: dict[str, Profile] = {topic: wanted[topic] for topic in _own_topics(get)}
        for topic in get.topics:
            if topic not in profiles:
                profiles |= caller.rights.filters((topic,), wanted[topic])
        if get.attached is not None:
            caller = self.clients.watched(caller, get.attached)
        reading = self._filtered_reading
        selective, seen = self.topics.selective, self.frontiers
        if chosen := selective.chosen(get.topics):
            seen = selective.view(chosen, profiles, caller, "earliest")
            get = selective.sparse(get, chosen, self.store.lows)
        owns = None if get.attached is None else self.clients.shared(get.attached)
        if owns is not None:
            seen = SharedFrontiers(seen, owns)
        if seen is not self.frontiers:
            reading = reading.under(seen, self._reading.under(seen))
        schema, pieces = reading.read(get, profiles, caller, {})
        return schema, pieces if get.attached is None else self.clients.until_over(get.attached, pieces)

    def content(self, topic: str, rights: Rights) -> TopicContent:
        rights.require_topics("read", (topic,))
        spans = self._reading.plan(Get(topics=(topic,), start="earliest", end="latest"))
        known = spans or whole_streams(self.frontiers, (topic,))
        return TopicContent(
            schema=payload.seen_schema(self._catalogue.merged(known)),
            start={span.stream: span.first for span in spans},
            end={span.stream: span.next for span in spans},
            is_whole=rights.filter_of(topic) is None,
        )

    # ---- what several actions need

    def seen_by(self, topics: tuple[str, ...], profile: Profile | None, caller: Caller, start: Start) -> Frontiers:
        """The frontiers that a reader sees that starts there: of selective topics, up to where its rows are here."""
        selective = self.topics.selective
        if not selective.topics or not topics or not selective.among(topics):
            return self.frontiers
        return selective.view(topics, caller.rights.filters(topics, profile) or {}, caller, start)

    def shared_matches(self, get: Get, caller: Caller, seen: Frontiers, ring: Callable[[], None]) -> SharedMatches:
        """The matching of new rows that a tail with a filter shares with those of all transports, once it is level with
        its topics. `ring` is called from any thread when rows were matched. The caller closes it."""
        return self._filtered_reading.shared(caller.rights.filters(get.topics, get.profile), seen, ring)

    def readable(self, topics: tuple[str, ...] | None, rights: Rights) -> tuple[str, ...]:
        """The requested topics, refused if one may not be read; None: all known topics that may be read."""
        if topics is None:
            return tuple(topic for topic in self.frontiers.topics() if rights.may("read", topic))
        rights.require_topics("read", topics)
        return topics

    def require_staged(self, stage_ids: tuple[str, ...], rights: Rights) -> None:
        """Refuse unless the caller may publish under every topic that is staged under these ids."""
        if not rights.may_all("publish"):
            staged = self.node.look(lambda node: node.publishing.commits.staged_topics(stage_ids), self.timeout_s)
            rights.require_topics("publish", staged)

    def node_id(self) -> str:
        return self.node.look(lambda node: node.me.node_id, self.timeout_s).hex()


def _own_topics(get: Get) -> tuple[str, ...]:
    """The topics of which a client asks for what is its own, whatever its token may read: its mail, and nothing else
    of that topic. That the client is connected is checked when it reads."""
    if get.wanted is None or get.attached is None or MAIL not in get.wanted:
        return ()
    return (MAIL,) if is_own_mail(get.wanted[MAIL], get.attached.key) else ()
