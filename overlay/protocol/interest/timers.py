"""Deadlines of the interest machine."""

from m4cast.overlay.protocol.timers import Timer
from m4cast.overlay.value import value


@value
class InterestDue(Timer):
    """Send neighbours the news that has waited long enough."""


@value
class InterestSweepDue(Timer):
    """Look for entries of nodes that are gone."""


InterestTimer = InterestDue | InterestSweepDue
