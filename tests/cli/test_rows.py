"""Publishing from files and pipes, and following topics, at real nodes."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from click.testing import CliRunner, Result

from m4cast.cli import main
from m4cast.overlay.client import Channel
from m4cast.row_files import lines
from m4cast.schemas.json_text import json_of
from tests.overlay.client.stopping import stopping
from tests.overlay.door.served import Served, serving

TIMEOUT_S = 60


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("served"), 1, one_is_away=True) as served:
        yield served


@pytest.fixture
def door(served: Served, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("M4CAST_NODE", served.addresses[0])
    return served.addresses[0]


def publish(topic: str, *words: str, text: str | None = None) -> Result:
    return CliRunner().invoke(main, ["publish", "--topic", topic, *words], input=text)


def columns(door: str, topic: str) -> dict[str, str]:
    return {column["name"]: column["type"] for column in Channel([door]).describe(topic)["columns"]}


# ---- publish


def test_a_long_file_is_published_block_by_block_as_one_range(
    door: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "BLOCK_BYTES", 1 << 10)
    monkeypatch.setattr(lines, "READ_BYTES", 1 << 9)
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(f'{{"id": {number}}}\n' for number in range(1000)))
    said = publish("long", "--json", str(file))
    assert said.exit_code == 0, said.output
    told = json.loads(said.stdout)
    assert told["rows"] == 1000
    assert [(each["first"], each["next"]) for each in told["ranges"]] == [(1, 1001)]
    assert Channel([door]).read("long").column("id").to_pylist() == list(range(1000))


def test_a_bad_line_is_named_with_what_was_published_before_it(
    door: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "BLOCK_BYTES", 1 << 10)
    monkeypatch.setattr(lines, "READ_BYTES", 1 << 10)
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(f'{{"id": {number}}}\n' for number in range(1, 1001)).replace('{"id": 700}', "oh"))
    said = publish("bad", str(file))
    assert said.exit_code == 2
    count = Channel([door]).read("bad").num_rows
    assert 500 < count < 700
    published = f"{count} rows were published before that, up to line {count}\n"
    assert f"line 700: not a JSON object: jsonl has one per line; {published}" in said.stderr
    alone = publish("bad-alone", text='{"id": 1}\noh\n')
    assert "line 2: not a JSON object" in alone.stderr and "nothing was published before" in alone.stderr
    assert "bad-alone" not in Channel([door]).topics()


def test_one_row_is_one_row(door: str) -> None:
    assert publish("one", text='{"id": 1}\n').output.startswith("published 1 row: 1 to 1 of one at ")
    assert publish("one", text='{"id": 1}\n{"id": 2}\n').output.startswith("published 2 rows: 2 to 3 of one at ")


@pytest.mark.parametrize(("kind", "text"), [("jsonl", ""), ("csv", ""), ("csv", "id,what\n")])
def test_an_empty_input_publishes_nothing_and_reports_it(door: str, kind: str, text: str) -> None:
    said = publish("nothing", "--format", kind, text=text)
    assert (said.exit_code, said.output) == (0, "published 0 rows\n")


def test_text_stays_text_unless_the_topic_has_times(door: str) -> None:
    text = '{"at": "2026-01-01T00:00:00Z", "price": 1}\n'
    assert publish("texts", text=text).exit_code == 0
    assert columns(door, "texts") == {"at": "string", "price": "int64"}
    typed = pa.table({"at": pa.array([0], pa.timestamp("us", "UTC")), "price": [0.5]})
    Channel([door]).publish("times", typed)
    said = publish("times", text=text)
    assert said.exit_code == 0, said.output
    assert columns(door, "times") == {"at": "timestamp[us, tz=UTC]", "price": "double"}
    assert Channel([door]).read("times").column("at").to_pylist()[1] == datetime(2026, 1, 1, tzinfo=UTC)


def test_types_that_do_not_fit_the_topic_are_refused(door: str, tmp_path: Path) -> None:
    assert publish("fits", text='{"id": 1}\n').exit_code == 0
    said = publish("fits", text='{"id": 2}\n{"id": "x"}\n')
    assert said.exit_code == 2 and "nothing was published before" in said.stderr
    said = publish("fits", text='{"id": "x"}\n')
    assert said.exit_code == 2 and "line 1: " in said.stderr
    pyarrow.parquet.write_table(pa.table({"id": ["x"]}), tmp_path / "rows.parquet")
    said = publish("fits", str(tmp_path / "rows.parquet"))
    assert said.exit_code == 2 and "schema-conflict: column 'id'" in said.stderr
    assert Channel([door]).read("fits").num_rows == 1


@contextmanager
def command(door: str, *words: str) -> Iterator[subprocess.Popen[str]]:
    """A process of its own, that listens to Ctrl-C also where the tests do not."""
    arguments = [sys.executable, "-c", INTERRUPTIBLE, *words, "--node", door]
    with subprocess.Popen(
        arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as popen:
        try:
            yield popen
        finally:
            popen.kill()


INTERRUPTIBLE = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler);"
    "from m4cast.cli import main; main(prog_name='m4cast')"
)


def test_a_paused_pipe_continues_and_ctrl_c_reports_published_rows(door: str) -> None:
    with command(door, "publish", "--topic", "pauses") as popen, Channel([door]) as channel:
        assert popen.stdin is not None
        for number in range(2):
            popen.stdin.write(f'{{"id": {number}}}\n{{"id": ')  # the second line goes on with the next one
            popen.stdin.flush()
            rows = channel.acquire("pauses", TIMEOUT_S, "earliest")
            assert rows is not None and rows.column("id").to_pylist() == ([0] if number == 0 else [7, 1])
            popen.stdin.write("7}\n")
        popen.send_signal(signal.SIGINT)
        _, said = popen.communicate(timeout=TIMEOUT_S)
    assert popen.returncode == 130
    assert said.startswith("m4cast: interrupted; ") and " published before that, up to line " in said


def test_ctrl_c_is_heard_while_other_nodes_are_waited_for(door: str) -> None:
    with command(door, "publish", "--topic", "waits", "--acks", "1") as popen, Channel([door]) as channel:
        assert popen.stdin is not None
        popen.stdin.write('{"id": 1}\n')
        popen.stdin.close()
        popen.stdin = None
        assert channel.acquire("waits", TIMEOUT_S, "earliest") is not None
        popen.send_signal(signal.SIGINT)
        _, said = popen.communicate(timeout=TIMEOUT_S)
    assert popen.returncode == 130
    assert said == (
        "m4cast: interrupted; nothing was published before that; 1 row may have been, but without acknowledgement\n"
    )


# ---- tail


def test_ctrl_c_ends_a_tail_that_waits(door: str) -> None:
    Channel([door]).publish("idle", [{"id": 1}])
    with command(door, "tail", "--topic", "idle", "--from", "earliest") as popen:
        assert popen.stdout is not None
        assert json.loads(popen.stdout.readline())["id"] == 1
        popen.send_signal(signal.SIGINT)
        out, said = popen.communicate(timeout=TIMEOUT_S)
    assert (popen.returncode, out, said) == (0, "", "")


def test_a_tail_ends_when_its_reader_has_gone(door: str) -> None:
    Channel([door]).publish("unread", [{"id": number} for number in range(10_000)])
    reading, writing = os.pipe()
    words = [sys.executable, "-m", "m4cast", "tail", "--node", door, "--topic", "unread", "--from", "earliest"]
    with os.fdopen(writing, "w") as pipe:
        popen = subprocess.Popen(words, stdout=pipe, stderr=subprocess.PIPE, text=True)
    os.close(reading)
    _, said = popen.communicate(timeout=TIMEOUT_S)
    assert (popen.returncode, said) == (141, "")


def test_a_tail_prints_json(door: str) -> None:
    at = datetime(2026, 1, 31, 12, tzinfo=UTC)
    schema = pa.schema(
        {
            "f": pa.float64(),
            "deep": pa.list_(pa.struct({"f": pa.float64()})),
            "zoned": pa.timestamp("us", "UTC"),
            "plain": pa.timestamp("us"),
            "day": pa.date32(),
            "bytes": pa.binary(),
            "money": pa.decimal128(5, 2),
            "long": pa.duration("us"),
        }
    )
    row = {
        "f": float("nan"),
        "deep": [{"f": float("inf")}, {"f": 1.5}],
        "zoned": at,
        "plain": at.replace(tzinfo=None),
        "day": at.date(),
        "bytes": b"\x00tea",
        "money": Decimal("1.50"),
        "long": timedelta(seconds=90),
    }
    Channel([door]).publish("kinds", pa.Table.from_pylist([row], schema=schema))
    said = CliRunner().invoke(main, ["tail", "--topic", "kinds", "--from", "earliest", "--max-rows", "1"])
    assert said.exit_code == 0, said.output

    def never(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    told = json.loads(said.stdout, parse_constant=never)
    published_at = told.pop("_published_at")
    assert published_at.endswith("Z") and datetime.fromisoformat(published_at).tzinfo is not None
    assert {name: value for name, value in told.items() if not name.startswith("_")} == {
        "f": None,
        "deep": [{"f": None}, {"f": 1.5}],
        "zoned": "2026-01-31T12:00:00Z",
        "plain": "2026-01-31T12:00:00",
        "day": "2026-01-31",
        "bytes": "AHRlYQ==",
        "money": "1.50",
        "long": "0:01:30",
    }


def test_a_map_is_printed_as_its_pairs() -> None:
    row: dict[str, Any] = {"map": [("a", float("nan")), ("b", date(2026, 1, 1))]}
    assert json_of(row) == '{"map": [["a", null], ["b", "2026-01-01"]]}'


def test_a_tail_without_rows_ends_with_a_reason(door: str) -> None:
    Channel([door]).publish("ends", [{"id": 1}])
    words = ["tail", "--topic", "ends", "--from", "earliest", "--idle-s", "0.1"]
    said = CliRunner().invoke(main, words)
    assert said.exit_code == 0 and json.loads(said.stdout)["id"] == 1
    away = CliRunner().invoke(main, ["tail", "--node", "127.0.0.1:1"])
    assert away.exit_code == 2 and away.stderr.startswith("m4cast: 127.0.0.1:1 cannot be reached")


def test_a_tail_from_a_time_needs_its_zone(door: str) -> None:
    Channel([door]).publish("since", [{"id": 1}])
    words = ["tail", "--topic", "since", "--idle-s", "0.1", "--from"]
    assert json.loads(CliRunner().invoke(main, [*words, "2026-01-31T12:00:00Z"]).stdout)["id"] == 1
    assert CliRunner().invoke(main, [*words, "2099-01-31T12:00:00+01:00"]).stdout == ""
    for start, said in (
        ("2026-01-31T12:00:00", "as in 2026-01-31T12:00:00Z"),
        ("noon", "neither earliest, latest nor a time"),
    ):
        refused = CliRunner().invoke(main, [*words, start])
        assert refused.exit_code == 2 and said in refused.stderr


def test_a_tail_reports_an_unknown_topic(door: str) -> None:
    Channel([door]).publish("orders-eu", [{"id": 1}])
    words = ["tail", "--topic", "orders-uk", "--topic", "orders-eu", "--from", "earliest", "--idle-s", "0.1", "--json"]
    said = CliRunner().invoke(main, words)
    assert said.exit_code == 0 and json.loads(said.stdout)["id"] == 1
    assert said.stderr == "m4cast: topic 'orders-uk' does not exist yet: waiting for it\n"
    said = CliRunner().invoke(main, ["tail", "--pattern", "nobody-*", "--idle-s", "0.1"])
    assert (said.exit_code, said.stdout) == (0, "")
    assert said.stderr == "m4cast: no topic matches 'nobody-*' yet: waiting for one\n"


def test_a_tail_of_a_pattern_has_its_topics_and_those_that_come(door: str) -> None:
    channel = Channel([door])
    for topic in ("pattern.a", "pattern.b", "patterns", "pattern.*"):
        channel.publish(topic, [{"topic": topic}])
    words = ["tail", "--pattern", "pattern.*", "--topic", "patterns", "--from", "earliest"]
    with command(door, *words, "--max-rows", "6") as popen:
        assert popen.stdout is not None
        seen = [json.loads(popen.stdout.readline())["topic"] for _ in range(4)]
        assert sorted(seen) == ["pattern.*", "pattern.a", "pattern.b", "patterns"]
        channel.publish("other", [{"topic": "other"}])
        channel.publish("pattern.c", [{"topic": "pattern.c"}])
        channel.publish("pattern.a", [{"topic": "again"}])
        out, said = popen.communicate(timeout=TIMEOUT_S)
    assert sorted(json.loads(line)["topic"] for line in out.splitlines()) == ["again", "pattern.c"]
    assert (popen.returncode, said) == (0, "")


# ---- topics


NAMES = {
    "edge spaces": " edge ",
    "commas": "a,b,",
    "dots and slashes": "../a.b//c/",
    "stars": "*?[!x]",
    "markup": "[red]not red[/red]",
    "backslash": "back\\slash[/]",
    "dash": "--node",
    "quotes": 'it\'s "quoted"',
    "unicode": "größe 漢字 🙂 e\u0301",
    "longest": "ü" * 100,
    "number": "7",
    "none": "null",
}


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_a_topic_of_any_name_is_published_tailed_described_and_deleted(door: str, name: str) -> None:
    other = "another, beside it"
    for topic, number in ((name, 1), (other, 2)):
        assert publish(topic, text=f'{{"id": {number}}}\n').exit_code == 0
    tailed = ["tail", "--topic", name, "--topic", other, "--from", "earliest", "--idle-s", "0.1"]
    rows = [json.loads(line) for line in CliRunner().invoke(main, tailed).stdout.splitlines()]
    assert {(row["_topic"], row["id"]) for row in rows} == {(name, 1), (other, 2)}
    listed = CliRunner().invoke(main, ["topics"], env={"COLUMNS": None}).stdout
    assert any(line.startswith(f"{name} ") for line in listed.splitlines()), listed
    described = CliRunner().invoke(main, ["topic", "describe", "--json", "--", name])
    assert json.loads(described.stdout)["topic"] == name
    assert CliRunner().invoke(main, ["topic", "describe", "--", name]).stdout.startswith(f"{name} at {door}: 1 row, ")
    deleted = CliRunner().invoke(main, ["topic", "delete", "--yes", "--json", "--", name])
    assert json.loads(deleted.stdout)["topic"] == name
    assert Channel([door]).describe(name)["rows"] == 0


def test_a_topic_is_described_for_people_and_for_programs(door: str) -> None:
    Channel([door]).publish("sized", pa.table({"text": ["x" * 1_000] * 5_000}))
    said = CliRunner().invoke(main, ["topic", "describe", "sized"]).stdout
    assert "5,000 rows, 5 MB; retention: any size, 7 d (default)" in said
    exact = json.loads(CliRunner().invoke(main, ["topic", "describe", "sized", "--json"]).stdout)
    assert exact["bytes"] > 5_000_000 and exact["retention"]["max_age_ms"] == 604_800_000
    words = ["topic", "retention", "sized", "--max-bytes", "1500000000", "--max-age-ms", "5400000"]
    assert "retention: 1.5 GB, 1.5 h\n" in CliRunner().invoke(main, words).stdout
    assert "removed 5 MB" in CliRunner().invoke(main, ["topic", "delete", "sized", "--yes"]).stdout


# ---- arrays and columns


def test_an_array_of_rows_is_published(door: str, tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    file.write_text(json.dumps([{"id": 1, "tags": ["a,b", "]"]}, {"id": 2, "tags": []}], indent=2))
    assert publish("array", str(file)).exit_code == 0
    assert publish("array", "--format", "json", text='[{"id": 3}]').exit_code == 0
    assert publish("array", text=' [{"id": 4},{"id": 5}]\n').output.startswith("published 2 rows: 4 to 5 of array at ")
    read = Channel([door]).read("array")
    assert read["id"].to_pylist() == [1, 2, 3, 4, 5]
    assert read["tags"].to_pylist()[:2] == [["a,b", "]"], []]
    bad = publish("array", text='[{"id": 1}, 7]')
    assert bad.exit_code == 2 and "element 2: not a JSON object" in bad.stderr


def test_columns_are_chosen_and_those_of_a_csv_without_names_are_named(door: str, tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text("1,tea,5\n2,jam,7\n")
    assert publish("named", "--no-header", "--columns", "id,what,price", str(file)).exit_code == 0
    assert publish("named", "--columns", "price,id", text='{"id": 3, "price": 9, "more": true}\n').exit_code == 0
    assert columns(door, "named") == {"id": "int64", "what": "string", "price": "int64"}
    assert Channel([door]).read("named")["price"].to_pylist() == [5, 7, 9]
    for words, said in (
        (["--no-header", str(file)], "--no-header needs --columns"),
        (["--no-header", "--columns", "id", "--format", "jsonl", str(file)], "--no-header is only for csv"),
        (["--columns", "", str(file)], "has an empty column name"),
        (["--columns", "a,a", str(file)], "has 'a' twice"),
        (["--columns", "id,nothing", str(file)], "there is no column 'id': the columns are '1', 'tea', '5'"),
    ):
        refused = publish("named", *words)
        assert refused.exit_code == 2 and said in refused.stderr, refused.stderr
    assert Channel([door]).read("named").num_rows == 3


def test_a_node_that_is_gone_before_it_could_answer_has_left() -> None:
    with stopping(status=b'{"name": "n1"}') as node:
        result = CliRunner().invoke(main, ["shutdown", "--node", node])
    assert (result.exit_code, result.output) == (0, "n1 has left the channel\n")
