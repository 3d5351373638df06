"""Acknowledgements of selective streams, by versions of the entries that they are for."""

from m4cast.overlay.ids import NodeId, StreamId
from m4cast.overlay.protocol.selective.contract import SelectiveSettings
from m4cast.overlay.protocol.selective.demand import Demand
from m4cast.overlay.protocol.selective.speaking import DestinationRun, Speaking, SpokenStream
from m4cast.overlay.protocol.timers import Timers
from m4cast.overlay.protocol.wire.selective import SelectAckEntry, SelectAckStmt

ME, KEEPER = NodeId(bytes(16)), NodeId(bytes(range(16)))
STREAM = StreamId(ME, "t")


def test_acknowledgements_outlive_changes_of_an_entry_that_do_not_concern_the_stream() -> None:
    demand = Demand()
    speaking = Speaking(ME, demand, SelectiveSettings(), Timers(), [])
    speaking.streams[STREAM] = SpokenStream(next=5, runs={KEEPER: DestinationRun(sent=5)})

    def change(version: int, *concerned: StreamId) -> None:
        before, demand.versions[KEEPER] = demand.versions.get(KEEPER), version
        speaking.entry_changed(KEEPER, before, version, concerned)

    change(1)
    speaking.on_ack(KEEPER, SelectAckStmt(ME, 2, (SelectAckEntry("t", 5),)))
    assert speaking.level_at(STREAM, 5) == [], "by an entry that is not known here yet"
    taken = speaking.acks_taken
    change(2)
    assert speaking.level_at(STREAM, 5) == [KEEPER]
    assert speaking.acks_taken > taken, "whoever waits looks again"
    change(3)
    assert speaking.level_at(STREAM, 5) == [KEEPER]
    change(4, STREAM)
    assert speaking.level_at(STREAM, 5) == []
