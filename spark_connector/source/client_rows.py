"""The rows of a span that a client wants: what partitions of a client's stream contain in place of a filter."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from m4cast.spark_connector.offsets import Frontier

if TYPE_CHECKING:
    from m4cast.overlay.client import Channel, RangeReader
    from m4cast.overlay.client.roaming.wanted import ProfileRows
    from m4cast.overlay.profiles import Profile


@dataclass(frozen=True, slots=True)
class NotifiedRows:
    wanted: "ProfileRows"
    """The rows of one topic."""

    def read(self, channel: "Channel", topic: str, start: Frontier, end: Frontier, *, skips: bool) -> "RangeReader":
        from m4cast.overlay.client.roaming.planned import read_wanted

        return read_wanted(channel, topic, start, end, self.wanted, skips=skips)

    def profile(self) -> "Profile":
        """One that matches what any of the client's profiles does, as the nodes compute it."""
        from m4cast.overlay.profiles import EVERYTHING, parse, widened

        return widened(
            [
                EVERYTHING if where is None else parse(where) if language is None else parse(where, language)
                for _, where, language in self.wanted.profiles
            ]
        )
