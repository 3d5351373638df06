"""A job as a script under spark-submit, as schedulers run it."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyspark

from m4cast.console.errors import EXIT_CODE_FAILED
from m4cast.jobs import delivery_audit
from m4cast.jobs.session import DELTA_PACKAGE

TIMEOUT_S = 300


def test_an_audit_that_finds_rows_missing_fails_its_script(audited: str, tmp_path: Path) -> None:
    folder = shutil.copytree(audited, tmp_path / "tables")
    submit = Path(pyspark.__path__[0]) / "bin" / "spark-submit"
    words = [str(submit), "--master", "local[2]", "--packages", DELTA_PACKAGE, delivery_audit.__file__]
    done = subprocess.run(
        [*words, "--tables", str(folder), "--fail-on", "incomplete", "--json"],
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == EXIT_CODE_FAILED, done.stderr[-3_000:]
    last_line = done.stdout.splitlines()[-1]  # before it, spark-submit tells what jars it has
    assert json.loads(last_line)["run"]["verdict"] == "INCOMPLETE"
