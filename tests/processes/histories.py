"""Records in the stores of stopped nodes, replayed before the simulator's checkers.

Every store's delivery records are replayed, in the order of arrival, into a simulated disk of a simulated place. That
feeds `Numbers`, `Order` and `ExactlyOnce` with each batch and delivery, and `unsettled_logs` with the disks. The others
cannot be fed: `GraphSafety` and `Memory` look into a node's memory (the graph is asked for at the doors instead, see
`HostedCluster`), and `Durability` needs to know when a batch was synced, where stores record when it arrived.
Batches of selective streams come in any order and not to everybody: each may be recorded once in a store.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from m4cast.cluster.local import LocalCluster
from m4cast.overlay.config.files import load_cluster, load_node
from m4cast.overlay.ids import StreamId, short_id
from m4cast.overlay.protocol.effects import Delivered
from m4cast.overlay.protocol.wire.selective import is_selective
from m4cast.overlay.sim.checkers import ExactlyOnce, Numbers, Order, Violation, unsettled_logs
from m4cast.overlay.sim.disk import Disk
from m4cast.overlay.sim.places import Place
from m4cast.overlay.sim.world import World
from m4cast.overlay.store.store import Store
from m4cast.overlay.store.tables.deliveries import DeliveryRecord
from tests.overlay.protocol.append_parts import append_of
from tests.processes.load import KeyedPublisher, Publisher
from tests.processes.reading import open_store

PAGE = 10_000


def check_histories(cluster: LocalCluster, *publishers: Publisher) -> int:
    """Raises at the first guarantee that is broken; how many deliveries there are, of all nodes. None of them runs."""
    world = World(0, load_cluster(cluster.folder / cluster.names()[0] / "node.toml"))
    numbers = Numbers()
    order, once = Order(world, numbers), ExactlyOnce(numbers)
    deliveries = 0
    for name in cluster.names():
        with _opened(cluster, name) as store:
            problems = store.check().problems
            if problems:
                raise Violation("durability", f"the store of {name} is damaged: {problems}")
            place = world.add(load_node(cluster.folder / name / "node.toml"))
            place.disk = Disk(store.recovered.node_id)
            deliveries += _replay(store, place, numbers, order, once)
    for publisher in publishers:
        if isinstance(publisher, KeyedPublisher):
            for position in publisher.positions:
                once.check_whole(publisher.topic, str(position))
    for place in world.places.values():
        world.start(place)
    differences = unsettled_logs(world)
    if differences:
        raise Violation("delivery", "; ".join(differences))
    return deliveries


def _replay(store: Store, place: Place, numbers: Numbers, order: Order, once: ExactlyOnce) -> int:
    incarnation = count = 0
    selected: dict[StreamId, set[int]] = {}
    for record in _records(store):
        if record.incarnation != incarnation:
            incarnation = record.incarnation
            order.started(place)
        delivery = record.delivery
        if record.reason is not None:
            raise Violation("delivery", f"{place.name} skipped {delivery}: {record.reason.name}, and nobody trims")
        (batch,) = store.read_range(delivery.stream, delivery.first_sequence, delivery.first_sequence + 1, 1)
        if is_selective(batch):
            recorded_at = selected.setdefault(delivery.stream, set())
            if delivery.first_sequence in recorded_at:
                raise Violation("delivery", f"{place.name} recorded {delivery} twice")
            recorded_at.add(delivery.first_sequence)
            continue
        append = append_of(0, batches=(replace(batch, payload=b""),), deliveries=(delivery,))
        place.disk.waiting.append(append)
        place.disk.syncing = 1
        place.disk.sync_done()
        for checker in (numbers, order, once):
            checker.synced(place, append)
        order.output(place, Delivered(delivery))
        count += 1
    logs = place.disk.content.logs
    for stream, (_, upto) in store.streams().items():
        if stream in selected:
            continue
        recorded = logs[stream].next if stream in logs else 1
        if recorded != upto:
            name = f"{short_id(stream.origin)}/{stream.topic}"
            raise Violation("delivery", f"{place.name} has {name} to {upto}, and recorded deliveries to {recorded}")
    return count


def _records(store: Store) -> Iterator[DeliveryRecord]:
    after = 0
    while page := store.read_deliveries(after, PAGE):
        yield from page
        after = page[-1].number


@contextmanager
def _opened(cluster: LocalCluster, name: str) -> Iterator[Store]:
    store = open_store(cluster, name)
    try:
        yield store
    finally:
        store.close()
