"""Settings: `ClusterConfig` must agree on all nodes of a channel, `NodeConfig` belongs to one node.

Every setting is declared once, by `setting(...)`, with its default, what is allowed, what raising it costs and where
the default comes from: "seed" (the patents' broadcast channel), "measured" (a benchmark) or "guess" (reasoned, not yet
measured). The names of quantities end in their unit. `conf/cluster.toml` and `conf/node.toml` show the same facts to
operators; a test keeps them equal.

A config that exists is valid: construction checks every field and the rules between fields, and raises one
`ConfigError` that names all that is wrong. The loaders add the file to it. Two nodes compare cluster settings in their
hello (`check_agreement`); a difference is refused by the setting's name before anything else happens.

Reason: the file is long because it has every setting, each with its facts, and nothing else.
"""

from dataclasses import dataclass, fields
from typing import Literal

from m4cast.overlay.config.settings import (
    ADDRESSES,
    FLAG,
    HOSTS,
    LISTEN_ADDRESS,
    OPTIONAL_ADDRESS,
    OPTIONAL_LISTEN_ADDRESS,
    ORIGINS,
    PATH,
    PORTS,
    REFERENCE,
    TOPIC_FILTERS,
    TopicFilter,
    field_problems,
    matching,
    one_of,
    refuse,
    setting,
    text,
    whole,
)

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB
HOUR_MS = 3_600_000

StartFrom = Literal["earliest", "latest"]
PortalShuffle = Literal["off", "first-8", "weighted"]


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    """Settings on which all nodes of a channel must agree."""

    channel_type: str = setting(
        "m4cast",
        "First part of the channel's name: the kind of channel.",
        allowed=text(1, 200),
        cost="nothing; nodes with another name are on another channel",
        source="seed",
    )
    channel_instance: str = setting(
        "default",
        "Second part of the channel's name: which one of its kind.",
        allowed=text(1, 200),
        cost="nothing; an unguessable one keeps strangers from finding the channel",
        source="seed",
    )
    channel_ports: str = setting(
        "2057-65535",
        "Ports on which nodes search for the channel (portal_hosts), in an order that follows from its name.",
        allowed=PORTS,
        cost="nothing; fewer ports are easier to reserve for the channel, and easier to find by trying them all",
        source="seed",
    )
    degree: int = setting(
        4,
        "Neighbours of a node. Up to one node more than this form a complete graph; more form a regular one.",
        allowed=whole(3, 64),
        cost="more copies of each pushed batch and more work per join; fewer hops, and more failures are survived",
        source="seed",
    )
    batch_bytes_max: int = setting(
        16 * MIB,
        "Largest payload of one batch.",
        allowed=whole(KIB, 256 * MIB),
        cost="memory: each queue and window holds at least one batch; a large one delays those behind it on a link",
        source="guess",
    )
    heartbeat_interval_ms: int = setting(
        1_000,
        "How often an idle link sends a heartbeat.",
        allowed=whole(50, 60_000),
        cost="failures and lost last batches are noticed later; lowering it costs idle traffic on every link",
        source="guess",
    )
    heartbeat_timeout_ms: int = setting(
        5_000,
        "Silence after which a neighbour counts as failed; at least twice heartbeat_interval_ms.",
        allowed=whole(100, 600_000),
        cost="failures are noticed later; lowering it drops neighbours that are only slow",
        source="guess",
    )
    beacon_interval_ms: int = setting(
        5_000,
        "The shortest interval at which a node announces itself to the whole channel.",
        allowed=whole(100, 3_600_000),
        cost="the roster is older and a split channel heals later; lowering it costs a flood per node and interval",
        source="guess",
    )
    beacon_ms_per_node: int = setting(
        100,
        "The beacon interval is at least this times the number of nodes.",
        allowed=whole(0, 60_000),
        cost="as beacon_interval_ms, in proportion to the nodes; 0 lets the channel's beacon traffic grow with them",
        source="guess",
    )

    def __post_init__(self) -> None:
        problems = field_problems(self)
        if not problems and self.heartbeat_timeout_ms < 2 * self.heartbeat_interval_ms:
            problems.append(
                f"heartbeat_timeout_ms = {self.heartbeat_timeout_ms}: must be at least twice heartbeat_interval_ms "
                f"(2 x {self.heartbeat_interval_ms}), else one late heartbeat drops a neighbour"
            )
        refuse(problems)

    def settings(self) -> dict[str, str | int]:
        """All settings by name, as a hello carries them."""
        return {config_field.name: getattr(self, config_field.name) for config_field in fields(self)}


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """Settings of one node."""

    name: str = setting(
        "node",
        "Name of the node, for people; need not be unique. A node with certificates must have the name in its "
        "certificate.",
        allowed=matching("[a-z0-9-]{1,32}", "1 to 32 of a-z, 0-9 and -"),
        cost="nothing",
        source="guess",
    )
    site: str = setting(
        "",
        "The place (data centre, team, cluster) that the node serves.",
        allowed=text(0, 200),
        cost="nothing",
        source="guess",
    )
    listen: str = setting(
        "127.0.0.1:7400",
        "Where the node answers other nodes.",
        allowed=LISTEN_ADDRESS,
        cost="nothing; an address that others can reach lets them in",
        source="guess",
    )
    advertise: str = setting(
        "",
        "Where other nodes reach this one, if not at `listen`; needed when it listens on all addresses.",
        allowed=OPTIONAL_ADDRESS,
        cost="nothing",
        source="guess",
    )
    door: str = setting(
        "127.0.0.1:7500",
        "Where clients reach the node (Arrow Flight); empty for a node without clients.",
        allowed=OPTIONAL_LISTEN_ADDRESS,
        cost="nothing; an address that others can reach lets them in",
        source="guess",
    )
    advertise_door: str = setting(
        "",
        "Where clients reach the door, if not at `door`; if `door` is on all addresses, by default the host of "
        "`advertise`.",
        allowed=OPTIONAL_ADDRESS,
        cost="nothing; it is reported to the readers of all nodes",
        source="guess",
    )
    tls_ca: str = setting(
        "",
        "The cluster's CA certificate(s), in PEM. Relative paths begin at the folder of this file.",
        allowed=PATH,
        cost="nothing; anyone with a node certificate of these CAs can join",
        source="guess",
    )
    tls_cert: str = setting(
        "",
        "The node's certificate, in PEM; it names the node (m4cast certs node).",
        allowed=PATH,
        cost="CPU for every byte on links and at the door",
        source="guess",
    )
    tls_key: str = setting(
        "",
        "The key of tls_cert, in PEM, not encrypted.",
        allowed=PATH,
        cost="nothing; only the node should be able to read it",
        source="guess",
    )
    insecure: bool = setting(
        False,
        "Run without certificates: links and door are plain TCP.",
        allowed=FLAG,
        cost="anyone who can reach the node can read, publish, and pose as a node",
        source="guess",
    )
    trust_store: bool = setting(
        False,
        "Publish although no node that knew this one before can be reached (m4cast node --trust-store sets it once).",
        allowed=FLAG,
        cost="if the store is an older copy after all, new rows get numbers that other rows already have: a fork",
        source="guess",
    )
    tokens: str = setting(
        "",
        "Tokens of clients and their rights (TOML, see docs/SECURITY.md); empty: clients need a certificate of tls_ca.",
        allowed=REFERENCE,
        cost="nothing; clients need a token, and no certificate",
        source="guess",
    )
    http: str = setting(
        "127.0.0.1:7600",
        "Where the node serves its state by plain HTTP (/metrics, /healthz, /readyz, /topology); empty: nowhere.",
        allowed=OPTIONAL_LISTEN_ADDRESS,
        cost="nothing; anyone who can reach the address can read names of nodes and readers, so choose an internal one",
        source="guess",
    )
    metrics_topics_max: int = setting(
        0,
        "How many topics have metrics of their own, by name: those with the most stored bytes; 0: none.",
        allowed=whole(0, 1000),
        cost="two series per topic, and a check of every stream per scrape; anyone who can reach `http` sees their "
        "names",
        source="guess",
    )
    web: str = setting(
        "",
        "Where clients reach the node by HTTP and WebSocket (docs/HTTP.md); empty: not at all.",
        allowed=OPTIONAL_LISTEN_ADDRESS,
        cost="a few threads; an address that others can reach lets them in, with the tokens and certificates of `door`",
        source="guess",
    )
    web_origins: tuple[str, ...] = setting(
        (),
        "Origins of the web pages from which browsers may use the web door; empty: none.",
        allowed=ORIGINS,
        cost="nothing; a page of such an origin can read and do whatever its visitors can",
        source="guess",
    )
    linger_ms: int = setting(
        5,
        "How long small unkeyed publishes wait after a batch, to share the next one; 0: each is a batch of its own.",
        allowed=whole(0, 1_000),
        cost="answers are later under load; lowering it makes more batches, which every node has to handle",
        source="guess",
    )
    portals: tuple[str, ...] = setting(
        (),
        "Nodes through which this one finds the channel.",
        allowed=ADDRESSES,
        cost="a longer search when the first ones cannot be reached; more ways to find the channel",
        source="seed",
    )
    portal_hosts: tuple[str, ...] = setting(
        (),
        "Hosts on which the node searches for the channel, at its first ports; port 0 in `listen` takes one of these "
        "ports.",
        allowed=HOSTS,
        cost="portal_depth calls to each of them while no node answers; no port has to be agreed on",
        source="seed",
    )
    portal_depth: int = setting(
        8,
        "How many ports of the channel's order are tried on each of portal_hosts.",
        allowed=whole(1, 256),
        cost="a longer search, which looks like a port scan to network monitoring; finds more nodes of one host",
        source="guess",
    )
    portal_shuffle: PortalShuffle = setting(  # noqa: RUF009 - a literal is immutable, which ruff sees only for str and int
        "off",
        "The order in which the first 8 of these ports are tried: unchanged, random, or random with the first ones "
        "favoured.",
        allowed=one_of("off", "first-8", "weighted"),
        cost="more calls before the first answer; nodes that join at the same time do not all call the same node first",
        source="seed",
    )
    strict_portal: bool = setting(
        False,
        "Bring newcomers in without becoming their neighbour, if the channel is larger than a complete graph.",
        allowed=FLAG,
        cost="newcomers get edges that are at least one step away from this node; they do not fill its holes",
        source="seed",
    )
    passive_max: int = setting(
        1_024,
        "Addresses of other nodes that are remembered, to find the channel again after all neighbours have failed.",
        allowed=whole(0, 20_000),
        cost="a little memory each; with fewer, parts that a large failure separated may stay apart; with 0, only "
        "portals join them",
        source="guess",
    )
    flip_interval_ms: int = setting(
        0,
        "How often this node exchanges one of its edges for another at random, to mix the graph; 0 is never.",
        allowed=whole(0, HOUR_MS),
        cost="an unfavourable graph stays so for longer; each exchange costs three calls and two exchanges of holdings",
        source="guess",
    )
    store_bytes_max: int = setting(
        64 * GIB,
        "Largest size of the store's file. Publishes are refused before it is full.",
        allowed=whole(16 * MIB, 16 * 1024 * GIB),
        cost="disk space; the file never shrinks, but space that retention frees is reused",
        source="guess",
    )
    retention_bytes: int = setting(
        0,
        "How many bytes of a topic are retained, over all its origins; 0 is no limit. A topic can have its own "
        "setting.",
        allowed=whole(0, 16 * 1024 * GIB),
        cost="disk space; if it is lowered, readers and nodes that lag by more lose rows",
        source="guess",
    )
    retention_ms: int = setting(
        7 * 24 * HOUR_MS,
        "How long rows of a topic are retained; 0 is for ever. A topic can have its own setting.",
        allowed=whole(0, 100 * 366 * 24 * HOUR_MS),
        cost="disk space; if it is lowered, readers and nodes that were away for longer lose rows",
        source="guess",
    )
    sync_linger_ms: int = setting(
        0,
        "How long a small group of writes waits for more before it is synced.",
        allowed=whole(0, 1_000),
        cost="latency; 5 saves 40 % of the CPU at 1,000 small batches a second",
        source="measured",
    )
    start_from: StartFrom = setting(  # noqa: RUF009 - a literal is immutable, which ruff sees only for str and int
        "earliest",
        "Which past rows a new node fetches: all that are still retained, or none.",
        allowed=one_of("earliest", "latest"),
        cost='"earliest" pulls every retained batch once when the node is new',
        source="guess",
    )
    acks: int = setting(
        0,
        "Number of other nodes that must have a batch on disk before its publish is acknowledged, unless the call sets "
        "it.",
        allowed=whole(0, 64),
        cost="publishing waits for the slowest of these nodes, and stops when there are fewer",
        source="guess",
    )
    push_bytes_max: int = setting(
        64 * KIB,
        "Batches of other nodes up to this size are pushed on to all neighbours; larger ones are announced and pulled.",
        allowed=whole(0, 16 * MIB),
        cost="about three more copies per delivery of a pushed batch; saves the round trip of a pull",
        source="measured",
    )
    hold_back_bytes_max: int = setting(
        32 * MIB,
        "Bytes of batches kept while earlier ones of their streams are missing; beyond it, the farthest ahead are "
        "dropped.",
        allowed=whole(KIB, 4 * GIB),
        cost="memory, all of it when a stream has a gap; if it is lowered, batches are fetched twice",
        source="guess",
    )
    link_queue_bytes_max: int = setting(
        8 * MIB,
        "Bytes waiting to be sent to one neighbour; beyond it, batches are only announced.",
        allowed=whole(KIB, GIB),
        cost="memory per slow neighbour, and new data waits behind older data",
        source="measured",
    )
    recent_bytes_max: int = setting(
        16 * MIB,
        "Bytes of announced batches kept in memory for neighbours that pull them; others are read from the disk.",
        allowed=whole(0, GIB),
        cost="memory; if it is lowered, large batches are read once for each neighbour",
        source="measured",
    )
    pull_window_bytes: int = setting(
        4 * MIB,
        "Bytes requested from one neighbour and not yet received.",
        allowed=whole(KIB, GIB),
        cost="the neighbour's send queue; lowering it makes catch-up wait for round trips",
        source="guess",
    )
    publish_window_bytes: int = setting(
        16 * MIB,
        "Bytes that this node has published and its neighbours do not have on disk yet; beyond it, publishers wait.",
        allowed=whole(KIB, GIB),
        cost="latency in proportion and memory; throughput gains little past 8 MiB",
        source="measured",
    )
    publish_queue_max: int = setting(
        1_024,
        "Publishes waiting for the window; beyond it, publishes are refused.",
        allowed=whole(1, 1_000_000),
        cost="memory, and publishers learn later that they are too fast",
        source="guess",
    )
    undurable_bytes_max: int = setting(
        64 * MIB,
        "Bytes handed to the disk that it has not confirmed yet.",
        allowed=whole(KIB, 4 * GIB),
        cost="memory when the disk is slow, and more to fetch again after a crash",
        source="guess",
    )
    call_timeout_ms: int = setting(
        3_000,
        "How long a call to another node may take.",
        allowed=whole(10, 600_000),
        cost="joins and repairs wait longer for a node that is dead; lowering it gives up on slow ones",
        source="guess",
    )
    walk_timeout_ms: int = setting(
        3_000,
        "How long a walk in search of an edge may take before another is sent.",
        allowed=whole(10, 600_000),
        cost="a hole stays open longer when a walk is lost; lowering it sends walks that are not needed",
        source="guess",
    )
    pull_timeout_ms: int = setting(
        2_000,
        "How long a pulled batch may take before the next holder is asked.",
        allowed=whole(10, 600_000),
        cost="delivery waits longer for a failed holder; lowering it fetches large batches twice",
        source="guess",
    )
    search_wait_ms: int = setting(
        300,
        "How long the answers to a flooded search are collected.",
        allowed=whole(1, 60_000),
        cost="every search takes longer; lowering it misses distant answers",
        source="guess",
    )
    seek_retry_ms: int = setting(
        1_000,
        "How long a node that found no portal waits before it tries again.",
        allowed=whole(10, 600_000),
        cost="joins start later; lowering it costs calls to portals that cannot be reached",
        source="guess",
    )
    holder_search_ms: int = setting(
        2_000,
        "How long a missing range is requested from neighbours before the channel is searched for a holder.",
        allowed=whole(10, 600_000),
        cost="gaps that no neighbour can fill last longer; lowering it floods searches that are not needed",
        source="guess",
    )
    stage_expire_ms: int = setting(
        HOUR_MS,
        "How long staged payload waits for its commit before it is removed.",
        allowed=whole(1_000, 7 * 24 * HOUR_MS),
        cost="disk space for abandoned publishes; if it is lowered, late commits fail",
        source="guess",
    )
    publisher_bytes_max: int = setting(
        64 * MIB,
        "Memory that the publisher keys of this node may take; beyond it, new keys are refused.",
        allowed=whole(MIB, 4 * GIB),
        cost="memory; a key counts as 1 KiB, more with long texts or many topics, so the default is 65,536 keys",
        source="guess",
    )
    client_publisher_bytes_max: int = setting(
        16 * MIB,
        "How much of publisher_bytes_max the keys of one client (by token, or by address without tokens) may take.",
        allowed=whole(KIB, 4 * GIB),
        cost="a client that makes too many keys leaves less for the others",
        source="guess",
    )
    publisher_expire_ms: int = setting(
        90 * 24 * HOUR_MS,
        "A publisher key that is not used for this long, while the node is up, is removed.",
        allowed=whole(24 * HOUR_MS, 100 * 366 * 24 * HOUR_MS),
        cost="keys of publishers that have ended stay for longer; if it is lowered, a late retry can be published "
        "twice",
        source="guess",
    )
    topics_max: int = setting(
        10_000,
        "Number of topics that may be published at this node.",
        allowed=whole(1, 1_000_000),
        cost="memory and disk at every node of the channel, for ever: a topic's numbering is never forgotten",
        source="guess",
    )
    client_topics_max: int = setting(
        2_500,
        "How many of topics_max one client (by token, or by address without tokens) may create.",
        allowed=whole(1, 1_000_000),
        cost="a client that makes too many topics leaves fewer for the others",
        source="guess",
    )
    seen_searches_max: int = setting(
        4_096,
        "Number of flooded statements that are remembered, to drop further copies of them.",
        allowed=whole(16, 1_000_000),
        cost="a little memory each; if it is lowered, old floods can circulate again",
        source="guess",
    )
    subscribe: tuple[TopicFilter, ...] = setting(
        (),
        "Rows that this node wants: [[subscribe]] tables, each with a topic and, unless all its rows, a condition "
        "(where).",
        allowed=TOPIC_FILTERS,
        cost="every node of the channel stores and passes on these registrations",
        source="guess",
    )
    registrations_max: int = setting(
        100_000,
        "Registrations at this node, those of `subscribe` included, and, counted apart, its clients; more are refused.",
        allowed=whole(1, 200_000),
        cost="memory at every node of the channel, about 1 KiB each",
        source="guess",
    )
    interest_changes_max: int = setting(
        256,
        "Number of nodes with changed interest at which the changes are passed on at once.",
        allowed=whole(1, 1_000_000),
        cost="changes wait for interest_delay_ms; lowering it sends more and smaller messages when much changes",
        source="guess",
    )
    interest_delay_ms: int = setting(
        100,
        "How long a change of interest waits for others before it is passed on.",
        allowed=whole(0, 60_000),
        cost="a change takes longer per hop while others are under way; lowering it sends more messages",
        source="guess",
    )
    interest_quiet_ms: int = setting(
        100,
        "A change of interest is passed on at once if no other was passed on in this time.",
        allowed=whole(0, HOUR_MS),
        cost="single changes wait for interest_delay_ms; lowering it sends more messages when much changes",
        source="guess",
    )
    interest_hierarchy: bool = setting(
        True,
        "Announce only registrations that no other one covers; false announces every distinct one, for comparison.",
        allowed=FLAG,
        cost="registrations are compared with each other; false announces more, and widens them sooner",
        source="guess",
    )
    clock_skew_ms: int = setting(
        60_000,
        "By how much the clocks of nodes may differ. A registration on a selective topic that begins with the latest "
        "rows begins this much earlier in streams whose beginning its node requests from this node.",
        allowed=whole(0, HOUR_MS),
        cost="more rows from before the registration; if clocks differ by more, rows published before it was active "
        "may be missed",
        source="guess",
    )

    def __post_init__(self) -> None:
        problems = field_problems(self)
        if not problems and not self.advertise and self.listen.startswith(("0.0.0.0:", "[::]:")):
            problems.append(
                f"listen = {self.listen!r}: stands for all addresses of the host, which no node can dial: "
                "set advertise to the one that other nodes reach"
            )
        if not problems and self.portal_hosts and self.advertise and self.listen.endswith(":0"):
            problems.append(
                f"advertise = {self.advertise!r}: the port follows from the channel's order (portal_hosts, port 0 in "
                "listen): leave it out, and name the address that other nodes reach in listen"
            )
        refuse(problems)

    @property
    def advertised(self) -> str:
        """The address at which other nodes reach this one."""
        return self.advertise or self.listen

    @property
    def advertised_door(self) -> str:
        """The address at which clients reach this node; empty if unknown: no door, or a door at any free port."""
        host, _, port = self.door.rpartition(":")
        if self.advertise_door or port == "0":
            return self.advertise_door
        if host in ("0.0.0.0", "[::]"):
            return f"{self.advertised.rpartition(':')[0]}:{port}"
        return self.door
