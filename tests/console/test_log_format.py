"""A node's log, as lines for programs."""

import json
import logging
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

from m4cast.console.log_format import JsonFormatter


def line(record: logging.LogRecord) -> dict[str, str]:
    text = JsonFormatter("n1").format(record)
    assert "\n" not in text
    said: dict[str, str] = json.loads(text)
    return said


def test_a_line_is_one_json_object() -> None:
    record = logging.LogRecord("m4cast.node", logging.WARNING, "x.py", 1, "%s says\n%s", ("zoë", "no"), None)
    record.created = datetime(2026, 1, 31, 12, 0, 0, 5_000, tzinfo=UTC).timestamp()
    assert line(record) == {
        "at": "2026-01-31T12:00:00.005+00:00",
        "level": "warning",
        "node": "n1",
        "logger": "m4cast.node",
        "message": "zoë says\nno",
    }


def test_an_error_has_its_traceback() -> None:
    try:
        raise ValueError("boom")
    except ValueError:
        record = logging.LogRecord("m4cast.door", logging.ERROR, "x.py", 1, "a mistake", (), sys.exc_info())
    assert "ValueError: boom" in line(record)["error"]


def test_a_node_logs_in_the_chosen_format(tmp_path: Path) -> None:
    conf = tmp_path / "node.toml"
    conf.write_text(
        '[cluster]\n[node]\nname = "solo"\nlisten = "127.0.0.1:0"\ndoor = ""\nhttp = ""\ninsecure = true\n',
        encoding="utf-8",
    )
    words = ["node", "--conf", str(conf), "--dir", str(tmp_path / "store"), "--log-format", "json"]
    with subprocess.Popen([sys.executable, "-m", "m4cast", *words], stderr=subprocess.PIPE, text=True) as node:
        assert node.stderr is not None
        said = []
        for text in node.stderr:
            said.append(json.loads(text))
            if said[-1]["message"] == "on the channel":
                node.send_signal(signal.SIGTERM)
    assert node.returncode == 0
    assert {each["node"] for each in said} == {"solo"}
    assert said[-1]["message"] == "left the channel"
