"""Rows that profiles of a client want, as a door is asked for them."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from m4cast.overlay.protocol.clients.state import Backfill, ClientProfile, Other, Sequences, ranges_json


@dataclass(frozen=True, slots=True)
class ProfileRows:
    """Rows of topics that one of the profiles matches, each once, except those that a fill leaves to other profiles."""

    profiles: tuple[tuple[str, str | None, str | None], ...]
    """Topic, condition and language."""
    others: tuple[Other, ...] = ()
    standing: Sequences | None = None
    """For a table: only rows that stand below this position."""
    retained: Sequences | None = None
    """With `standing`: a node that has removed rows from here on refuses. None: what stood may have gone."""

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
