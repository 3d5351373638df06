"""The plan of a local cluster, and the files that follow from it.

    cluster.json        the plan: the nodes with their ports, and the settings that they share
    NAME/node.toml      a node's configuration, generated from the plan
    certs/              of a cluster with TLS: its CA, a certificate for each node and one for clients

Ports are chosen when the cluster is planned and then stay the same, outside the range that the system uses for outgoing
connections, so that a node finds its ports free when it is started again.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from m4cast.cluster.ports import free_ports
from m4cast.overlay.errors import M4castError

PLAN_FILE = "cluster.json"
PLAN_VERSION = 1
NODES_MAX = 64
PORTALS = 2
CLIENT = "client"
Setting = str | int | bool


@dataclass(frozen=True, slots=True)
class PlannedNode:
    name: str
    listen: str
    door: str
    http: str
    web: str = ""
    """Absent in plans of earlier versions, whose nodes have no web door."""
    site: str = ""


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    nodes: tuple[PlannedNode, ...]
    cluster: Mapping[str, Setting] = field(default_factory=dict)
    """Settings in the [cluster] table of all nodes."""
    node: Mapping[str, Setting] = field(default_factory=dict)
    """Settings in the [node] table of all nodes."""
    tls: bool = False
    more: Mapping[str, str] = field(default_factory=dict)
    """Further tables in the file of a node, by its name; absent in plans of earlier versions."""

    def portals(self) -> list[str]:
        return [node.listen for node in self.nodes[:PORTALS]]

    @property
    def degree(self) -> int:
        return int(self.cluster["degree"])


def planned_nodes(
    names: Sequence[str], beside: Sequence[PlannedNode] = (), sites: Sequence[str] = ()
) -> tuple[PlannedNode, ...]:
    """New nodes on ports that are free and that no node in `beside` has; they are at these sites in turn."""
    taken = {address for node in beside for address in (node.listen, node.door, node.http, node.web)}
    ports = iter(free_ports(4 * len(names), taken))
    return tuple(
        PlannedNode(
            name=name,
            listen=next(ports),
            door=next(ports),
            http=next(ports),
            web=next(ports),
            site=sites[at % len(sites)] if sites else "",
        )
        for at, name in enumerate(names)
    )


def read_plan(folder: Path) -> ClusterPlan:
    path = folder / PLAN_FILE
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise M4castError(f"{folder}: there is no cluster here: create one with `m4cast cluster up`") from None
    except (OSError, ValueError) as error:
        raise M4castError(f"{path}: cannot be read: {error}") from error
    version = stored.get("version") if isinstance(stored, dict) else None
    if version != PLAN_VERSION:
        raise M4castError(
            f"{path}: has format version {version!r}, but this m4cast reads version {PLAN_VERSION}: "
            "use the m4cast that created it, or another folder"
        )
    try:
        nodes = tuple(PlannedNode(**node) for node in stored["nodes"])
        plan = ClusterPlan(
            nodes, dict(stored["cluster"]), dict(stored["node"]), bool(stored["tls"]), dict(stored.get("more", {}))
        )
        assert nodes and isinstance(plan.degree, int)
    except (KeyError, TypeError, ValueError, AssertionError) as error:
        raise M4castError(f"{path}: is not the plan of a cluster: {error!r}") from error
    return plan


def write_plan(folder: Path, plan: ClusterPlan) -> None:
    """Write the plan atomically, after the configurations that follow from it."""
    for node in plan.nodes:
        (folder / node.name).mkdir(exist_ok=True)
        settings: dict[str, object] = {
            "name": node.name,
            "listen": node.listen,
            "door": node.door,
            "http": node.http,
            "web": node.web,
            "site": node.site,
            "portals": plan.portals(),
            **_protection(plan, node.name),
            **plan.node,
        }
        conf = f"[cluster]\n{_toml(plan.cluster)}\n[node]\n{_toml(settings)}{plan.more.get(node.name, '')}"
        write_atomically(conf_file(folder, node.name), conf)
    write_atomically(folder / PLAN_FILE, json.dumps({"version": PLAN_VERSION, **asdict(plan)}, indent=2) + "\n")


def conf_file(folder: Path, name: str) -> Path:
    return folder / name / "node.toml"


def _protection(plan: ClusterPlan, name: str) -> dict[str, Setting]:
    if not plan.tls:
        return {"insecure": True}
    return {"tls_ca": "../certs/ca.crt", "tls_cert": f"../certs/{name}.crt", "tls_key": f"../certs/{name}.key"}


def _toml(settings: Mapping[str, object]) -> str:
    # For strings, numbers, booleans and lists of strings, JSON is valid TOML.
    return "".join(f"{name} = {json.dumps(value)}\n" for name, value in settings.items())


def make_certificates(folder: Path, names: Sequence[str], *, with_ca: bool) -> None:
    """Make the certificates of nodes; `with_ca` makes the CA and the clients' certificate first."""
    from m4cast.overlay.net.certificates import make_ca, make_client_certificate, make_node_certificate

    certs = folder / "certs"
    if with_ca:
        certs.mkdir()
        make_ca(certs)
        make_client_certificate(certs, CLIENT)
    for name in names:
        make_node_certificate(certs, name)


def client_credentials(folder: Path) -> dict[str, str]:
    """The files that a client of a cluster with TLS needs: `ca`, `cert` and `key`."""
    certs = folder.resolve() / "certs"
    paths = {"ca": certs / "ca.crt", "cert": certs / f"{CLIENT}.crt", "key": certs / f"{CLIENT}.key"}
    return {name: str(path) for name, path in paths.items()}


def write_atomically(path: Path, text: str) -> None:
    new = path.with_name(path.name + ".new")
    with new.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
