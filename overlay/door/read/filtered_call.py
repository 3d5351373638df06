"""One filtered DoGet: what was asked, by whom, and how its answer looks."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from m4cast.overlay.door.access.rights import Caller
from m4cast.overlay.door.read.matching import RowTest
from m4cast.overlay.door.read.portions import RulesOut, ruled_out_by, spared
from m4cast.overlay.door.read.stream_answer import FilteredShape, StreamAnswer
from m4cast.overlay.door.requests import Get
from m4cast.overlay.ids import StreamId
from m4cast.overlay.profiles import EVERYTHING, Profile


@dataclass(frozen=True, slots=True, kw_only=True)
class FilteredCall:
    """One filtered DoGet."""

    get: Get
    caller: Caller
    profiles: Mapping[str, Profile]
    """The filter of each topic. Topics that are absent are not filtered."""
    tests: Mapping[str, RowTest]
    shape: FilteredShape
    _rules_out: dict[StreamId, RulesOut] = field(default_factory=dict)

    def profile(self, topic: str) -> Profile:
        return self.profiles.get(topic, EVERYTHING)

    def rules_out(self, stream: StreamId) -> RulesOut:
        """The test of summaries, one for each stream: it remembers whether those helped."""
        if stream not in self._rules_out:
            self._rules_out[stream] = spared(ruled_out_by(self.profile(stream.topic).condition))
        return self._rules_out[stream]

    def answer(self, stream: StreamId, begin: int) -> StreamAnswer:
        return StreamAnswer(stream, begin, self.profile(stream.topic), self.shape)
