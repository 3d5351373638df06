"""Deliberate bugs: each is put into a machine for a while, and a seed of a campaign has to find it.

Each mutation is what a plausible mistake would be; the checkers know nothing of it. It is pinned to the first seed that
finds it, some also to the guarantee that it breaks there, so that a test run does not have to search; `search` does, in
`make soak` and from the command line.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

from m4cast.overlay.sim.checkers import Violation

Mutation = Callable[[], Iterator[tuple[Any, str, Any]]]
"""Yields owner, attribute and replacement."""


class Caught(NamedTuple):
    """The way in which a bug was found."""

    seed: int
    breaks: str
    """The guarantee that a checker saw broken; the name of an error, if a machine failed by itself."""
    detail: str


class Mutations:
    """The mutations of one campaign. Decorate each with the object."""

    def __init__(self, pinned: str, run: Callable[[int], object], searched: Iterable[int]) -> None:
        """`pinned`: the file, in this folder, with the seed of each mutation; or with that and what it breaks there."""
        self._by_name: dict[str, Mutation] = {}
        self._run = run
        self._searched = searched
        written: dict[str, Any] = json.loads(Path(__file__).with_name(pinned).read_text(encoding="utf-8"))
        pairs = {name: found if isinstance(found, list) else (found, "") for name, found in written.items()}
        self.seeds: dict[str, int] = {name: seed for name, (seed, _) in pairs.items()}
        self._breaks: dict[str, str] = {name: breaks for name, (_, breaks) in pairs.items()}
        """What each breaks; empty: it is not written down."""

    def __call__(self, make: Mutation) -> Mutation:
        self._by_name[make.__name__] = make
        return make

    @property
    def makers(self) -> list[Mutation]:
        return list(self._by_name.values())

    @property
    def names(self) -> list[str]:
        return list(self._by_name)

    @contextmanager
    def _put_in(self, name: str) -> Iterator[None]:
        with ExitStack() as stack:
            for owner, attribute, replacement in list(self._by_name[name]()):
                is_of_instances = isinstance(replacement, property)  # which the class does not have
                stack.enter_context(patch.object(owner, attribute, replacement, create=is_of_instances))
            yield

    def caught_by(self, name: str, seed: int) -> Caught | None:
        """The failure of the seed with this bug; None when it does not fail."""
        with self._put_in(name):
            try:
                self._run(seed)
            except (TypeError, AttributeError, NameError):
                raise  # the mutation does not fit the code any more: that finds nothing
            except Violation as violation:
                return Caught(seed, violation.guarantee, str(violation))
            except Exception as error:
                return Caught(seed, type(error).__name__, str(error))
        return None

    def check(self, name: str) -> None:
        """Fail unless the pinned seed finds the bug, by what it breaks."""
        seed, breaks = self.seeds[name], self._breaks[name]
        how = self.caught_by(name, seed)
        assert how is not None, f"{name} passed seed {seed}: search for another one (see the head of this file)"
        assert breaks in ("", how.breaks), f"{name} breaks {how.breaks}, not {breaks}, with seed {seed}: {how.detail}"
        print(f"{name}: seed {seed}: {how.detail[:150]}")

    def first_caught(self, name: str) -> Caught | None:
        """The first seed that fails with this bug."""
        return next((found for seed in self._searched if (found := self.caught_by(name, seed)) is not None), None)

    def search(self) -> dict[str, tuple[int, str] | None]:
        """The pins as the file has them, found anew."""
        with get_context("spawn").Pool(2) as pool:
            found = pool.map(self.first_caught, self.names, chunksize=1)
        return {
            name: None if how is None else (how.seed, how.breaks) for name, how in zip(self.names, found, strict=True)
        }
