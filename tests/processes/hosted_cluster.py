"""A cluster with each node on a host of its own (`hosts.py`), started, killed and moved without waiting for anything:
under faults a node comes when it can."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from m4cast.cluster.local import LocalCluster
from m4cast.cluster.plan import ClusterPlan, PlannedNode, Setting
from m4cast.cluster.view import NodeView
from tests.processes.hosts import Hosts, address_of, door_address_of
from tests.processes.warm_nodes import nursery

LINK_PORT, DOOR_PORT = 7400, 7500


class HostedCluster(LocalCluster):
    """Node n1 is on host 1, and so on. The settings are the defaults, but for those given."""

    def __init__(self, folder: Path, hosts: Hosts, nodes: int, node_settings: Mapping[str, Setting]) -> None:
        planned = tuple(
            PlannedNode(f"n{k}", f"{address_of(k)}:{LINK_PORT}", f"{door_address_of(k)}:{DOOR_PORT}", "")
            for k in range(1, nodes + 1)
        )
        super().__init__(folder, ClusterPlan(planned, {"degree": 4}, node_settings))
        self.hosts = hosts
        self.restarts = 0
        self._address_numbers = dict.fromkeys(self.names(), 1)
        folder.mkdir(parents=True)
        self._save()

    def host(self, name: str) -> int:
        return 1 + self.names().index(name)

    def _spawn(self, name: str) -> int:
        folder = self.folder / name
        words = ["node", "--conf", str(folder / "node.toml"), "--dir", str(self.store(name))]
        process = nursery().launch(words, self.log(name), self.hosts.network(self.host(name)))
        (folder / "pid").write_text(str(process))
        return 0

    def come_back(self, name: str) -> None:
        """It is started again, and finds the channel when it can."""
        self._spawn(name)
        self.restarts += 1

    def answers(self, name: str) -> bool:
        """It listens, for nodes and for clients."""
        return bool(self._look_at(self.node(name)).status)

    def change_address(self, name: str) -> None:
        """The host gets an address that it never had, whatever the node on it believes."""
        self._address_numbers[name] += 1
        self.hosts.set_address(self.host(name), self._address(name))

    def change_address_back(self, name: str) -> None:
        """Give the host again the address that the node tells others."""
        self.hosts.set_address(self.host(name), self.node(name).listen.rpartition(":")[0])

    def advertise_new_address(self, name: str) -> None:
        """Let the node, from its next start on, tell the address that its host has."""
        moved = replace(self.node(name), listen=f"{self._address(name)}:{LINK_PORT}")
        self.plan = replace(self.plan, nodes=tuple(moved if node.name == name else node for node in self.plan.nodes))
        self._save()

    def _address(self, name: str) -> str:
        return address_of(self.host(name), self._address_numbers[name])

    def unsettled(self) -> str:
        """The reason why these nodes are not one channel as it should be; empty when they are."""
        views = self.look()
        silent = [view.name for view in views if not view.status]
        if silent:
            return f"{silent} do not answer"
        ids = {view.status["node_id"]: view.name for view in views}
        links = {view.name: _neighbours(view, ids) for view in views}
        wanted = min(self.plan.degree, len(views) - 1)
        for view in views:
            mine = links[view.name]
            if view.state != "full" or len(mine) != wanted:
                return f"{view.name} is {view.state} with {len(mine)} of {wanted} neighbours"
            one_sided = [other for other in mine if view.name not in links.get(other, ())]
            if one_sided:
                return f"{view.name} has links to {one_sided} that they have not"
        reached, ahead = set[str](), [views[0].name]
        while ahead:
            name = ahead.pop()
            if name not in reached:
                reached.add(name)
                ahead += links[name]
        return "" if len(reached) == len(views) else f"{sorted(reached)} are apart from the others"

    def check_graph(self) -> None:
        """Check what always holds, by the nodes' own reports: at most `degree` neighbours, and never oneself."""
        for view in self.look():
            if view.status:
                mine = [each["node_id"] for each in view.status["neighbours"]]
                assert len(mine) <= self.plan.degree, f"{view.name} has {len(mine)} neighbours"
                assert view.status["node_id"] not in mine, f"{view.name} is its own neighbour"

    def stop_all(self) -> None:
        """They leave in order; one that does not end by itself has failed."""
        killed = self.down()
        assert not killed, f"{killed} do not end"


def _neighbours(view: NodeView, names: Mapping[str, str]) -> list[str]:
    return [names.get(each["node_id"], each["address"]) for each in view.status["neighbours"]]
