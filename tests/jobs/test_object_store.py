"""Ingest into an S3-compatible store: moto's server on this machine, which is installed for it, as the jars are."""

import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.jobs.object_store import BUCKET
from tests.processes.clusters import running_cluster, until

MOTO = ("moto[s3]==5.2.5", "flask", "flask-cors")
TIMEOUT_S = 900
RUNNING = re.compile(r"Running on (http://127\.0\.0\.1:\d+)")


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[str]:
    """An S3 with one bucket, in an environment of its own."""
    python = tmp_path / "venv" / "bin" / "python"
    for words in (
        [sys.executable, "-m", "venv", str(tmp_path / "venv")],
        [str(python), "-m", "pip", "install", "-q", *MOTO],
    ):
        subprocess.run(words, check=True, timeout=TIMEOUT_S)
    log = tmp_path / "moto.log"
    with log.open("wb") as file:
        words = [str(python.with_name("moto_server")), "-H", "127.0.0.1", "-p", "0"]
        server = subprocess.Popen(words, stdout=file, stderr=file)
    try:
        until(lambda: RUNNING.search(log.read_text()) is not None, "the server is up")
        found = RUNNING.search(log.read_text())
        assert found is not None
        address = found[1]
        urllib.request.urlopen(urllib.request.Request(f"{address}/{BUCKET}", method="PUT"), timeout=60).close()
        yield address
    finally:
        server.terminate()
        server.wait(30)


@pytest.mark.soak
def test_a_channel_is_ingested_into_an_object_store(tmp_path: Path, endpoint: str) -> None:
    """Through a replayed micro-batch, a lost checkpoint, a new column and maintenance, as into a folder."""
    with running_cluster(tmp_path / "cluster", 1) as cluster:
        settings = {"node": cluster.node("n1").door, "endpoint": endpoint, "folder": str(tmp_path / "tables")}
        done = subprocess.run(
            [sys.executable, "-m", "tests.jobs.object_store", json.dumps(settings)],
            env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    assert done.returncode == 0, done.stdout[-3_000:] + done.stderr[-6_000:]
    found = json.loads(done.stdout.splitlines()[-1])
    why = "its folder is on s3a, and Python writes to mounted file systems only"
    assert found == {
        "engines": {"events/orders": ["spark", why], "deliveries": ["spark", why]},
        "after_replay": list(range(60)),
        "ids": list(range(65)),
        "maintained": ["deliveries", "events/orders", "interest", "roster"],
        "differences": 0,
        "types": True,
    }
