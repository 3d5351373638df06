"""`m4cast node`: run a node of a channel, or several nodes, until they are told to leave.

SIGTERM or Ctrl-C makes it leave in order: it hands its own rows over, tells its neighbours, and exits with 0. A
second one stops it at once. Log lines go to stderr, one per happening, as text or as JSON.

Nodes of one process share its loop and its core, and nothing else: each has its settings, store, links and doors, and
may be on a channel of its own. One that ends leaves the others alone; the process ends with the last.
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
from typing import NoReturn

import click
import pyarrow as pa

from m4cast.log_format import LogFormat, log_to_stderr, speaking
from m4cast.overlay import heap
from m4cast.overlay.config import ClusterConfig, NodeConfig
from m4cast.overlay.config.files import load_cluster, load_node
from m4cast.overlay.door.flight import FlightDoor
from m4cast.overlay.door.http.server import HttpDoor
from m4cast.overlay.door.limits import DoorLimits
from m4cast.overlay.errors import M4castError
from m4cast.overlay.net.driver import Driver
from m4cast.overlay.net.store_side import StoreSide
from m4cast.overlay.net.tls import check_protected
from m4cast.overlay.protocol.effects import Delivered, RosterChanged, Trace
from m4cast.overlay.store.folder import ChannelName
from m4cast.overlay.store.retention import Retention
from m4cast.overlay.store.store import Store, StoreLimits
from m4cast.overlay.store.tables.topics import Keep
from m4cast.overlay.store.writer import Callbacks

log = logging.getLogger("m4cast.node")

TRIM_INTERVAL_S = 2
"""How often retention looks at the store."""
ROOM_INTERVAL_S = 1
"""How often the store's room is measured."""
EXIT_CODE_BROKEN = 1
SWITCH_S = 0.001
"""How long a thread may hold the interpreter while others wait: the door's threads and the disk's wait for the loop's,
and one row passes several of them. The default is 5 ms; guess."""


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--conf",
    "confs",
    required=True,
    multiple=True,
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="TOML with the tables [cluster] and [node]; conf/ has examples that show every setting.",
)
@click.option(
    "--dir",
    "folders",
    required=True,
    multiple=True,
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Where the node keeps its store. Made if it is not there; one node at a time.",
)
@click.option(
    "--trust-store",
    is_flag=True,
    help="Publish although no node that knew this one before can be reached. Only if the store is no older copy.",
)
@click.option("--verbose", is_flag=True, help="Log every happening of the protocol.")
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Of log lines: for people, or one JSON object a line.",
)
def node(
    confs: tuple[Path, ...], folders: tuple[Path, ...], trust_store: bool, verbose: bool, log_format: LogFormat
) -> None:
    """Run one node of a channel, until SIGTERM or Ctrl-C.

    The node seeks the channel through its portals (or founds it, if it is a portal and nobody answers), takes its
    place among its neighbours, and keeps every row of the channel in its store.

    Clients publish and read through its door (`m4cast publish`, `m4cast tail`, m4cast.overlay.client, or any Arrow
    Flight client). Links and door use the node's certificates (docs/SECURITY.md); without any, the node starts only
    with insecure = true.

    With several --conf, each with its --dir in the same order, one process runs several nodes, of different channels
    or of the same one.
    """
    if len(confs) != len(folders):
        raise click.UsageError(f"{len(confs)} --conf and {len(folders)} --dir: each node has one of both")
    nodes = [OneNode(load_cluster(conf), load_node(conf), folder) for conf, folder in zip(confs, folders, strict=True)]
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
    """Stores and doors are closed; there is nothing more to do. Without the interpreter's own end, which waits for
    calls of the door, and those that wait for their client's next batch would hold the process as long as it likes."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


@dataclass(frozen=True, slots=True)
class OneNode:
    cluster: ClusterConfig
    config: NodeConfig
    folder: Path


async def run(nodes: Sequence[OneNode]) -> int:
    """Until all have left, or a store is broken; the exit code. If one cannot start, none runs."""
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
    context.run(speaking.set, node.config.name)
    return context


async def _run_one(node: OneNode, drivers: list[Driver]) -> int:
    """Its driver is put with the others as soon as it is there."""
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
    door: FlightDoor | None = None
    http: HttpDoor | None = None
    try:
        driver.watchers.append(_say)
        if config.insecure:
            log.warning("insecure = true: links and door are plain TCP, not encrypted, and any peer is taken in")
        await driver.start()
        if config.door:
            door = _open_door(driver, stores[0], config, cluster.batch_bytes_max)
        if config.http:
            http = HttpDoor(driver, stores[0], channel, config.http, door.services.calls if door else None)
        loop = asyncio.get_running_loop()
        chores = [
            loop.create_task(chore)
            for chore in (driver.upkeep.trim_every(TRIM_INTERVAL_S), driver.upkeep.watch_free_space(ROOM_INTERVAL_S))
        ]
        gc.freeze()  # modules and classes stay: a full collection that looks at them stops the node for 30 ms
        await driver.stopped.wait()
        for chore in chores:
            chore.cancel()
    finally:
        if http is not None:
            await http.stop()
        if door is not None:
            await door.stop()
        if not driver.stopped.is_set():
            await driver.stop()
        stores[0].close()
    return EXIT_CODE_BROKEN if driver.store_side.broken else 0


class _NoPandas(MetaPathFinder):
    """A node has no use for pandas, which pyarrow imports where it is, when the first row is converted: 0.4 s in which
    rows wait, and 40 MB."""

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("a node does without pandas", name=fullname)


def _open_door(driver: Driver, store: Store, config: NodeConfig, batch_bytes_max: int) -> FlightDoor:
    limits = DoorLimits(batch_bytes_max=batch_bytes_max, linger_ms=config.linger_ms, acks=config.acks)
    try:
        return FlightDoor(driver, store, config.door, limits, config.tokens)
    except (OSError, pa.ArrowException) as error:  # of a port that is taken, Flight says only that it did not start
        detail = f"{error} (is the port taken?)"
        raise M4castError(f"cannot open a door at {config.door}: {detail}; choose another `door`") from error


def _leave_on_signals(drivers: list[Driver]) -> None:
    loop = asyncio.get_running_loop()
    asked = False

    def stop() -> None:
        nonlocal asked
        log.info("stopping at once" if asked else "leaving; once more to stop at once")
        for driver in drivers:
            if asked:
                driver.stop_soon()
            else:
                driver.leave()
        asked = True

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)


def _say(happening: Delivered | Trace | RosterChanged) -> None:
    match happening:
        case Trace("full"):
            log.info("on the channel")
        case Trace("founded"):
            log.info("founded the channel: nobody else answered")
        case Trace("no-portal"):
            log.warning("no portal answers; trying again")
        case Trace("was-refused", detail):
            log.warning("was refused: %s", "; ".join(str(value) for _, value in detail))
        case Trace("neighbour-up" | "neighbour-down" as name, detail):
            log.info("%s %s", name, " ".join(str(value) for _, value in detail))
        case Trace("shutdown", detail):
            log.info("the channel is being shut down, as %s was asked to", dict(detail)["asked-of"])
        case Trace("fork", detail):
            log.error("a stream has two histories: %s", dict(detail))
        case Trace("damaged", detail):
            log.error("a batch in the store is damaged, it is fetched from another node: %s", dict(detail))
        case Trace("filled", detail):
            log.info("rows that were skipped have turned up: %s", dict(detail))
        case Trace("repaired", detail):
            log.info("a damaged batch was fetched again: %s", dict(detail))
        case RosterChanged(entry):
            word = "leaves" if entry.leaving else "is there"
            log.info("%s at %s %s (incarnation %d)", entry.name, entry.address, word, entry.incarnation)
        case _:
            pass
