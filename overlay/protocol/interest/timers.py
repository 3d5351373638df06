"""Deadlines of the interest machine."""

from m4cast.overlay.protocol.timers import Timer
from m4cast.overlay.value import value


@value
class InterestDue(Timer):
    """Send neighbours the news that has waited long enough."""


@value
class InterestSweepDue(Timer):
    """Look for entries of nodes that are gone."""


@value
class ActiveAskDue(Timer):
    """Ask those again that have not confirmed."""


@value
class ActiveMergeDue(Timer):
    """Pass on the confirmations that were gathered."""


InterestTimer = InterestDue | InterestSweepDue | ActiveAskDue | ActiveMergeDue
