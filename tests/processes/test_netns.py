"""Real nodes in network namespaces, under the faults of real networks; needs root (see `hosts.why_not`)."""

from typing import Any

import pytest

from tests.processes.campaigns import Campaigns
from tests.processes.hosts import why_not


@pytest.fixture
def outcome(campaigns: Campaigns, campaign: tuple[str, str, float]) -> dict[str, Any]:
    lack = why_not()
    if lack:
        pytest.skip(lack)
    scenario, length, _ = campaign
    return campaigns.outcome(scenario, length)


@pytest.mark.parametrize(
    "campaign",
    [("mixed", "--minutes 2", 120), pytest.param(("mixed", "--minutes 30", 1_800), marks=pytest.mark.soak)],
    ids=["short", "long"],
)
def test_nothing_acknowledged_is_lost_or_doubled(outcome: dict[str, Any], campaign: tuple[str, str, float]) -> None:
    assert all(outcome["rows"].values()) and sum(outcome["faults"].values()) >= campaign[2] / 3


@pytest.mark.parametrize(
    "campaign",
    [("partition", "--seconds 15", 15), pytest.param(("partition", "--seconds 60", 60), marks=pytest.mark.soak)],
    ids=["short", "long"],
)
def test_halves_that_both_published_are_one_channel_again(outcome: dict[str, Any]) -> None:
    assert all(outcome["rows"].values()) and outcome["restarts"] == 0
