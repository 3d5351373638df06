"""Rows that profiles of a client want, as a door is asked for them, and where a new profile begins."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from m4cast.overlay.client.tail import Frontier
from m4cast.overlay.protocol.clients.state import Backfill, ClientProfile, Other, Sequences, ranges_json

if TYPE_CHECKING:
    from m4cast.overlay.client.channel import Channel


@dataclass(frozen=True, slots=True)
class ProfileRows:
    """Rows of topics that one of the profiles matches, each once, except those that a fill leaves to other profiles."""

    profiles: tuple[tuple[str, str | None, str | None], ...]
    """Topic, condition and language."""
    others: tuple[Other, ...] = ()
    standing: Sequences | None = None
    """The position below which rows of a table must stand."""
    retained: Sequences | None = None
    """The position from which on a node must have removed nothing (with `standing`); None: what stood may have gone."""

    @staticmethod
    def of(profiles: Iterable[ClientProfile]) -> "ProfileRows":
        return ProfileRows(tuple((each.topic, each.where, each.language) for each in profiles))

    @staticmethod
    def of_fill(fill: Backfill) -> "ProfileRows":
        profile = fill.profile
        return ProfileRows(((profile.topic, profile.where, profile.language),), fill.others, fill.standing)

    def fields(self) -> dict[str, Any]:
        """The fields of a ticket."""
        return {
            "read": "profiles",
            "profiles": [
                {"topic": topic, "where": where, "language": language} for topic, where, language in self.profiles
            ],
            "left_out": [
                {
                    "conditions": [list(each) for each in other.conditions],
                    "begin": other.begin,
                    "hole": ranges_json(other.hole),
                    "within": None if other.within is None else ranges_json(other.within),
                }
                for other in self.others
            ],
            **({} if self.standing is None else {"standing": self.standing, "on_missing": "skip"}),
            **({} if self.retained is None else {"retained": self.retained}),
        }


def begin_of(profile: ClientProfile, start: Frontier | int | str, channel: "Channel") -> tuple[Sequences, Sequences]:
    """The position at which the profile begins in its topic, and the position of the rows that are at the node now."""
    topic, where, language = profile.topic, profile.where or "", profile.language or "sql"
    ends = channel.extents(topic, where=where, language=language).get(topic, {})
    here = {origin: until for origin, (_, until) in ends.items()}
    if start == "latest":
        return dict(here), here
    if start == "earliest":
        return {origin: low for origin, (low, _) in ends.items()}, here
    since = start if isinstance(start, dict) else channel.frontier(topic, at=start, where=where, language=language)
    return dict(since.get(topic, {})), here
