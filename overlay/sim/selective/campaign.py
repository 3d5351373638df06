"""The campaign: many seeds, each a small channel in which registrations, rows and faults come at random."""

from copy import deepcopy
from random import Random
from typing import NamedTuple

from m4cast.overlay.sim.checkers import Violation
from m4cast.overlay.sim.selective.places import PROFILES, VALUES, SelectiveContent, SelectivePlace
from m4cast.overlay.sim.selective.world import SelectiveWorld

QUIET_MS = 200_000
"""Liveness bound: pauses between tries grow to a minute."""


class SelectiveOutcome(NamedTuple):
    seed: int
    batches: int
    registrations: int
    frames: dict[str, int]
    settle_ms: int


def run_selective_seed(seed: int, steps: int = 150) -> SelectiveOutcome:
    """One run; raises `Violation` when a guarantee is broken."""
    random = Random(seed)
    world = SelectiveWorld(seed, places=random.randint(4, 7), topics=("t", "u")[: random.randint(1, 2)])
    for place in world.places:
        place.clock_ms = random.randint(-200, 200)
        world.start(place)
    world.loss, world.repeat = random.choice(((0.0, 0.0), (0.12, 0.06), (0.3, 0.1)))
    world.delay_ms = random.choice(((1, 5), (1, 100), (1, 800)))
    world.sync_ms = random.choice(((1, 5), (1, 200)))
    origins = world.places[: random.randint(1, 2)]
    trims = random.random() < 0.2
    registrations = 0
    for _ in range(steps):
        registrations += _step(world, random, origins, trims=trims)
        world.run(random.randint(1, 200))
    batches = sum(map(len, world.checks.published.values()))
    began_ms = world.now_ms
    calm(world)
    while complaints := world.checks.unsettled(world.places, world.now_ms):
        if world.now_ms - began_ms > QUIET_MS:
            raise Violation("liveness", f"seed {seed}: " + "; ".join(complaints[:5]))
        world.run(1_000)
    return SelectiveOutcome(seed, batches, registrations, world.frames, world.now_ms - began_ms)


def _step(world: SelectiveWorld, random: Random, origins: list[SelectivePlace], *, trims: bool) -> int:
    chance = random.random()
    up = [place for place in world.places if place.up]
    place = random.choice(up) if up else None
    if chance < 0.45:
        origin = random.choice(origins)
        if origin.up:
            values = "".join(random.choice(VALUES) for _ in range(random.choice((1, 1, 2))))
            world.publish(origin, random.choice(world.topics), values)
    elif place is None:
        pass
    elif chance < 0.65:
        text = random.choice(PROFILES)
        topic = random.choice(world.topics)
        if f"{topic}/{text}" not in place.machine.wants.planned:  # type: ignore[union-attr]
            _subscribe(world, random, place, topic, text)
            return 1
    elif chance < 0.75:
        assert place.machine is not None
        names = [name for name in place.machine.wants.planned if not name.startswith("_")]
        if names:
            world.register(place, removed=[random.choice(names)])
    elif chance < 0.80:
        world.accuse(place, random.choice(world.places))
    elif chance < 0.82 and trims:
        streams = list(place.content.logs)
        if streams:
            world.trim(place, random.choice(streams))
    elif chance < 0.88 and len(up) > 2:
        world.crash(place)
        if place in origins and random.random() < 0.15:
            place.dead = True
    else:
        _restart(world, random)
    return 0


def _subscribe(world: SelectiveWorld, random: Random, place: SelectivePlace, topic: str, text: str | None) -> None:
    """Subscribe from the earliest rows, the latest, a time or a position on."""
    chance = random.random()
    if 0.3 <= chance < 0.5:
        world.subscribe(place, topic, text, from_ms=max(world.now_ms - random.randint(0, 8_000), 0))
    elif 0.5 <= chance < 0.7:
        ends = {stream: max(batches) for stream, batches in world.checks.published.items() if stream.topic == topic}
        named = {stream.origin: random.randint(1, end + 2) for stream, end in ends.items() if random.random() < 0.8}
        world.subscribe(place, topic, text, positions=named)
    else:
        world.subscribe(place, topic, text, earliest=chance < 0.3)


def _restart(world: SelectiveWorld, random: Random) -> None:
    down = [place for place in world.places if not place.up and not place.dead]
    if down:
        world.start(random.choice(down))


def calm(world: SelectiveWorld) -> None:
    """No more faults; whoever is not gone for good is up."""
    world.loss = world.repeat = 0.0
    world.delay_ms, world.sync_ms = (1, 5), (1, 5)
    for place in world.places:
        if not place.up and not place.dead:
            world.start(place)

    def again() -> None:
        for place in world.places:
            if place.up:
                world.announce(place)
        world.after(5_000, again)

    again()


def backup(place: SelectivePlace) -> SelectiveContent:
    """A copy of a place's disk."""
    return deepcopy(place.content)
