"""A local federation: several local clusters, each a channel of its own, joined by gateways.

It is made from a specification in TOML: channels with their nodes, gatekeepers and rules, and the gateways between
them. The first nodes of a channel are its gatekeepers, NAME.1, NAME.2, ...

    [federation]
    top = 1                     # levels above the channels: 1 for channels side by side

    [[channel]]
    name = "warsaw"
    nodes = 2
    sites = ["harbour", "city"] # of the nodes, in turn; may be left out
    exports = ["orders"]        # as in [[gateway]]: for all gateways of the channel

    [[channel]]
    name = "berlin"
    nodes = 2
    imports = ["orders"]

    [[gateway]]
    from = "berlin.1"           # calls
    to = "warsaw.1"
    level = 1
    wave = 1

The units form as in any federation: each gateway is requested at its `to`, by the unit of its level at `from` if that
unit is alone, else by the gatekeeper for one more link. A unit must be added to another before further units are added
to it, and before it is added to a higher one. A gatekeeper ensures this order for its own gateways. For others, `wave`
does: a gatekeeper starts when the gateways of the waves before its own are up.
"""

import json
import time
import tomllib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from m4cast.cluster.local import LocalCluster
from m4cast.cluster.plan import PlannedNode, planned_nodes, write_plan
from m4cast.cluster.ports import free_ports
from m4cast.overlay.errors import M4castError

FEDERATION_DIR = "m4cast-federation"
FEDERATION_FILE = "federation.json"
CHANNELS_MAX = 64
UP_TIMEOUT_S = 120.0
POLL_S = 0.1
STARTS_AT_ONCE = 4
"""Clusters that are started at a time."""
RULES = ("exports", "imports", "on_demand", "transits", "no_transit", "begin", "bytes_per_s_max", "queue_bytes_max")


@dataclass(frozen=True, slots=True)
class ChannelSpec:
    name: str
    nodes: int
    gatekeepers: int
    sites: tuple[str, ...]
    rules: dict[str, Any]


@dataclass(frozen=True, slots=True)
class GatewaySpec:
    caller: tuple[str, int]
    callee: tuple[str, int]
    level: int
    wave: int = 1


@dataclass(frozen=True, slots=True)
class FederationSpec:
    top: int
    channels: tuple[ChannelSpec, ...]
    gateways: tuple[GatewaySpec, ...]
    tls: bool = False


def read_spec(path: Path) -> FederationSpec:
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise M4castError(f"{path}: cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise M4castError(f"{path}: is not TOML: {error}") from error
    unknown = sorted(content.keys() - {"federation", "channel", "gateway"})
    if unknown:
        raise M4castError(f"{path}: unknown {unknown}: it has [federation], [[channel]] and [[gateway]]")
    try:
        return _spec(content)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise M4castError(f"{path}: is not a federation: {error}: see `m4cast federation up --help`") from error


def _spec(content: dict[str, Any]) -> FederationSpec:
    top = int(content.get("federation", {}).get("top", 1))
    channels = []
    used: dict[str, int] = {}
    gateways = []
    for each in content.get("gateway", []):
        ends = [_end(str(each[name])) for name in ("from", "to")]
        gateways.append(GatewaySpec(ends[0], ends[1], int(each.get("level", 1)), int(each.get("wave", 1))))
        if ends[0][1] == 1 and gateways[-1].wave > 1:
            raise ValueError(f"[[gateway]] from {each['from']} has wave {each['wave']}: the first node starts at once")
        for name, number in ends:
            used[name] = max(used.get(name, 0), number)
    for each in content.get("channel", []):
        name, nodes = str(each["name"]), int(each.get("nodes", 1))
        unknown = sorted(each.keys() - {"name", "nodes", "sites", *RULES})
        if unknown:
            raise ValueError(f"[[channel]] {name!r} has {unknown}; known are name, nodes, sites, {', '.join(RULES)}")
        if not name.replace("-", "").isalnum():
            raise ValueError(f"[[channel]] name {name!r}: use letters, digits and -")
        if used.get(name, 0) > nodes:
            raise ValueError(f"[[gateway]] names {name}.{used[name]}, but {name} has nodes = {nodes}")
        rules = {rule: each[rule] for rule in RULES if rule in each}
        sites = each.get("sites", [])
        if not isinstance(sites, list) or not all(isinstance(site, str) for site in sites):
            raise ValueError(f"[[channel]] {name!r} has sites = {sites!r}: must be a list of texts")
        channels.append(ChannelSpec(name, nodes, max(used.get(name, 0), 1), tuple(sites), rules))
    names = [each.name for each in channels]
    if not 1 <= len(names) <= CHANNELS_MAX or len(set(names)) != len(names):
        raise ValueError(f"1 to {CHANNELS_MAX} [[channel]] tables with different names are needed, not {names}")
    strangers = sorted(used.keys() - set(names))
    if strangers:
        raise ValueError(f"[[gateway]] names {strangers}, but no such [[channel]]: correct the name, or add one")
    return FederationSpec(top, tuple(channels), tuple(gateways), bool(content.get("federation", {}).get("tls", False)))


def _end(text: str) -> tuple[str, int]:
    name, _, number = text.rpartition(".")
    if not name or not number.isdigit() or int(number) < 1:
        raise ValueError(f"{text!r}: a gatekeeper is NAME.NUMBER, from 1 on")
    return name, int(number)


class LocalFederation:
    """The federation in a folder: a folder for each channel's cluster. `make` plans it, `open` reads it."""

    def __init__(
        self, folder: Path, gates: dict[str, list[str]], calls: dict[str, list[str]], waves: dict[str, int]
    ) -> None:
        self.folder = folder
        self.gates = gates
        """Channel -> the addresses of its gatekeepers, in order."""
        self.calls = calls
        """Gatekeeper NAME.NUMBER -> the addresses that it links to."""
        self.waves = waves
        """Gatekeeper NAME.NUMBER -> the wave in which it starts; those that are not listed start in the first."""
        self.clusters = {name: LocalCluster.open(folder / name) for name in gates}

    @classmethod
    def make(
        cls, folder: Path, spec: FederationSpec, *, node_settings: dict[str, Any] | None = None
    ) -> "LocalFederation":
        if (folder / FEDERATION_FILE).exists():
            raise M4castError(f"{folder}: already has a federation: start it with `up` alone, or choose another folder")
        folder.mkdir(parents=True, exist_ok=True)
        nodes: list[PlannedNode] = []
        clusters: dict[str, LocalCluster] = {}
        for channel in spec.channels:
            cluster = LocalCluster.make(
                folder / channel.name,
                channel.nodes,
                tls=spec.tls,
                cluster_settings={"channel_instance": channel.name},
                node_settings=node_settings,
                sites=channel.sites,
            )
            clusters[channel.name] = cluster
            cluster.plan = replace(cluster.plan, nodes=planned_nodes(cluster.names(), nodes))
            nodes += cluster.plan.nodes
        taken = {address for node in nodes for address in (node.listen, node.door, node.http, node.web)}
        ports = iter(free_ports(sum(channel.gatekeepers for channel in spec.channels), taken))
        gates = {channel.name: [next(ports) for _ in range(channel.gatekeepers)] for channel in spec.channels}
        calls: dict[str, list[str]] = {}
        for channel in spec.channels:
            more = {}
            for number in range(1, channel.gatekeepers + 1):
                tables, linked = _tables(spec, channel, number, gates)
                more[f"n{number}"] = tables
                calls[f"{channel.name}.{number}"] = linked
            cluster = clusters[channel.name]
            cluster.plan = replace(cluster.plan, more=more)
            write_plan(cluster.folder, cluster.plan)
        waves: dict[str, int] = {}
        for gateway in spec.gateways:
            if gateway.wave > 1:
                caller = f"{gateway.caller[0]}.{gateway.caller[1]}"
                waves[caller] = max(gateway.wave, waves.get(caller, 1))
        text = json.dumps({"version": 1, "gates": gates, "calls": calls, "waves": waves}, indent=2)
        (folder / FEDERATION_FILE).write_text(text + "\n", encoding="utf-8")
        return cls(folder, gates, calls, waves)

    @classmethod
    def open(cls, folder: Path) -> "LocalFederation":
        try:
            stored = json.loads((folder / FEDERATION_FILE).read_text(encoding="utf-8"))
            return cls(folder, stored["gates"], stored["calls"], stored.get("waves", {}))
        except FileNotFoundError:
            raise M4castError(
                f"{folder}: has no federation: make one with `m4cast federation up --spec FILE`"
            ) from None
        except (OSError, ValueError, KeyError) as error:
            raise M4castError(f"{folder / FEDERATION_FILE}: cannot be read: {error!r}") from error

    def up(self, on_progress: Callable[[int, int], None] | None = None) -> None:
        """Start all clusters, and wait until every gateway is up. If that fails, nothing is left running."""
        done = 0

        def start(name: str) -> None:
            nonlocal done
            cluster = self.clusters[name]
            early = [node for node in cluster.names() if self._wave(name, node) == 1]
            if len(early) == len(cluster.names()):
                cluster.up()
            else:
                cluster.start(*early)
            done += 1
            if on_progress is not None:
                on_progress(done, len(self.clusters))

        try:
            with ThreadPoolExecutor(STARTS_AT_ONCE) as pool:
                list(pool.map(start, self.clusters))
            self.until_linked(1)
            for wave in sorted(set(self.waves.values())):
                for name, cluster in self.clusters.items():
                    if late := [node for node in cluster.names() if self._wave(name, node) == wave]:
                        cluster.start(*late)
                self.until_linked(wave)
        except BaseException:
            self.down()
            raise

    def _wave(self, channel: str, node: str) -> int:
        return self.waves.get(f"{channel}.{node.removeprefix('n')}", 1)

    def until_linked(self, wave: int | None = None, timeout_s: float = UP_TIMEOUT_S) -> None:
        """Wait until the gateways are up, or those up to a wave."""
        deadline = time.monotonic() + timeout_s
        while missing := self.missing(wave):
            if time.monotonic() > deadline:
                raise M4castError(
                    f"these gateways did not come up in {timeout_s:.0f} s: {', '.join(missing)}: see the logs in "
                    f"{self.folder}"
                )
            time.sleep(POLL_S)

    def missing(self, wave: int | None = None) -> list[str]:
        """Links that are not up, as `caller -> address`; those up to a wave, if one is named."""
        found = []
        for caller, addresses in self.calls.items():
            if wave is not None and self.waves.get(caller, 1) > wave:
                continue
            linked: dict[str, None] = {}
            with suppress(M4castError):
                view = self.units(caller)
                linked = dict.fromkeys(link["address"] for link in view["links"] if link["level"] is not None)
            found += [f"{caller} -> {address}" for address in addresses if address not in linked]
        return found

    def units(self, gatekeeper: str) -> dict[str, Any]:
        """The report of the gatekeeper NAME.NUMBER."""
        name, number = _end(gatekeeper)
        if name not in self.clusters:
            raise M4castError(f"there is no channel {name!r}: there are {', '.join(self.clusters)}")
        return self.clusters[name].channel(f"n{number}", timeout_s=5).units()

    def down(self) -> None:
        with ThreadPoolExecutor(STARTS_AT_ONCE) as pool:
            list(pool.map(lambda cluster: cluster.down(), self.clusters.values()))


def _tables(
    spec: FederationSpec, channel: ChannelSpec, number: int, gates: dict[str, list[str]]
) -> tuple[str, list[str]]:
    """The tables of a gatekeeper, and the addresses that it links to."""
    own = gates[channel.name]
    lines = ["\n[federation]", f"listen = {json.dumps(own[number - 1])}", f"top = {spec.top}"]
    linked = []
    if number > 1:
        lines.append(f"join = {json.dumps(own[0])}")
        linked.append(own[0])
    peers: dict[str, GatewaySpec | None] = {}
    for gateway in spec.gateways:
        if gateway.caller == (channel.name, number):
            address = gates[gateway.callee[0]][gateway.callee[1] - 1]
            linked.append(address)
            lines += _gateway(spec, channel, gateway.callee[0], address, gateway.level)
            peers[gateway.callee[0]] = gateway
        if gateway.callee == (channel.name, number):
            peers.setdefault(gateway.caller[0], None)
    for peer, called in peers.items():
        if called is None:
            lines += _gateway(spec, channel, peer, "", 1)
    return "\n".join(lines) + "\n", linked


def _gateway(spec: FederationSpec, channel: ChannelSpec, peer: str, address: str, level: int) -> list[str]:
    settings: dict[str, Any] = {"channel": f"m4cast/{peer}", "address": address, "level": level, **channel.rules}
    if spec.tls:
        settings["ca"] = f"../../{peer}/certs/ca.crt"
    return ["\n[[gateway]]", *(f"{name} = {json.dumps(value)}" for name, value in settings.items())]
