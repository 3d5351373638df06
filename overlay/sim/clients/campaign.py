"""The campaign: many seeds, each a few places and clients to which everything happens at random."""

from random import Random
from typing import NamedTuple

from m4cast.overlay.sim.checkers import Violation
from m4cast.overlay.sim.clients.world import ClientWorld, SimClient

VALUES = "abcd"
WHERES = (None, "a", "b", "ab", "bc", "d")
NAMES = ("p", "q", "r")
STARTS = ("earliest", "latest")
TABLE_STARTS = ("standing", "standing", "latest", "earliest")
CUT_SHARE = 0.04
"""The probability that a partition begins or ends."""
FREEZE_SHARE = 0.08
"""The probability that a place freezes, or that one goes on."""
ROUNDS_MAX = 400
"""Liveness bound: rounds without faults until every client has everything."""


class ClientOutcome(NamedTuple):
    seed: int
    rows: int
    taken: int
    migrations: int
    dropped: int


def run_clients_seed(
    seed: int, steps: int = 250, *, partitions: bool = False, freezes: bool = False, has_table: bool = False
) -> ClientOutcome:
    """One run; raises `Violation` when guarantee 12 is broken. `partitions`: the places fall apart into two groups, at
    any time and for any time, between which neither rows nor news travel; clients reach both. `freezes`: places stop in
    the middle, and go on later with what they knew then. `has_table`: one of the topics is a table, which is compacted;
    profiles may begin with what stands."""
    world = ClientWorld(seed, places=3 + seed % 3, clients=3, has_table=has_table)
    loses_disks = seed % 4 == 0
    cuts = Random(seed)  # its own, so that runs without partitions stay as they are
    for _ in range(steps):
        if partitions and cuts.random() < CUT_SHARE:
            places = len(world.places)
            world.cut = frozenset() if world.cut else frozenset(cuts.sample(range(places), cuts.randint(1, places - 1)))
        if freezes and cuts.random() < FREEZE_SHARE:
            place = cuts.choice(world.places)
            place.frozen = not place.frozen
        _step(world, loses_disks=loses_disks)
    world.cut = frozenset()
    for place in world.places:
        place.frozen = False
    _calm(world)
    return ClientOutcome(
        seed=seed,
        rows=sum(len(values) for origins in world.rows.values() for values in origins.values()),
        taken=sum(client.application.taken for client in world.clients),
        migrations=world.migrations,
        dropped=world.dropped,
    )


def _step(world: ClientWorld, *, loses_disks: bool) -> None:
    random = world.random
    chance, place, client = random.random(), random.choice(world.places), random.choice(world.clients)
    topic, origin = random.choice(world.topics), random.choice(world.origins)
    if chance < 0.15:
        world.publish(topic, origin, "".join(random.choice(VALUES) for _ in range(random.randint(1, 4))))
    elif chance < 0.30:
        if not place.frozen and world.reaches(place, world.places[world.origins.index(origin) % len(world.places)]):
            world.replicate(place, topic, origin)
    elif chance < 0.36:
        if not place.frozen:
            world.trim(place, topic, origin)
    elif chance < 0.44:
        source = random.choice(world.places)
        if place.answers and source.answers and source is not place and world.reaches(place, source):
            world.spread(place, source)
    elif chance < 0.47:
        world.crash(place)
        if loses_disks and random.random() < 0.1:
            world.lose_disk(place)
    elif chance < 0.51:
        place.up = True
    elif chance < 0.60:
        if not world.is_connected(client):
            world.connect(client, place)
    elif chance < 0.66:
        if client.memory is not None and random.random() < 0.7:
            client.acknowledge()
        world.save(client)
    elif chance < 0.69:
        client.die(keep=random.random() < 0.5)
    elif chance < 0.76:
        start = random.choice(TABLE_STARTS if world.is_table(topic) else STARTS)
        world.subscribe(client, random.choice(NAMES), topic, random.choice(WHERES), start)
    elif chance < 0.78:
        world.unsubscribe(client, random.choice(NAMES))
    else:
        _move_rows(world, client)


def _move_rows(world: ClientWorld, client: SimClient) -> None:
    if client.coming is not None and client.memory is not None:
        client.hand_over()
    else:
        world.read(client)


def _calm(world: ClientWorld) -> None:
    """No more faults: every client connects somewhere, and gets everything."""
    for place in world.places:
        place.up = True
    for _ in range(3):
        _spread_all(world)
    _check_saved(world)
    for client in world.clients:
        if not client.exists or (client.memory is None and client.may_drop):
            client.exists = False  # its state is lost, and nobody can know it
            continue
        client.coming = None
        for _ in range(3):
            if not world.is_connected(client):
                world.connect(client, world.random.choice(world.places))
        if not world.is_connected(client):
            raise Violation("clients", f"{client.key} cannot connect anywhere")
    rounds = 1
    while complaints := _round(world):
        rounds += 1
        if rounds > ROUNDS_MAX:
            raise Violation("liveness", f"{complaints[:3]}")
    for _ in range(3):
        _spread_all(world)
    _check_settled(world)


def _spread_all(world: ClientWorld) -> None:
    for to in world.places:
        for source in world.places:
            if to is not source:
                world.spread(to, source)


def _round(world: ClientWorld) -> list[str]:
    for place in world.places:
        for topic in world.topics:
            for origin in world.origins:
                world.replicate(place, topic, origin)
    complaints = []
    for client in world.clients:
        if client.exists and client.memory is not None:
            for _ in range(30):
                _move_rows(world, client)
            client.acknowledge()
            world.save(client)
            complaints += [f"{client.key}: {each}" for each in client.application.unsettled()]
    return complaints


def _check_saved(world: ClientWorld) -> None:
    """Check that a client without a memory finds what was saved last under the greatest session."""
    for client in world.clients:
        if client.saved and not client.may_drop:
            greatest = max(client.saved)
            place = next(place for place in world.places if place.node_id == greatest[1])
            kept = place.states.get(client.key)
            if kept is None or kept.number != client.saved[greatest]:
                raise Violation("clients", f"{client.key}: what was saved last is not at its access point")


def _check_settled(world: ClientWorld) -> None:
    """One access point each; nothing is left at former ones."""
    for client in world.clients:
        keepers = [place for place in world.places if client.key in place.states]
        if client.exists and keepers != [client.place]:
            raise Violation("clients", f"{client.key} is kept at {len(keepers)} places after it settled")
