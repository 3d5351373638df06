"""Settings of a node that takes part in a federation: a table [federation] and any number of [[gateway]] tables.

A channel without them is not part of a federation. The nodes of a channel that have a [federation] are its gatekeepers.
A [[gateway]] describes how one other channel is reached, which CA its gatekeepers have certificates of, and which
topics may cross in either direction. A topic that no rule names does not cross.
"""

from dataclasses import dataclass
from datetime import UTC, datetime

from m4cast.overlay.config.settings import (
    LISTEN_ADDRESS,
    OPTIONAL_ADDRESS,
    PATH,
    Allowed,
    field_problems,
    refuse,
    setting,
    text,
    whole,
)

ALL_TOPICS = "*"
ANY_CHANNEL = "*"
EARLIEST = "earliest"
GATEWAYS_MAX = 64
TOPICS_MAX = 1_000
HOSTS_MAX = 1_000
KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB


def _are_topics(value: object) -> bool:
    return (
        isinstance(value, tuple)
        and len(value) <= TOPICS_MAX
        and all(isinstance(topic, str) and 1 <= len(topic.encode()) <= 200 for topic in value)
    )


def begin_ms(value: str) -> int:
    """The time that a `begin` names, in milliseconds; 0: all that is retained. `ValueError` if it names none."""
    if value == EARLIEST:
        return 0
    moment = datetime.fromisoformat(value)
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def _is_begin(value: object) -> bool:
    try:
        return isinstance(value, str) and begin_ms(value) >= 0
    except ValueError:
        return False


HOSTS = Allowed(
    f"at most {HOSTS_MAX} beginnings of addresses, of 1 to 255 bytes",
    lambda value: (
        isinstance(value, tuple)
        and len(value) <= HOSTS_MAX
        and all(isinstance(host, str) and 1 <= len(host.encode()) <= 255 for host in value)
    ),
)
TOPICS = Allowed(f'at most {TOPICS_MAX} topics of 1 to 200 bytes; "*" is all but those that begin with _', _are_topics)
NAMED_TOPICS = Allowed(
    f'at most {TOPICS_MAX} topics of 1 to 200 bytes, each by its name: "*" is for exports and transits',
    lambda value: _are_topics(value) and ALL_TOPICS not in value,
)
BEGIN = Allowed('"earliest" or a time such as "2026-11-18T00:00:00Z"', _is_begin)
CHANNEL = Allowed(
    'the other channel\'s name "type/instance", or "*" for any',
    lambda value: isinstance(value, str) and (value == ANY_CHANNEL or "/" in value) and len(value.encode()) <= 401,
)
GATEWAYS = Allowed(
    f"at most {GATEWAYS_MAX} [[gateway]] tables",
    lambda value: (
        isinstance(value, tuple)
        and len(value) <= GATEWAYS_MAX
        and all(isinstance(each, GatewayConfig) for each in value)
    ),
)


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    """The topics that may cross between this channel and another one, and the address of the other one."""

    channel: str = setting(
        ANY_CHANNEL,
        "Name of the channel at the other end; links with any other channel need a [[gateway]] of their own.",
        allowed=CHANNEL,
        cost='nothing; "*" lets in every channel whose gatekeepers have certificates of `ca`',
        source="guess",
    )
    address: str = setting(
        "",
        "The `listen` of a gatekeeper of the other channel, to which this node connects; empty: they connect to this "
        "node.",
        allowed=OPTIONAL_ADDRESS,
        cost="nothing",
        source="guess",
    )
    level: int = setting(
        1,
        "The level of the gateway: 1 between two channels of one unit, 2 between two such units, and so on.",
        allowed=whole(1, 7),
        cost="nothing; it follows from where the two channels are in the federation",
        source="seed",
    )
    ca: str = setting(
        "",
        "The CA certificate(s) of the other channel, in PEM; only for nodes with certificates.",
        allowed=PATH,
        cost="nothing; anyone with a node certificate of these CAs can connect here, as a gateway only",
        source="guess",
    )
    exports: tuple[str, ...] = setting(
        (),
        "Topics whose rows may leave by this gateway, of streams that were published on this channel.",
        allowed=TOPICS,
        cost="every row of these topics can be read in the other channel, whether this channel's doors allow it or not",
        source="guess",
    )
    imports: tuple[str, ...] = setting(
        (),
        "Broadcast topics of other channels that every node of this channel stores completely.",
        allowed=NAMED_TOPICS,
        cost="disk and traffic of every node of this channel",
        source="guess",
    )
    on_demand: tuple[str, ...] = setting(
        (),
        "Topics of other channels whose rows are sent here when a node or a client of this channel wants them.",
        allowed=NAMED_TOPICS,
        cost="wants of this channel are announced to the units beside it",
        source="guess",
    )
    transits: tuple[str, ...] = setting(
        (),
        "Topics of other channels that may pass through this one, in or out by this gateway.",
        allowed=TOPICS,
        cost="traffic of this node for other channels; a topic that was exported to this channel is passed on to "
        "others",
        source="guess",
    )
    no_transit: tuple[str, ...] = setting(
        (),
        "Topics under `exports` whose rows the channel at the other end must not pass on to further channels.",
        allowed=TOPICS,
        cost="nothing; the other channel's gatekeepers enforce it, whatever their `transits` say",
        source="guess",
    )
    begin: str = setting(
        EARLIEST,
        "Where imported streams begin: with all rows that the other channel still retains, or at this time.",
        allowed=BEGIN,
        cost='"earliest" fetches every retained batch once',
        source="guess",
    )
    bytes_per_s_max: int = setting(
        0,
        "Largest number of bytes per second that batches take on this gateway; 0 is no limit.",
        allowed=whole(0, 16 * GIB),
        cost="bandwidth that others could use; lowering it delays rows, which wait on this node's disk",
        source="guess",
    )
    queue_bytes_max: int = setting(
        8 * MIB,
        "Bytes of batches that wait for this gateway in memory; further batches wait on the disk.",
        allowed=whole(64 * KIB, GIB),
        cost="memory per slow gateway",
        source="guess",
    )

    def __post_init__(self) -> None:
        refuse(field_problems(self))


@dataclass(frozen=True, slots=True)
class FederationConfig:
    """A gatekeeper's part in a federation."""

    listen: str = setting(
        "127.0.0.1:7700",
        "Where the node answers gatekeepers, of its own channel and of others.",
        allowed=LISTEN_ADDRESS,
        cost="nothing; an address that others can reach lets them in, with certificates of a gateway's `ca`",
        source="guess",
    )
    advertise: str = setting(
        "",
        "Where gatekeepers reach the node, if not at `listen`; needed when it listens on all addresses.",
        allowed=OPTIONAL_ADDRESS,
        cost="nothing",
        source="guess",
    )
    name: str = setting(
        "",
        "Name, for people, of the unit that this channel forms; empty: the channel's name.",
        allowed=text(0, 200),
        cost="nothing",
        source="guess",
    )
    join: str = setting(
        "",
        "The `listen` of another gatekeeper of this channel; empty: this one is the first.",
        allowed=OPTIONAL_ADDRESS,
        cost="nothing",
        source="seed",
    )
    top: int = setting(
        1,
        "The top level, equal in the whole federation: 1 for channels side by side, 2 for groups of channels, ...",
        allowed=whole(1, 7),
        cost="one more matching on the way of each batch",
        source="seed",
    )
    links_max: int = setting(
        16,
        "Links of each level that the node accepts; beyond it, newcomers are sent to other gatekeepers.",
        allowed=whole(1, 64),
        cost="changes of any link are reported on all of them; with fewer links, routes are longer",
        source="seed",
    )
    in_flight_max: int = setting(
        1_024,
        "Batches sent to gatekeepers and not yet acknowledged; beyond it, no more of the log is exported.",
        allowed=whole(1, 65_536),
        cost="memory, and more to send again after a failure",
        source="guess",
    )
    hosts_refused: tuple[str, ...] = setting(
        (),
        'Newcomers whose address begins with one of these get no link from this node: "10.2." is a whole network.',
        allowed=HOSTS,
        cost="nothing; a newcomer states its address itself: certificates keep strangers out, this keeps order",
        source="seed",
    )
    gateways: tuple[GatewayConfig, ...] = setting(
        (),
        "The channels beside this one: [[gateway]] tables, with the settings below.",
        allowed=GATEWAYS,
        cost="nothing; only topics that one of them names can cross",
        source="guess",
    )

    def __post_init__(self) -> None:
        problems = field_problems(self)
        if not problems and not self.advertise and self.listen.startswith(("0.0.0.0:", "[::]:")):
            problems.append(
                f"listen = {self.listen!r}: stands for all addresses of the host, which no node can dial: "
                "set advertise to the one that gatekeepers reach"
            )
        if not problems:
            problems += _gateway_problems(self)
        refuse(problems)

    @property
    def advertised(self) -> str:
        return self.advertise or self.listen


def _gateway_problems(config: FederationConfig) -> list[str]:
    problems = []
    seen: dict[tuple[str, str], None] = {}
    for gateway in config.gateways:
        place = (gateway.channel, gateway.address)
        if place in seen:
            problems.append(
                f"[[gateway]] channel = {gateway.channel!r}, address = {gateway.address!r}: is there twice: merge them"
            )
        seen[place] = None
        if gateway.level > config.top:
            problems.append(f"[[gateway]] level = {gateway.level}: the federation has top = {config.top}: at most that")
        kept = sorted(set(gateway.no_transit) - set(gateway.exports)) if ALL_TOPICS not in gateway.exports else []
        if kept and kept != [ALL_TOPICS]:
            problems.append(
                f"[[gateway]] no_transit has {kept}, which exports does not: they do not leave: remove them, or add "
                "them to exports"
            )
        both = sorted(set(gateway.imports) & set(gateway.on_demand))
        if both:
            problems.append(
                f"[[gateway]] on_demand has {both}, which imports has too: rows of imports come anyway: remove them"
            )
    return problems
