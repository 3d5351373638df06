"""`m4cast node`: run one or several nodes until they are asked to leave.

On SIGTERM or Ctrl-C a node leaves gracefully: it hands over its own rows, notifies its neighbours and exits with 0. A
second signal stops it at once. The log goes to stderr, one line per event, as text or as JSON.

Nodes in one process share only its event loop and its core: each has its own settings, store, links and doors, and may
be on a channel of its own. When one ends, the others continue; the process ends with the last one.
"""

import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import Sequence
from contextvars import Context, copy_context
from dataclasses import dataclass, replace
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click
import pyarrow as pa

from m4cast.console.errors import EXIT_CODE_FAILED
from m4cast.console.log_format import LogFormat, current_node, log_to_stderr
from m4cast.console.options import command, log_options
from m4cast.overlay import heap
from m4cast.overlay.config import ClusterConfig, NodeConfig
from m4cast.overlay.config.federation import FederationConfig
from m4cast.overlay.config.files import load_cluster, load_federation, load_node
from m4cast.overlay.door.access.tokens import Tokens
from m4cast.overlay.door.call_counts import CallCounts
from m4cast.overlay.door.flight import FlightDoor
from m4cast.overlay.door.http.metrics import NodeCollector
from m4cast.overlay.door.http.monitoring import HttpDoor, HttpLimits
from m4cast.overlay.door.limits import DoorLimits
from m4cast.overlay.door.node_handle import NodeHandle
from m4cast.overlay.door.services import Services
from m4cast.overlay.door.web.door import WebDoor
from m4cast.overlay.errors import M4castError
from m4cast.overlay.net.driver import Driver, Shown
from m4cast.overlay.net.store_side import StoreSide
from m4cast.overlay.net.tls import check_protected
from m4cast.overlay.protocol.clients.unit_levels import GATE_PREFIXES
from m4cast.overlay.protocol.effects import RosterChanged, Trace, Unsubscribe
from m4cast.overlay.store.folder import ChannelName
from m4cast.overlay.store.retention import Retention
from m4cast.overlay.store.store import Store, StoreLimits
from m4cast.overlay.store.tables.topics import Keep
from m4cast.overlay.store.writer import Callbacks

if TYPE_CHECKING:
    from m4cast.overlay.net.gateways.gatekeeper import Gatekeeper

log = logging.getLogger("m4cast.node")

TRIM_INTERVAL_S = 2
"""Interval at which retention is applied to the store."""
ROOM_INTERVAL_S = 1
"""Interval at which the free space of the store is measured."""
GARBAGE_OBJECTS = 10_000
"""The number of new objects after which Python searches for unused cycles. Parsed rows are many objects without cycles:
with Python's default of 700, the search took 6 % of the CPU of a node that receives small batches of JSON (measured).
Higher: cycles, which are few, keep their memory for longer."""
SWITCH_S = 0.001
"""Time that a thread may hold the interpreter while others wait. The threads of the door and of the disk wait for
the thread of the loop, and a row passes through several of them. Python's default is 5 ms. Guess."""


@command()
@click.option(
    "--conf",
    "confs",
    required=True,
    multiple=True,
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="TOML file with the tables [cluster] and [node]; the examples in conf/ show every setting.",
)
@click.option(
    "--dir",
    "folders",
    required=True,
    multiple=True,
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Folder of the node's store, used by one node at a time. Created if it does not exist.",
)
@click.option(
    "--trust-store",
    is_flag=True,
    help="Accept publishes even if no node that knew this one can be reached. Only safe if the store is not a restored "
    "older copy.",
)
@log_options("Log every event of the protocol.")
def node(
    confs: tuple[Path, ...], folders: tuple[Path, ...], trust_store: bool, verbose: bool, log_format: LogFormat
) -> None:
    """Run a node of a channel until SIGTERM or Ctrl-C.

    The node finds the channel through its portals (or founds it, if it is a portal and no other portal answers),
    connects to its neighbours, and stores every row of the broadcast topics, and of selective topics the rows that are
    wanted there.

    Clients publish and read through its door, with `m4cast publish`, `m4cast tail`, the Python client m4cast.Channel,
    or any Arrow Flight client; with the setting `web` also by HTTP and WebSocket. Links and doors use the node's
    certificates (see docs/SECURITY.md); without certificates the node starts only with insecure = true.

    With several --conf and as many --dir, in the same order, one process runs several nodes, of the same channel or of
    different ones.
    """
    if len(confs) != len(folders):
        raise click.UsageError(f"{len(confs)} --conf and {len(folders)} --dir: give one of each per node")
    nodes = [
        OneNode(load_cluster(conf), load_node(conf), folder, load_federation(conf))
        for conf, folder in zip(confs, folders, strict=True)
    ]
    if trust_store:
        nodes = [replace(each, config=replace(each.config, trust_store=True)) for each in nodes]
    for each in nodes:
        check_protected(each.config)
    log_to_stderr("+".join(each.config.name for each in nodes), log_format, verbose=verbose)
    heap.recycle()
    sys.setswitchinterval(SWITCH_S)
    sys.meta_path.insert(0, _NoPandas())
    try:
        import uvloop
    except ImportError as error:
        raise M4castError("a node needs uvloop and lmdb: pip install 'm4cast[node]'") from error
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        _end(runner.run(run(nodes)))


def _end(code: int) -> NoReturn:
    """Exit at once: stores and doors are closed already. A regular exit of the interpreter would wait for the door's
    calls, and one that waits for its client's next batch could hold up the process indefinitely."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


@dataclass(frozen=True, slots=True)
class OneNode:
    cluster: ClusterConfig
    config: NodeConfig
    folder: Path
    federation: FederationConfig | None = None
    """None if the node is not a gatekeeper."""


async def run(nodes: Sequence[OneNode]) -> int:
    """Run until all nodes have left or a store is broken; returns the exit code. If one cannot start, none runs."""
    loop = asyncio.get_running_loop()
    drivers: list[Driver] = []
    _leave_on_signals(drivers)
    giving_back = loop.create_task(heap.give_back())
    tasks = [loop.create_task(_run_one(node, drivers), context=_context_of(node)) for node in nodes]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        for task in (giving_back, *tasks):
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
    for end in ended:
        if isinstance(end, BaseException) and not isinstance(end, asyncio.CancelledError):
            raise end
    return max(task.result() for task in tasks)


def _context_of(node: OneNode) -> Context:
    context = copy_context()
    context.run(current_node.set, node.config.name)
    return context


async def _run_one(node: OneNode, drivers: list[Driver]) -> int:
    """Run one node; its driver is added to `drivers` as soon as it exists."""
    cluster, config, folder = node.cluster, node.config, node.folder
    stores: list[Store] = []
    channel = ChannelName(cluster.channel_type, cluster.channel_instance)

    def open_store(side: StoreSide) -> Store:
        callbacks = Callbacks(side.on_durable, side.on_failed, side.on_broken, side.on_damaged)
        limits = StoreLimits(map_bytes=config.store_bytes_max, linger_ms=config.sync_linger_ms)
        keep = Keep(bytes_max=config.retention_bytes or None, age_ms_max=config.retention_ms or None)
        stores.append(Store.open(folder, channel, callbacks, limits=limits, retention=Retention(keep)))
        return stores[0]

    driver = Driver(open_store, cluster, config)
    drivers.append(driver)
    services: Services | None = None
    door: FlightDoor | None = None
    http: HttpDoor | None = None
    web: WebDoor | None = None
    gatekeeper: Gatekeeper | None = None
    limits = DoorLimits(batch_bytes_max=cluster.batch_bytes_max, linger_ms=config.linger_ms, acks=config.acks)
    try:
        driver.watchers.append(_log_event)
        if config.insecure:
            log.warning("insecure = true: links and door are unencrypted TCP, and any peer is accepted")
        await driver.start()
        if node.federation is not None:
            gatekeeper = await _open_gate(driver, stores[0], node, node.federation)
        else:
            close_gate(driver)
        tokens = await asyncio.to_thread(Tokens, config.tokens) if config.tokens else None
        services = Services(driver, stores[0], limits) if config.door or config.web else None
        loop = asyncio.get_running_loop()
        collector = _collector(driver, stores[0], services, config) if config.http or config.web else None
        if config.web and services is not None:
            web = WebDoor(driver, services, tokens, config.web_origins, collector=collector)
            await web.open(config.web)
        if config.http:
            http = HttpDoor(driver, stores[0], channel, config.http, collector=collector)
        if config.door and services is not None:  # the last one: a node that answers here has all its doors open
            door = _open_door(driver, services, config, tokens)
        chores = [
            loop.create_task(chore)
            for chore in (driver.upkeep.trim_every(TRIM_INTERVAL_S), driver.upkeep.watch_free_space(ROOM_INTERVAL_S))
        ]
        gc.freeze()  # a full collection that scans all modules and classes would stop the node for 30 ms
        gc.set_threshold(GARBAGE_OBJECTS)
        await driver.stopped.wait()
        for chore in chores:
            chore.cancel()
    finally:
        if gatekeeper is not None:
            await gatekeeper.stop()
        if http is not None:
            await http.stop()
        if web is not None:
            await web.stop()
        if door is not None:
            await door.stop()
        if services is not None:  # they are still open if the door could not be opened
            services.close()
            await services.ended()
        if not driver.stopped.is_set():
            await driver.stop()
        stores[0].close()
    return EXIT_CODE_FAILED if driver.store_side.broken else 0


async def _open_gate(driver: Driver, store: Store, node: OneNode, federation: FederationConfig) -> "Gatekeeper":
    """Start the gatekeeper. It is imported here, so that a channel without a federation does not load it."""
    from m4cast.overlay.net.gateways.gatekeeper import Gatekeeper

    gatekeeper = Gatekeeper(driver, store, node.cluster, node.config, federation)
    await gatekeeper.start()
    return gatekeeper


def close_gate(driver: Driver) -> None:
    """Remove registrations that this node made as a gatekeeper, since it no longer is one."""
    rows = driver.node.interest.registrations.rows
    left = tuple(each for each in rows if each.startswith(GATE_PREFIXES))
    if left:
        driver.feed(Unsubscribe(0, left))


def _collector(driver: Driver, store: Store, services: Services | None, config: NodeConfig) -> NodeCollector:
    """The collector that both HTTP doors share, so that nothing is counted twice."""
    handle = NodeHandle(driver, asyncio.get_running_loop())
    calls = services.calls if services else CallCounts()
    look_s = HttpLimits().look_ms / 1000
    return NodeCollector(driver, store, handle, calls, look_s, topics_max=config.metrics_topics_max)


class _NoPandas(MetaPathFinder):
    """Keeps pandas out of a node, which has no use for it. Otherwise pyarrow imports it, if it is installed, when the
    first row is converted: 0.4 s during which rows wait, and 40 MB."""

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("a node does not use pandas", name=fullname)


def _open_door(driver: Driver, services: Services, config: NodeConfig, tokens: Tokens | None) -> FlightDoor:
    try:
        return FlightDoor(driver, services, config.door, tokens)
    except (OSError, pa.ArrowException) as error:  # if the port is in use, Flight reports only that it did not start
        detail = f"{error} (is the port in use?)"
        raise M4castError(f"cannot open a door at {config.door}: {detail}; set another `door`") from error


def _leave_on_signals(drivers: list[Driver]) -> None:
    loop = asyncio.get_running_loop()
    asked = False

    def stop() -> None:
        nonlocal asked
        log.info("stopping at once" if asked else "leaving; send the signal again to stop at once")
        for driver in drivers:
            if asked:
                driver.stop_soon()
            else:
                driver.leave()
        asked = True

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)


def _log_event(event: Shown) -> None:
    match event:
        case Trace("full"):
            log.info("on the channel")
        case Trace("founded"):
            log.info("founded the channel: no other portal answered")
        case Trace("no-portal"):
            log.warning("no portal answers; retrying")
        case Trace("was-refused", detail):
            log.warning("was refused: %s", "; ".join(str(value) for _, value in detail))
        case Trace("neighbour-up" | "neighbour-down" as name, detail):
            log.info("%s %s", name, " ".join(str(value) for _, value in detail))
        case Trace("shutdown", detail):
            log.info("the channel is being shut down, as requested at %s", dict(detail)["asked-of"])
        case Trace("fork", detail):
            log.error("a stream has two histories: %s", dict(detail))
        case Trace("damaged", detail):
            log.error("a batch in the store is damaged and is being fetched from another node: %s", dict(detail))
        case Trace("filled", detail):
            log.info("rows that were skipped have been received: %s", dict(detail))
        case Trace("repaired", detail):
            log.info("a damaged batch was fetched again: %s", dict(detail))
        case RosterChanged(entry):
            word = "leaves" if entry.leaving else "is on the channel"
            log.info("%s at %s %s (incarnation %d)", entry.name, entry.address, word, entry.incarnation)
        case _:
            pass
