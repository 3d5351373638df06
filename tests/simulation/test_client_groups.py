"""Groups and files in the simulator, and deliberate bugs that it finds."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from m4cast.overlay.protocol.clients import group
from m4cast.overlay.protocol.clients.group import Group
from m4cast.overlay.protocol.clients.letters import MailMessage
from m4cast.overlay.protocol.clients.state import ClientState
from m4cast.overlay.protocol.clients.transfers import FileDesk, Transfer
from m4cast.overlay.sim.checkers import Violation
from m4cast.overlay.sim.clients.exchange import run_exchange_seed
from m4cast.overlay.sim.clients.groups import run_group_seed

SEEDS = 150


def test_members_share_each_row_once_unless_something_is_lost() -> None:
    twice = [run_group_seed(seed) for seed in range(SEEDS)]
    assert sum(twice[0::2]) == 0, "nothing is lost in even seeds"
    assert sum(twice) > 0, "losses are among the others"


def test_files_arrive_or_a_reason_does() -> None:
    outcomes = [run_exchange_seed(seed) for seed in range(SEEDS)]
    assert {state for outcome in outcomes for state in outcome} == {"received", "refused", "cancelled"}


def found_by(run: Callable[[int], Any]) -> bool:
    for seed in range(SEEDS):
        try:
            run(seed)
        except Violation:
            return True
    return False


def last_save_counts(one: ClientState, other: ClientState) -> ClientState:
    return other


def position_of_rows_that_came(self: ClientState, topic: str, origin: str, until: int) -> ClientState:
    origins = {**self.frontier.get(topic, {}), origin: until + 1}
    return replace(self, frontier={**self.frontier, topic: origins})


def seen_is_ignored(self: Group, name: str, topic: str, origin: str, version: int) -> bool:
    return self.is_current(version) and group.owner_of(self.members, topic, origin) == name


def every_version_is_current(self: Group, version: int) -> bool:
    return True


def nobody_is_left_out(self: Group, now_ms: int) -> None: ...


BUGS: dict[str, tuple[Any, str, Any]] = {
    "the last save counts": (group, "joined", last_save_counts),
    "a position passes a row that was not acknowledged": (ClientState, "passed", position_of_rows_that_came),
    "a stream moves before its member has saved": (Group, "may_read", seen_is_ignored),
    "positions are not learned": (Group, "is_current", every_version_is_current),
    "a silent member keeps its streams": (Group, "expire", nobody_is_left_out),
}


@pytest.mark.parametrize("bug", BUGS)
def test_deliberate_bugs_of_groups_are_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    where, name, instead = BUGS[bug]
    monkeypatch.setattr(where, name, instead)
    assert found_by(run_group_seed)


def progress_is_not_kept(self: FileDesk) -> dict[str, Any]:
    return {"offers": self.offers, "transfers": [], "uploads": {}}


def holes_are_overlooked(self: Transfer) -> int:
    return len(self.have)


def every_chunk_is_taken(self: FileDesk, transfer: Transfer, message: MailMessage) -> None: ...


FILE_BUGS: dict[str, tuple[Any, str, Any]] = {
    "what was asked for is not kept": (FileDesk, "to_json", progress_is_not_kept),
    "holes are not asked for": (Transfer, "first_missing", holes_are_overlooked),
    "chunks of a changed file are mixed": (FileDesk, "_is_of", every_chunk_is_taken),
}


@pytest.mark.parametrize("bug", FILE_BUGS)
def test_deliberate_bugs_of_files_are_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    where, name, instead = FILE_BUGS[bug]
    monkeypatch.setattr(where, name, instead)
    assert found_by(run_exchange_seed)
