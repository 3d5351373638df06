"""Settings of a bridge: files, flags, routes; and those that are refused, by name."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from m4cast import conf
from m4cast.cli.rows.bridge import codec_of
from m4cast.overlay.bridge.routes import Routes
from m4cast.overlay.bridge.settings import KafkaInSettings, KafkaOutSettings, load_settings
from m4cast.overlay.errors import ConfigError
from tests.overlay.bridge.test_codecs import Given
from tests.overlay.test_config import expected_file

CONF = Path(conf.__file__).parent
NEEDED = {"brokers": ["a:9092"], "topics": ["orders"]}
NUMBERS = [
    (KafkaInSettings, "acks", -1, 64),
    (KafkaInSettings, "batch_bytes", 1024, 16 << 20),
    (KafkaInSettings, "linger_ms", 0, 60_000),
    (KafkaInSettings, "writers", 1, 64),
    (KafkaOutSettings, "transaction_rows", 1, 1_000_000),
    (KafkaOutSettings, "linger_ms", 0, 60_000),
]
OTHERS: list[tuple[Any, str, list[object], list[object]]] = [
    (KafkaInSettings, "name", ["a", "a-1"], ["", "A", "a" * 33, 1]),
    (KafkaInSettings, "brokers", [("a:1", "b:2")], [("a",), "a:1", ("",)]),
    (KafkaInSettings, "topics", [("a",), ("a(.*) -> b\\1",)], [("(",), ("a ->",), ("a -> \\1",), ("a",) * 257]),
    (KafkaInSettings, "group", ["", "g"], ["\n", "g" * 201]),
    (KafkaInSettings, "start", ["earliest", "latest"], ["now"]),
    (KafkaInSettings, "codec", ["raw", "json", "cloudevents", "cloudevents-structured"], ["avro", "avro-single", "x"]),
    (KafkaInSettings, "columns", [("a int64",)], ["a int64"]),
    (KafkaInSettings, "registry", ["", "http://a:1", "https://u:p@a/b"], ["a:1", "ftp://a"]),
    (KafkaInSettings, "avro_schemas", [("a.avsc",)], ["a.avsc"]),
    (KafkaInSettings, "dead_letters", ["a"], ["", "a" * 201]),
    (KafkaInSettings, "fail_on_data_loss", [True, False], [1, "no"]),
    (KafkaInSettings, "metrics", ["", "127.0.0.1:0"], ["here"]),
    (KafkaOutSettings, "partition_by", ["key", "source"], ["row"]),
    (KafkaOutSettings, "progress_topic", ["a.b-c"], ["", "a b", "a" * 250]),
]
SHARED = {"name", "brokers", "topics", "start", "codec", "registry", "avro_schemas", "dead_letters"} | {
    "fail_on_data_loss",
    "metrics",
}


def test_every_setting_has_its_limits_tested() -> None:
    tested = {(each[0], each[1]) for each in [*NUMBERS, *OTHERS]}
    tested |= {(KafkaOutSettings, name) for name in SHARED}
    for settings in (KafkaInSettings, KafkaOutSettings):
        assert {(settings, each.name) for each in fields(settings)} <= tested


@pytest.mark.parametrize(("settings", "name", "low", "high"), NUMBERS)
def test_a_number_is_accepted_up_to_its_limits_and_not_beyond(settings: Any, name: str, low: int, high: int) -> None:
    for accepted in (low, high):
        assert getattr(settings(**{name: accepted}), name) == accepted
    for refused in (low - 1, high + 1, True, "1"):
        with pytest.raises(ConfigError, match=f"^{name} = "):
            settings(**{name: refused})


@pytest.mark.parametrize(("settings", "name", "accepted", "refused"), OTHERS)
def test_other_settings(settings: Any, name: str, accepted: list[object], refused: list[object]) -> None:
    for value in accepted:
        assert getattr(settings(**{name: value}), name) == value
    for value in refused:
        with pytest.raises(ConfigError, match=name):
            settings(**{name: value})


@pytest.mark.parametrize(
    ("settings", "table", "intro"),
    [
        (KafkaInSettings, "kafka-in", "Settings of m4cast bridge kafka-in."),
        (KafkaOutSettings, "kafka-out", "Settings of m4cast bridge kafka-out."),
    ],
)
def test_the_file_shows_every_setting_with_its_default_and_cost(settings: Any, table: str, intro: str) -> None:
    assert (CONF / f"{table}.toml").read_text(encoding="utf-8") == expected_file(settings, table, intro)


def test_flags_win_over_the_file_and_kafka_settings_are_passed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "bridge.toml"
    (tmp_path / "secret").write_text("word\n")
    path.write_text(
        '[kafka-in]\nname = "shop"\nbrokers = ["a:1"]\ntopics = ["x"]\n'
        'codec = "avro-single"\navro_schemas = ["o.avsc"]\n'
        '[kafka]\nsecurity_protocol = "SASL_SSL"\nsasl_plain_username = "env:WHO"\n'
        f'sasl_plain_password = "file:{tmp_path}/secret"\n'
    )
    monkeypatch.setenv("WHO", "me")
    settings, kafka = load_settings("kafka-in", path, {"topics": ["y", "z"]}, {"fetch_max_bytes": 7})
    assert (settings.name, settings.topics, settings.avro_schemas) == ("shop", ("y", "z"), (str(tmp_path / "o.avsc"),))
    assert kafka == {
        "security_protocol": "SASL_SSL",
        "sasl_plain_username": "me",
        "sasl_plain_password": "word",
        "fetch_max_bytes": 7,
    }


@pytest.mark.parametrize(
    ("text", "flags", "kafka", "message"),
    [
        ("", {}, {}, r"has no table \[kafka-in\]"),
        ("[kafka-in]\ntopic = 1", {}, {}, "did you mean topics"),
        ("[other]\n[kafka-in]", {}, {}, "unknown key 'other'"),
        ("[kafka-in]", {}, {}, "brokers: at least one"),
        ("[kafka-in]", NEEDED, {"group_id": "g"}, r"\[kafka\] group_id: the bridge sets"),
        ("[kafka-in]", NEEDED, {"sasl_plain_password": "env:NO_SUCH_NAME"}, "env:NO_SUCH_NAME is not set"),
        ("[kafka-in]", NEEDED, {"sasl_plain_password": "file:/no/such"}, "cannot be read"),
    ],
)
def test_what_cannot_be_used_is_named(
    tmp_path: Path, text: str, flags: dict[str, Any], kafka: dict[str, Any], message: str
) -> None:
    path = tmp_path / "bridge.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_settings("kafka-in", path, flags, kafka)


def test_the_first_route_that_matches_a_whole_name_decides() -> None:
    routes = Routes.parse(["orders", "shop-(.+) -> retail.\\1", "shop-.*"])
    assert [routes.target(each) for each in ("orders", "orders2", "shop-a", "myshop-a")] == [
        "orders",
        None,
        "retail.a",
        None,
    ]


def test_columns_are_declared_by_names_of_arrows_types() -> None:
    given = {
        "n int64": pa.int64(),
        "price  double": pa.float64(),
        "two words string": pa.string(),
        "money decimal128(10, 2)": pa.decimal128(10, 2),
        "money decimal128(10,2)": pa.decimal128(10, 2),
        "at timestamp[us, tz=UTC]": pa.timestamp("us", "UTC"),
        "at timestamp[us]": pa.timestamp("us"),
    }
    for line, type_ in given.items():
        settings = KafkaInSettings(brokers=("b:1",), topics=("t",), codec="json", columns=(line,))
        codec = codec_of(settings)
        rows = codec.decode([Given(b"{}")]).pieces[0].rows
        assert rows.schema.types == [type_] and line.startswith(rows.schema.names[0])
    for line in ("n", "n bigint", "n decimal128(10)", "n decimal128(99, 2)", "at timestamp[us, tz=Rome]"):
        with pytest.raises(ConfigError, match=r"columns: .* write 'NAME TYPE'"):
            codec_of(KafkaInSettings(brokers=("b:1",), topics=("t",), codec="json", columns=(line,)))
