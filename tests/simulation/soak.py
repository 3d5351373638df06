"""Run fault-campaign seeds until stopped (`make soak`), or replay one.

python -m tests.simulation.soak                     from seed 100,000 on, two at a time, until Ctrl-C
python -m tests.simulation.soak --first 100200 --count 100      these alone
python -m tests.simulation.soak --seed 7 --trace    seed 7, with the end of its trace when it fails
python -m tests.simulation.soak --seed 7 --digest   one line: a digest of the whole trace

Each seed is also one of the clients' campaign, with partitions and with places that freeze, and one of the campaign of
federations, every other one of these with clients that roam.
"""

import argparse
import gc
import itertools
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable
from multiprocessing import get_context
from typing import NamedTuple

import xxhash

from m4cast.overlay.sim.campaign import SeedOutcome, run_seed
from m4cast.overlay.sim.clients.campaign import run_clients_seed
from m4cast.overlay.sim.federation.campaign import run_federation_seed
from tests.simulation.canonical import SEEDS as CANONICAL_SEEDS
from tests.simulation.canonical import Recorder

FIRST_SEED = 100_000
"""Beyond those that every test run goes through."""
TRACE_LINES = 300


class Attempt(NamedTuple):
    """The outcome of a seed: picklable whatever happens, for pools of processes."""

    seed: int
    outcome: SeedOutcome | None
    broken: str
    """What failed, and how to replay it; empty if nothing did."""
    canonical: str
    """The digest of the canonical trace, of the seeds for which it is written down."""


def attempt(seed: int) -> Attempt:
    gc.disable()  # an eighth of the time; what a seed leaves is collected once, below
    gc.freeze()  # modules stay anyhow, and need not be looked through after each seed
    recorders = [Recorder()] if seed in CANONICAL_SEEDS else []
    try:
        outcome = run_seed(seed, observers=recorders)
        return Attempt(seed, outcome, "", "".join(recorder.hexdigest() for recorder in recorders))
    except Exception as error:  # whatever a seed raises is what this looks for
        notes = " ".join(getattr(error, "__notes__", []))
        return Attempt(seed, None, f"seed {seed}: {type(error).__name__}: {error} [{notes}]", "")
    finally:
        gc.collect()


def attempt_all(seed: int) -> Attempt:
    """The same, and the clients and the federation of this seed."""
    for of_what, run in CAMPAIGNS.items():
        try:
            run(seed)
        except Exception as error:
            return Attempt(seed, None, f"seed {seed} of {of_what}: {type(error).__name__}: {error}", "")
    return attempt(seed)


def clients_seed(seed: int) -> object:
    return run_clients_seed(seed, partitions=seed % 2 == 0, freezes=seed % 3 != 0)


def federation_seed(seed: int) -> object:
    return run_federation_seed(seed, roams=seed % 2 == 0, is_patient=True)


CAMPAIGNS: dict[str, Callable[[int], object]] = {"clients": clients_seed, "federations": federation_seed}


def replay(seed: int, trace: Callable[[str], None] | None) -> bool:
    try:
        for run in CAMPAIGNS.values():
            print(run(seed))
        print(run_seed(seed, trace))
    except Exception:
        traceback.print_exc()
        return False
    return True


def digest(seed: int) -> str:
    """The digest of every line of the run's trace."""
    running = xxhash.xxh3_128()
    lines = itertools.count()

    def add(line: str) -> None:
        next(lines)
        running.update(line.encode())

    run_seed(seed, add)
    return f"{running.hexdigest()} {next(lines)} lines"


def broken_of(seeds: Iterable[int]) -> list[str]:
    """The failures among these seeds, with the commands that replay them."""
    with get_context("spawn").Pool(2) as pool:
        return [each.broken for each in pool.imap_unordered(attempt, seeds, chunksize=4) if each.broken]


def soak(seeds: Iterable[int], processes: int) -> int:
    started = time.monotonic()
    failures = count = 0
    with get_context("spawn").Pool(processes) as pool:
        for count, each in enumerate(pool.imap_unordered(attempt_all, seeds), start=1):
            if each.broken:
                failures += 1
                print(each.broken, flush=True)
            if count % 25 == 0:
                rate = count / (time.monotonic() - started)
                print(f"{count} seeds, the last {each.seed}, {failures} failed, {rate:.1f} seeds/s", flush=True)
    print(f"{count} seeds, {failures} failed, {time.monotonic() - started:.0f} s", flush=True)
    return failures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, help="replay this one")
    parser.add_argument("--trace", action="store_true", help="with --seed: print the end of the trace if it fails")
    parser.add_argument("--digest", action="store_true", help="with --seed: print a digest of the trace")
    parser.add_argument("--first", type=int, default=FIRST_SEED, help="where to begin (default %(default)s)")
    parser.add_argument("--count", type=int, help="stop after so many (default: none)")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    if options.seed is None:
        try:
            seeds = itertools.count(options.first)
            return 1 if soak(itertools.islice(seeds, options.count), options.processes) else 0
        except KeyboardInterrupt:
            return 130
    if options.digest:
        print(digest(options.seed))
        return 0
    lines: deque[str] = deque(maxlen=TRACE_LINES)
    good = replay(options.seed, lines.append if options.trace else None)
    if not good:
        print(*lines, sep="\n")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
