"""The context of one node: what its machines share.

Every machine is built with it, and keeps of it what it uses. Only what three rooms or more need belongs here; what two
machines share is passed from one to the other.
"""

from random import Random

from m4cast.overlay.config import ClusterConfig, NodeConfig
from m4cast.overlay.ids import Contact
from m4cast.overlay.protocol.calls import Calls
from m4cast.overlay.protocol.clocks import Clocks
from m4cast.overlay.protocol.effects import Output
from m4cast.overlay.protocol.neighbours import NeighbourTable
from m4cast.overlay.protocol.timers import Timers


class Context:
    def __init__(
        self, me: Contact, incarnation: int, cluster: ClusterConfig, config: NodeConfig, random: Random
    ) -> None:
        self.me = me
        self.incarnation = incarnation
        self.cluster = cluster
        self.config = config
        self.random = random
        """The node's only source of chance: whoever draws from it changes what others draw afterwards."""
        self.timers = Timers()
        self.clocks = Clocks()
        self.out: list[Output] = []
        """The outputs of the input that is being handled, in order."""
        self.calls = Calls(me, incarnation, cluster, config.call_timeout_ms, self.timers, self.out)
        self.table = NeighbourTable(me.node_id, cluster.degree)
        self.last_token = 0
        """Token of the last append that was requested."""

    def next_token(self) -> int:
        """The token of a new append: tokens rise in the order in which appends are asked for."""
        self.last_token += 1
        return self.last_token
