"""TLS and tokens through Spark; and the secret, which is in nothing that Spark shows, logs or keeps."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from m4cast.overlay.client import Channel
from tests.overlay.door.served import Served, serving
from tests.security.attackers import Certificates

SECRET = "hunter2-hunter2-hunter2"
TIMEOUT_S = 300


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path / "certificates")


@pytest.fixture
def guarded(tmp_path: Path, certificates: Certificates) -> Iterator[Served]:
    rights = 'publish = ["orders*"]\nread = ["orders*"]\n'
    tokens = tmp_path / "tokens.toml"
    tokens.write_text(f'[[token]]\nname = "spark"\nsecret = "{SECRET}"\n{rights}')
    with serving(tmp_path / "node", 1, None, f"file:{tokens}", certificates.settings) as served:
        yield served


def test_a_secret_opens_the_door_and_is_shown_nowhere(
    guarded: Served, certificates: Certificates, tmp_path: Path
) -> None:
    folder = tmp_path / "query"
    folder.mkdir()
    settings = {"nodes": guarded.addresses[0], "ca": str(certificates.ca), "token": SECRET, "folder": str(folder)}
    environment = {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1", "ORDERS_SECRET": SECRET}
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark_connector.guarded_query", json.dumps(settings)],
        env={**os.environ, **environment},
        capture_output=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-6_000:].decode()
    channel = Channel(guarded.addresses, token=SECRET, ca=str(certificates.ca))
    assert channel.read("orders-again")["id"].to_pylist() == 2 * list(range(10))

    shown = (folder / "shown").read_text()
    for expected in ("M4CAST_REFUSED", "forbidden", "M4CAST_UNKNOWN_OPTION", "environment"):
        assert expected in shown
    written = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    written[Path("stdout and stderr")] = done.stdout + done.stderr
    assert any("events" in path.parts and b"SparkListenerSQLExecutionStart" in text for path, text in written.items())
    assert [str(path) for path, text in written.items() if SECRET.encode() in text] == []
