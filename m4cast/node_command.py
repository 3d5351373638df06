"""`m4cast node`: run one node of a channel until it is told to leave.

SIGTERM or Ctrl-C makes it leave in order: it hands its own rows over, tells its neighbours, and exits with 0. A
second one stops it at once. Log lines go to stderr, one per happening.
"""

import asyncio
import logging
import signal
import sys
from pathlib import Path

import click

from m4cast.overlay.config import ClusterConfig, NodeConfig, load_cluster, load_node
from m4cast.overlay.door.flight import DoorLimits, FlightDoor
from m4cast.overlay.errors import M4castError
from m4cast.overlay.net.driver import Driver
from m4cast.overlay.protocol.effects import Delivered, RosterChanged, Trace
from m4cast.overlay.store.folder import Channel
from m4cast.overlay.store.store import Store
from m4cast.overlay.store.writer import Callbacks

log = logging.getLogger("m4cast.node")

TRIM_INTERVAL_S = 10
"""How often retention looks at the store."""
EXIT_CODE_BROKEN = 1


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--conf",
    required=True,
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="TOML with the tables [cluster] and [node]; conf/ has examples that show every setting.",
)
@click.option(
    "--dir",
    "folder",
    required=True,
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Where the node keeps its store. Made if it is not there; one node at a time.",
)
@click.option("--verbose", is_flag=True, help="Log every happening of the protocol.")
def node(conf: Path, folder: Path, verbose: bool) -> None:
    """Run one node of a channel, until SIGTERM or Ctrl-C.

    The node seeks the channel through its portals (or founds it, if it is a portal and nobody answers), takes its
    place among its neighbours, and keeps every row of the channel in its store.

    Clients publish and read through its door (`m4cast publish`, `m4cast tail`, m4cast.overlay.client, or any Arrow
    Flight client). Neither links nor door are encrypted or authenticated yet: run it on a network that you trust.
    """
    cluster, config = load_cluster(conf), load_node(conf)
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.DEBUG if verbose else logging.INFO,
        format=f"%(asctime)s {config.name} %(levelname)s %(message)s",
    )
    logging.getLogger("asyncio").setLevel(logging.WARNING)
    try:
        import uvloop
    except ImportError as error:
        raise M4castError("a node needs uvloop and lmdb: pip install 'm4cast[node]'") from error
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        sys.exit(runner.run(run(cluster, config, folder)))


async def run(cluster: ClusterConfig, config: NodeConfig, folder: Path) -> int:
    """Until it has left or its store is broken; the exit code."""
    stores: list[Store] = []

    def open_store(driver: Driver) -> Store:
        callbacks = Callbacks(driver.on_durable, driver.on_failed, driver.on_broken)
        stores.append(Store.open(folder, Channel(cluster.channel_type, cluster.channel_instance), callbacks))
        return stores[0]

    driver = Driver(open_store, cluster, config)
    door: FlightDoor | None = None
    try:
        driver.watchers.append(_say)
        log.warning("links and door are plain TCP: not encrypted, not authenticated")
        _leave_on_signals(driver)
        await driver.start()
        if config.door:
            limits = DoorLimits(batch_bytes_max=cluster.batch_bytes_max, linger_ms=config.linger_ms)
            door = _open_door(driver, stores[0], config.door, limits)
        trimming = asyncio.get_running_loop().create_task(driver.trim_every(TRIM_INTERVAL_S))
        await driver.stopped.wait()
        trimming.cancel()
    finally:
        if door is not None:
            await door.stop()
        if not driver.stopped.is_set():
            await driver.stop()
        stores[0].close()
    return EXIT_CODE_BROKEN if driver.broken else 0


def _open_door(driver: Driver, store: Store, address: str, limits: DoorLimits) -> FlightDoor:
    try:
        return FlightDoor(driver, store, address, limits)
    except OSError as error:
        raise M4castError(f"cannot open a door at {address}: {error}; choose another `door`") from error


def _leave_on_signals(driver: Driver) -> None:
    loop = asyncio.get_running_loop()
    asked = False

    def stop() -> None:
        nonlocal asked
        if asked:
            driver.stop_soon()
        else:
            asked = True
            log.info("leaving; once more to stop at once")
            driver.leave()

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
        case Trace("refused" | "was-refused" as name, detail):
            log.warning("%s: %s", name, "; ".join(str(value) for _, value in detail))
        case Trace("neighbour-up" | "neighbour-down" as name, detail):
            log.info("%s %s", name, " ".join(str(value) for _, value in detail))
        case Trace("fork", detail):
            log.error("a stream has two histories: %s", dict(detail))
        case RosterChanged(entry):
            word = "leaves" if entry.leaving else "is there"
            log.info("%s at %s %s (incarnation %d)", entry.name, entry.address, word, entry.incarnation)
        case _:
            pass
