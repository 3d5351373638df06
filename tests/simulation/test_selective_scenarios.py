"""The scenarios of selective topics keep their promises, and report it when rows are lost."""

import pytest

from m4cast.overlay.sim.run import ScenarioPlan, ScenarioRun
from m4cast.overlay.sim.scenarios import broken_promises, simulate
from m4cast.overlay.sim.selective import scenarios
from m4cast.overlay.sim.selective.scenarios import LossAfterAck


@pytest.mark.parametrize("scenario", ["selective", "keepers"])
def test_scenarios_keep_their_promises(scenario: str) -> None:
    report = simulate(ScenarioPlan(scenario, 20, 4, 2, messages=200))
    assert not broken_promises(report)
    assert report.sends_per_delivery is not None and report.sends_per_delivery > 1, "batches were routed"
    assert report.graph.nodes == (15 if scenario == "keepers" else 20)


def test_rows_that_are_answered_before_a_keeper_has_them_are_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    class WithoutAck(LossAfterAck):
        def __init__(self, run: ScenarioRun, count: int) -> None:
            super().__init__(run, count)
            run.acks = 0

    monkeypatch.setattr(scenarios, "LossAfterAck", WithoutAck)
    report = simulate(ScenarioPlan("keepers", 12, 4, 1, messages=60))
    assert [promise for promise in broken_promises(report) if promise.startswith("only ")]
