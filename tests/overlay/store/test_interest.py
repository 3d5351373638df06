"""Registrations and the state of the interest entry come back from a real store as they were written."""

from pathlib import Path

from m4cast.overlay.protocol.effects import (
    Append,
    InterestState,
    InterestStateRecord,
    Registration,
    RegistrationRecord,
)
from m4cast.overlay.store.inspection import check
from tests.overlay.store.store_parts import opened, synced

ROW = Registration(
    topic="żółw",
    language="sql",
    version=1,
    text="country = 'PL'",
    canonical="`country` = 'PL'",
    owner="ann",
    epoch=3 << 32,
    since_ms=1_790_000_000_000,
    earliest=True,
    under="",
)


def test_registrations_come_back(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        assert store.recovered.of(RegistrationRecord) == {}
        assert store.recovered.of(InterestStateRecord) == {}
        first = Append(
            1,
            (
                RegistrationRecord("ann/ż", ROW),
                RegistrationRecord("b", ROW),
                InterestStateRecord("", InterestState(1, 1, 0)),
            ),
        )
        synced(
            store, first, Append(2, (RegistrationRecord("b", None), InterestStateRecord("", InterestState(1, 2, 1))))
        )
    assert check(tmp_path).problems == []
    with opened(tmp_path) as store:
        assert store.recovered.of(RegistrationRecord) == {"ann/ż": ROW}
        assert store.recovered.of(InterestStateRecord) == {"": InterestState(1, 2, 1)}
