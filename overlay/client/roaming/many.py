"""Profiles of many clients from rows: few calls for thousands, repeatable, and errors that name the row."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from m4cast.overlay.client.credentials import resolved
from m4cast.overlay.errors import LocalProtocolError, M4castError

if TYPE_CHECKING:
    from m4cast.overlay.client.channel import Channel

COLUMNS = ("key", "credential", "topic", "where", "language", "name")
NEEDED = ("key", "credential", "topic")
AT_ONCE = 500
"""Clients in one call: the limit of a door."""
ROWS_MAX = 1_000_000
ROUNDS = 3
"""The number of times that clients are looked for elsewhere: they may move meanwhile."""
SHOWN = 10
"""Rows that an error names."""


@dataclass(frozen=True, slots=True)
class FailedRow:
    row: int
    """Its number among those given, from 0."""
    key: str
    topic: str
    reason: str

    def __str__(self) -> str:
        return f"row {self.row} (key {self.key!r}, topic {self.topic!r}): {self.reason}"


@dataclass(slots=True)
class SubscribedClients:
    """The result of `subscribe_all`."""

    clients: int = 0
    created: int = 0
    changed: int = 0
    """Clients that got a new profile, new ones included."""
    failed: list[FailedRow] = field(default_factory=list)


@dataclass(slots=True)
class _Wanted:
    key: str
    credential: str
    profiles: dict[str, dict[str, str | None]]
    rows: list[tuple[int, str]]
    """Number and topic."""


def subscribe_rows(
    channel: "Channel", rows: Iterable[Mapping[str, Any]], *, start: Literal["latest", "earliest"] = "latest"
) -> SubscribedClients:
    """See `Channel.subscribe_all`."""
    done = SubscribedClients()
    wanted = list(_by_key(rows, done).values())
    done.clients = len(wanted)
    doors: dict[str, list[_Wanted]] = {"": wanted}
    for turn in range(ROUNDS):
        elsewhere: dict[str, list[_Wanted]] = {}
        for door, clients in doors.items():
            at = channel if not door else channel.at(door)
            for first in range(0, len(clients), AT_ONCE):
                _subscribe(at, clients[first : first + AT_ONCE], start, done, elsewhere if turn < ROUNDS - 1 else None)
        doors = elsewhere
    done.failed.sort(key=lambda each: each.row)
    if done.failed:
        named = "; ".join(map(str, done.failed[:SHOWN]))
        more = "" if len(done.failed) <= SHOWN else f"; and {len(done.failed) - SHOWN} more"
        detail = f"{len(done.failed)} rows were not subscribed, the others were: {named}{more}. Correct them and repeat"
        raise M4castError(detail)
    return done


def _subscribe(
    channel: "Channel",
    clients: list[_Wanted],
    start: str,
    done: SubscribedClients,
    elsewhere: dict[str, list[_Wanted]] | None,
) -> None:
    asked = [
        {"key": each.key, "credential": each.credential, "profiles": list(each.profiles.values())} for each in clients
    ]
    answers = channel.doors.ask("clients-subscribe", {"clients": asked, "start": start})["clients"]
    for each, answer in zip(clients, answers, strict=True):
        if "code" not in answer:
            done.created += answer["created"]
            done.changed += answer["changed"]
            continue
        if answer["code"] == "client-elsewhere" and elsewhere is not None:
            row = next(channel.clients(each.key), None)
            if row is not None and row["door"]:
                elsewhere.setdefault(row["door"], []).append(each)
                continue
        for number, topic in each.rows:
            done.failed.append(FailedRow(number, each.key, topic, answer["detail"]))


def _by_key(rows: Iterable[Mapping[str, Any]], done: SubscribedClients) -> dict[str, _Wanted]:
    found: dict[str, _Wanted] = {}
    for number, row in enumerate(rows):
        if number >= ROWS_MAX:
            raise LocalProtocolError(f"more than {ROWS_MAX:,} rows: subscribe in parts")
        unknown = [name for name in row if name not in COLUMNS]
        if unknown:
            raise LocalProtocolError(f"a row has column {unknown[0]!r}: columns are {', '.join(COLUMNS)}")
        reason = _wrong(row)
        key, topic = str(row.get("key")), str(row.get("topic"))
        if reason is None:
            credential = resolved(row["credential"], "credential")
            profile = {name: row.get(name) for name in ("topic", "where", "language")}
            name = row.get("name") or _name_of(profile)
            known = found.setdefault(key, _Wanted(key, credential, {}, []))
            if known.credential != credential:
                reason = "another row of this key has another credential"
            elif known.profiles.setdefault(name, {"name": name, **profile}) != {"name": name, **profile}:
                reason = f"another row of this key has another profile {name!r}"
            else:
                known.rows.append((number, topic))
        if reason is not None:
            done.failed.append(FailedRow(number, key, topic, reason))
    return found


def _wrong(row: Mapping[str, Any]) -> str | None:
    for name in COLUMNS:
        value = row.get(name)
        if name in NEEDED and not value:
            return f"{name} is missing"
        if value is not None and not isinstance(value, str):
            return f"{name} is not text"
    return None


def _name_of(profile: Mapping[str, str | None]) -> str:
    """A name that equal profiles have in common, so that a repeat changes nothing."""
    text = "\0".join(f"{name}={value}" for name, value in profile.items())
    return f"p-{hashlib.sha256(text.encode(errors='surrogateescape')).hexdigest()[:16]}"
