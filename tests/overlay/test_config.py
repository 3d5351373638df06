"""Settings: their limits, the files that show them, the messages when they are wrong, and agreement between nodes."""

import textwrap
from collections.abc import Sequence
from dataclasses import FrozenInstanceError, fields
from pathlib import Path
from typing import Any

import pytest

from m4cast import conf
from m4cast.overlay.config import ClusterConfig, NodeConfig
from m4cast.overlay.config.agreement import Mismatch, check_agreement
from m4cast.overlay.config.files import load_cluster, load_node
from m4cast.overlay.config.settings import TopicFilter, facts_of
from m4cast.overlay.errors import ConfigError

KIB, MIB, GIB = 2**10, 2**20, 2**30
CONF = Path(conf.__file__).parent
ConfigClass = type[ClusterConfig] | type[NodeConfig]

# Written out again, so that a limit does not change without somebody meaning it.
NUMBER_LIMITS: list[tuple[ConfigClass, str, int, int]] = [
    (ClusterConfig, "degree", 3, 64),
    (ClusterConfig, "batch_bytes_max", KIB, 256 * MIB),
    (ClusterConfig, "heartbeat_interval_ms", 50, 60_000),
    (ClusterConfig, "heartbeat_timeout_ms", 100, 600_000),
    (ClusterConfig, "beacon_interval_ms", 100, 3_600_000),
    (ClusterConfig, "beacon_ms_per_node", 0, 60_000),
    (NodeConfig, "store_bytes_max", 16 * MIB, 16 * 1024 * GIB),
    (NodeConfig, "retention_bytes", 0, 16 * 1024 * GIB),
    (NodeConfig, "retention_ms", 0, 100 * 366 * 24 * 3_600_000),
    (NodeConfig, "sync_linger_ms", 0, 1_000),
    (NodeConfig, "acks", 0, 64),
    (NodeConfig, "push_bytes_max", 0, 16 * MIB),
    (NodeConfig, "hold_back_bytes_max", KIB, 4 * GIB),
    (NodeConfig, "linger_ms", 0, 1_000),
    (NodeConfig, "metrics_topics_max", 0, 1_000),
    (NodeConfig, "link_queue_bytes_max", KIB, GIB),
    (NodeConfig, "pull_window_bytes", KIB, GIB),
    (NodeConfig, "recent_bytes_max", 0, GIB),
    (NodeConfig, "publish_window_bytes", KIB, GIB),
    (NodeConfig, "portal_depth", 1, 256),
    (NodeConfig, "passive_max", 0, 20_000),
    (NodeConfig, "flip_interval_ms", 0, 3_600_000),
    (NodeConfig, "publish_queue_max", 1, 1_000_000),
    (NodeConfig, "undurable_bytes_max", KIB, 4 * GIB),
    (NodeConfig, "call_timeout_ms", 10, 600_000),
    (NodeConfig, "walk_timeout_ms", 10, 600_000),
    (NodeConfig, "pull_timeout_ms", 10, 600_000),
    (NodeConfig, "search_wait_ms", 1, 60_000),
    (NodeConfig, "seek_retry_ms", 10, 600_000),
    (NodeConfig, "holder_search_ms", 10, 600_000),
    (NodeConfig, "stage_expire_ms", 1_000, 7 * 24 * 3_600_000),
    (NodeConfig, "publisher_bytes_max", MIB, 4 * GIB),
    (NodeConfig, "client_publisher_bytes_max", KIB, 4 * GIB),
    (NodeConfig, "publisher_expire_ms", 24 * 3_600_000, 100 * 366 * 24 * 3_600_000),
    (NodeConfig, "topics_max", 1, 1_000_000),
    (NodeConfig, "client_topics_max", 1, 1_000_000),
    (NodeConfig, "seen_searches_max", 16, 1_000_000),
    (NodeConfig, "registrations_max", 1, 200_000),
    (NodeConfig, "interest_changes_max", 1, 1_000_000),
    (NodeConfig, "interest_delay_ms", 0, 60_000),
    (NodeConfig, "interest_quiet_ms", 0, 3_600_000),
    (NodeConfig, "clock_skew_ms", 0, 3_600_000),
]

# For each other setting: what is accepted, then what is not.
OTHER_LIMITS: list[tuple[ConfigClass, str, list[object], list[object]]] = [
    (ClusterConfig, "channel_type", ["x", "x" * 200, "ł" * 100], ["", "x" * 201, "ł" * 101, "a\nb", "\ud800", 1]),
    (ClusterConfig, "channel_instance", ["x", "x" * 200], ["", "x" * 201, None]),
    (
        ClusterConfig,
        "channel_ports",
        ["1", "65535", "7400-7409", "1-2,4-6,8", ",".join(str(port) for port in range(1, 65))],
        ["", "0", "65536", "7-6", "2,1", "1-3,3-5", "1, 2", "a", "1-", 7400, ",".join(map(str, range(1, 66)))],
    ),
    (NodeConfig, "name", ["a", "warsaw-1", "a" * 32], ["", "a" * 33, "Warsaw", "a.b", "a\n", 1]),
    (NodeConfig, "site", ["", "x" * 200], ["x" * 201, "a\tb", 1]),
    (
        NodeConfig,
        "listen",
        ["h:0", "h:1", "h:65535", "[::1]:7400"],
        ["", "h", "h:65536", "h:-1", "h:01", ":1", "a b:1"],
    ),
    (NodeConfig, "advertise", ["", "h:1", "[fe80::1]:7400"], ["h:0", "h", "http://h:1", 7400]),
    (NodeConfig, "door", ["", "h:0", "h:1", "[::1]:7500"], ["h", "h:65536", "http://h:1", 7500]),
    (NodeConfig, "advertise_door", ["", "h:1", "[fe80::1]:7500"], ["h:0", "h", "http://h:1", 7500]),
    (NodeConfig, "tls_ca", ["", "ca.crt", "/x/" + "y" * 997], ["x" * 1_001, "a\nb", 1]),
    (NodeConfig, "tls_cert", ["", "n1.crt"], ["x" * 1_001, None]),
    (NodeConfig, "tls_key", ["", "n1.key"], ["x" * 1_001, True]),
    (NodeConfig, "insecure", [True, False], [1, 0, "true", None]),
    (NodeConfig, "trust_store", [True, False], [1, 0, "true", None]),
    (NodeConfig, "strict_portal", [True, False], [1, 0, "true", None]),
    (NodeConfig, "interest_hierarchy", [True, False], [1, 0, "true", None]),
    (NodeConfig, "tokens", ["", "file:tokens.toml", "env:TOKENS"], ["tokens.toml", "file:", "env:", "env:a b", 1]),
    (NodeConfig, "http", ["", "h:0", "h:1", "[::1]:7600"], ["h", "h:65536", "http://h:1", 7600]),
    (
        NodeConfig,
        "portals",
        [(), ("h:1",), ("h:1",) * 64],
        [("h:1",) * 65, ("h",), ("h:1", "h:0"), (1,), "h:1", ["h:1"]],
    ),
    (
        NodeConfig,
        "portal_hosts",
        [(), ("h", "10.0.0.1", "[::1]"), ("h",) * 64],
        [("h",) * 65, ("h:1",), ("",), ("a b",), (1,), "h", ["h"]],
    ),
    (NodeConfig, "web", ["", "h:0", "[::1]:65535"], ["h", "h:65536", 1, None]),
    (
        NodeConfig,
        "web_origins",
        [(), ("https://h", "http://h:1"), ("https://h",) * 64],
        [("https://h",) * 65, ("h",), ("https://h/path",), ("*",), (1,), "https://h", ["https://h"]],
    ),
    (NodeConfig, "portal_shuffle", ["off", "first-8", "weighted"], ["", "on", "first-9", 8, None]),
    (
        NodeConfig,
        "subscribe",
        [(), (TopicFilter("t"),), (TopicFilter("x" * 200, "w" * 4_096),) * 1_000],
        [
            (TopicFilter("t"),) * 1_001,
            (TopicFilter(""),),
            (TopicFilter("x" * 201),),
            (TopicFilter("t", "w" * 4_097),),
            (TopicFilter(1),),  # type: ignore[arg-type]  # as a file may have it
            ("t",),
            [TopicFilter("t")],
        ],
    ),
    (NodeConfig, "start_from", ["earliest", "latest"], ["", "Earliest", "now", 0]),
]


def ids(limits: Sequence[tuple[Any, ...]]) -> list[str]:
    return [f"{config_class.__name__}.{name}" for config_class, name, *_ in limits]


def build(config_class: ConfigClass, **values: Any) -> ClusterConfig | NodeConfig:
    if "heartbeat_interval_ms" in values:  # the rule between the two is tested apart
        values["heartbeat_timeout_ms"] = 600_000
    if "heartbeat_timeout_ms" in values:
        values.setdefault("heartbeat_interval_ms", 50)
    return config_class(**values)


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "some.toml"
    path.write_text(text, encoding="utf-8")
    return path


# ---- limits


def test_every_setting_has_its_limits_tested() -> None:
    tested = [(config_class, name) for config_class, name, *_ in [*NUMBER_LIMITS, *OTHER_LIMITS]]
    declared = [(config_class, f.name) for config_class in (ClusterConfig, NodeConfig) for f in fields(config_class)]
    assert sorted(tested, key=str) == sorted(declared, key=str)


@pytest.mark.parametrize(("config_class", "name", "low", "high"), NUMBER_LIMITS, ids=ids(NUMBER_LIMITS))
def test_a_number_is_accepted_up_to_its_limits_and_not_beyond(
    config_class: ConfigClass, name: str, low: int, high: int
) -> None:
    for accepted in (low, high):
        assert getattr(build(config_class, **{name: accepted}), name) == accepted
    for refused in (low - 1, high + 1, True, float(low), str(low), None):
        with pytest.raises(ConfigError) as raised:
            build(config_class, **{name: refused})
        assert str(raised.value) == f"{name} = {refused!r}: must be a whole number from {low:_} to {high:_}"


@pytest.mark.parametrize(("config_class", "name", "accepted", "refused"), OTHER_LIMITS, ids=ids(OTHER_LIMITS))
def test_a_text_or_list_is_accepted_when_it_fits(
    config_class: ConfigClass, name: str, accepted: list[object], refused: list[object]
) -> None:
    for value in accepted:
        assert getattr(build(config_class, **{name: value}), name) == value
    for value in refused:
        with pytest.raises(ConfigError, match=rf"^{name} = .*: must be "):
            build(config_class, **{name: value})


def test_heartbeat_timeout_is_at_least_twice_the_interval() -> None:
    assert ClusterConfig(heartbeat_interval_ms=1_000, heartbeat_timeout_ms=2_000).heartbeat_timeout_ms == 2_000
    with pytest.raises(ConfigError, match=r"heartbeat_timeout_ms = 1999: must be at least twice .* \(2 x 1000\)"):
        ClusterConfig(heartbeat_interval_ms=1_000, heartbeat_timeout_ms=1_999)


@pytest.mark.parametrize("listen", ["0.0.0.0:7400", "[::]:7400"])
def test_a_node_that_listens_everywhere_says_where_it_is(listen: str) -> None:
    assert NodeConfig(listen=listen, advertise="warsaw-1:7400").advertised == "warsaw-1:7400"
    with pytest.raises(ConfigError, match="set advertise"):
        NodeConfig(listen=listen)


def test_a_port_that_follows_from_the_channels_order_cannot_be_told_in_advance() -> None:
    assert NodeConfig(listen="h:7400", advertise="g:7400", portal_hosts=("h",)).advertised == "g:7400"
    with pytest.raises(ConfigError, match="leave it out, and name the address"):
        NodeConfig(listen="h:0", advertise="h:7400", portal_hosts=("h",))


def test_a_node_is_reached_where_it_listens_unless_told_otherwise() -> None:
    assert NodeConfig(listen="h:1").advertised == "h:1"


@pytest.mark.parametrize(
    ("config", "told"),
    [
        (NodeConfig(door="h:2"), "h:2"),
        (NodeConfig(door="h:2", advertise_door="g:3"), "g:3"),
        (NodeConfig(listen="0.0.0.0:1", advertise="warsaw-1:9", door="0.0.0.0:2"), "warsaw-1:2"),
        (NodeConfig(advertise="[fe80::1]:9", door="[::]:2"), "[fe80::1]:2"),
        (NodeConfig(door="h:0"), ""),
        (NodeConfig(door="h:0", advertise_door="g:3"), "g:3"),
        (NodeConfig(door=""), ""),
    ],
)
def test_clients_are_told_a_door_that_they_can_reach(config: NodeConfig, told: str) -> None:
    assert config.advertised_door == told


def test_one_error_names_everything_that_is_wrong() -> None:
    with pytest.raises(ConfigError, match=r"degree = 2: .*; beacon_interval_ms = 1: ") as raised:
        ClusterConfig(degree=2, beacon_interval_ms=1)
    assert "heartbeat" not in str(raised.value)


def test_a_long_value_does_not_hide_the_message() -> None:
    with pytest.raises(ConfigError, match="must be printable text") as raised:
        NodeConfig(site="x" * 1_000_000)
    assert len(str(raised.value)) < 400


def test_a_config_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        ClusterConfig().degree = 5  # type: ignore[misc]  # the assignment that must fail


# ---- files


def expected_file(config_class: ConfigClass, table: str, intro: str) -> str:
    """The text of a config file: every setting with its default and its facts, in the order of the code."""
    paragraphs = [f"{comment(intro, hang='')}\n#\n{comment(LEGEND, hang='')}\n\n[{table}]\n"]
    for f in fields(config_class):
        facts = facts_of(f)
        assert facts.source in {"seed", "measured", "guess"}
        lines = [facts.about, f"Allowed: {facts.allowed.sentence}.", f"Cost: {facts.cost}."]
        lines.append(f"Default from: {facts.source}.")
        paragraphs.append("\n".join(map(comment, lines)) + f"\n{f.name} = {toml(f.default)}\n")
    return "\n".join(paragraphs)


def comment(sentence: str, hang: str = "  ") -> str:
    return textwrap.fill(sentence, 118, initial_indent="# ", subsequent_indent="# " + hang, break_long_words=False)


def toml(value: object) -> str:
    match value:
        case bool():
            return str(value).lower()
        case int():
            return f"{value:_}"
        case str():
            return f'"{value}"'
        case ():
            return "[]"
    raise AssertionError(f"no TOML for {value!r} yet")


CLUSTER_INTRO = (
    "Settings that must be the same on every node of a channel. A node with different ones is refused when it "
    "connects, and the refusal names each setting that differs."
)
NODE_INTRO = "Settings of one node; those of other nodes may differ."
LEGEND = (
    'Every setting is shown with its default. "Cost" is what raising or changing it costs. "Default from" is "seed" '
    '(the broadcast channel whose description this one follows), "measured" (a benchmark) or "guess" (reasoned, not '
    "measured)."
)


@pytest.mark.parametrize(
    ("config_class", "table", "intro"),
    [(ClusterConfig, "cluster", CLUSTER_INTRO), (NodeConfig, "node", NODE_INTRO)],
    ids=["cluster", "node"],
)
def test_the_file_shows_every_setting_with_its_default_and_cost(
    config_class: ConfigClass, table: str, intro: str
) -> None:
    assert (CONF / f"{table}.toml").read_text(encoding="utf-8") == expected_file(config_class, table, intro)


def test_the_files_load_to_the_defaults() -> None:
    assert load_cluster(CONF / "cluster.toml") == ClusterConfig()
    assert load_node(CONF / "node.toml") == NodeConfig()


def test_a_file_changes_what_it_names_and_may_hold_both_tables(tmp_path: Path) -> None:
    path = write(tmp_path, '[cluster]\ndegree = 6\n[node]\nname = "warsaw-1"\nportals = ["a:1", "b:2"]\n')
    assert load_cluster(path) == ClusterConfig(degree=6)
    assert load_node(str(path)) == NodeConfig(name="warsaw-1", portals=("a:1", "b:2"))


def test_a_file_may_say_what_the_node_wants(tmp_path: Path) -> None:
    text = '[node]\nname = "a"\n[[subscribe]]\ntopic = "t"\n[[subscribe]]\ntopic = "u"\nwhere = "x > 1"\n'
    assert load_node(write(tmp_path, text)).subscribe == (TopicFilter("t"), TopicFilter("u", "x > 1"))
    for wrong in ("[[subscribe]]\nwhere = 'x'", "[subscribe]\ntopic = 't'\nwhen = 1", "subscribe = 1"):
        with pytest.raises(ConfigError, match=r"\[\[subscribe\]\] .*: must have a topic and may have a where"):
            load_node(write(tmp_path, f"{wrong}\n[node]\n"))


def test_relative_paths_begin_at_the_folder_of_the_file(tmp_path: Path) -> None:
    text = '[node]\ntls_ca = "ca.crt"\ntls_cert = "/etc/n.crt"\ntls_key = "../n.key"\ntokens = "file:t.toml"\n'
    config = load_node(write(tmp_path, text))
    assert (config.tls_ca, config.tls_cert) == (str(tmp_path / "ca.crt"), "/etc/n.crt")
    assert (config.tls_key, config.tokens) == (str(tmp_path / "../n.key"), f"file:{tmp_path / 't.toml'}")
    assert load_node(write(tmp_path, '[node]\ntokens = "env:TOKENS"')).tokens == "env:TOKENS"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[node]\nack = 1", r"\[node\] ack = 1: unknown setting; did you mean acks\?"),
        ("[node]\nzzz = 1", r"\[node\] zzz = 1: unknown setting; known are name, site, listen, "),
        ("[node]\ndegree = 4", r"\[node\] degree = 4: unknown setting"),
        ("[node]\nacks = 65", r"\[node\] acks = 65: must be a whole number from 0 to 64"),
        ("[node]\nacks = 1.0", r"\[node\] acks = 1.0: must be a whole number from 0 to 64"),
        ("[node]\nacks = true", r"\[node\] acks = True: must be a whole number from 0 to 64"),
        ('[node]\nportals = "a:1"', r"\[node\] portals = 'a:1': must be at most 64 addresses"),
        ('[node]\nportals = [["a:1"]]', r"\[node\] portals = .*: must be at most 64 addresses"),
        ("[node]\nname = {}", r"\[node\] name = \{\}: must be 1 to 32 of a-z"),
        ("acks = 1", r"unknown key 'acks' at the top; settings go under \[cluster\] and \[node\]"),
        ("[nodes]\nacks = 1", r"unknown key 'nodes' at the top; settings go under \[cluster\] and \[node\]"),
        ("[cluster]", r"has no table \[node\]"),
        ("node = 1", r"has no table \[node\]"),
        ("[[node]]", r"has no table \[node\]"),
        ("", r"has no table \[node\]"),
        ("[node]\nacks =", r"is not TOML: "),
        ("[node]\nacks = 1\nacks = 2", r"is not TOML: "),
    ],
)
def test_a_wrong_file_is_refused_by_file_key_and_what_is_allowed(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError, match=message) as raised:
        load_node(path)
    assert str(raised.value).startswith(f"{path}: ")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "missing.toml"
    with pytest.raises(ConfigError, match=r"missing\.toml: cannot be read: No such file"):
        load_cluster(missing)
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        load_cluster(tmp_path)
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe[\x00")
    with pytest.raises(ConfigError, match=r"binary\.toml: is not TOML"):
        load_cluster(binary)


# ---- agreement


def test_equal_settings_agree_as_values_and_as_text() -> None:
    settings = ClusterConfig(degree=6).settings()
    assert list(settings) == [f.name for f in fields(ClusterConfig)]
    assert check_agreement(ClusterConfig(degree=6), settings) == []
    assert check_agreement(ClusterConfig(degree=6), {name: str(value) for name, value in settings.items()}) == []


@pytest.mark.parametrize("name", [f.name for f in fields(ClusterConfig)])
def test_each_setting_that_differs_is_named_with_both_values(name: str) -> None:
    mine = ClusterConfig()
    value = mine.settings()[name]
    assert check_agreement(mine, mine.settings() | {name: "other"}) == [Mismatch(name, value, "other")]
    told = {key: other for key, other in mine.settings().items() if key != name}
    assert check_agreement(mine, told) == [Mismatch(name, value, None)]


def test_settings_of_a_newer_version_are_left_to_it() -> None:
    assert check_agreement(ClusterConfig(), ClusterConfig().settings() | {"from_the_future": 1}) == []


def test_a_mismatch_reads_as_a_sentence_whatever_the_other_sent() -> None:
    assert str(Mismatch("degree", 4, "6")) == "degree is '4' here and '6' at the other"
    assert str(Mismatch("degree", 4, None)) == "degree is '4' here and not sent by the other"
    hostile = str(Mismatch("degree", 4, "\n\x1b[2J" + "x" * 1_000_000))
    assert hostile.isprintable()
    assert len(hostile) < 400
