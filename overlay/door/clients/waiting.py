"""The rows that wait for a client at its access point: for each profile, at most so many.

They are counted by positions, not by evaluating filters: the cost is that of the client's state, whatever waits.
"""

from collections.abc import Mapping

from m4cast.overlay.protocol.clients.state import ClientState


def waiting_of(state: ClientState, ends: Mapping[str, Mapping[str, int]]) -> list[dict[str, object]]:
    """The profiles with `waiting_max`, the rows from the client's position on that they may match. `ends`: by topic
    and origin, the next sequence at this node."""
    rows = {topic: sum(origins.values()) - len(origins) for topic, origins in ends.items()}
    fills: dict[str, int] = {}
    for fill in state.fills:
        left = sum(until - first for first, until in fill.ranges.values())
        fills[fill.profile.name] = fills.get(fill.profile.name, 0) + left
    found: list[dict[str, object]] = []
    for profile in state.profiles:
        here = ends.get(profile.topic, {})
        passed = 0
        for origin in state.frontier.get(profile.topic, {}).keys() | profile.begin.keys():
            begin = max(state.position(profile.topic, origin), profile.begins(origin))
            passed += min(begin, here.get(origin, 1)) - 1
        found.append(
            {
                "profile": profile.name,
                "topic": profile.topic,
                "where": profile.where,
                "waiting_max": rows.get(profile.topic, 0) - passed + fills.get(profile.name, 0),
            }
        )
    return found
