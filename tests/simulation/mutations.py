"""Deliberate bugs: each is put into a machine for a while, and a seed of a campaign has to find it.

Each mutation is what a plausible mistake would be; the checkers know nothing of it. It is pinned to the first seed that
finds it, so that a test run does not have to search; `search` does, in `make soak` and from the command line.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest.mock import patch

Mutation = Callable[[], Iterator[tuple[Any, str, Any]]]
"""Yields owner, attribute and replacement."""


class Mutations:
    """The mutations of one campaign. Decorate each with the object."""

    def __init__(self, pinned: str, run: Callable[[int], object], searched: Iterable[int]) -> None:
        """`pinned`: the file, in this folder, with the seed of each mutation."""
        self._by_name: dict[str, Mutation] = {}
        self._run = run
        self._searched = searched
        self.seeds: dict[str, int] = json.loads(Path(__file__).with_name(pinned).read_text(encoding="utf-8"))

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

    def caught_by(self, name: str, seed: int) -> str:
        """How the seed fails with this bug; empty when it does not."""
        with self._put_in(name):
            try:
                self._run(seed)
            except (TypeError, AttributeError, NameError):
                raise  # the mutation does not fit the code any more: that finds nothing
            except Exception as error:
                return f"{type(error).__name__}: {error}"
        return ""

    def check(self, name: str) -> None:
        """Fail unless the pinned seed finds the bug."""
        seed = self.seeds[name]
        how = self.caught_by(name, seed)
        assert how, f"{name} passed seed {seed}: search for another one (see the head of this file)"
        print(f"{name}: seed {seed}: {how[:150]}")

    def first_caught(self, name: str) -> int | None:
        """The first seed that fails with this bug."""
        return next((seed for seed in self._searched if self.caught_by(name, seed)), None)

    def search(self) -> dict[str, int | None]:
        with get_context("spawn").Pool(2) as pool:
            return dict(zip(self.names, pool.map(self.first_caught, self.names, chunksize=1), strict=True))
