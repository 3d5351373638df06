"""The commands of jobs before Spark starts, and where its messages go."""

import io
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from m4cast.cli import main
from m4cast.console.screen import Screen
from m4cast.jobs.ingest import Filled, IngestSummary, print_summary
from m4cast.jobs.session import _printing_into


@pytest.mark.parametrize("job", ["gaps", "audit", "maintain"])
def test_a_folder_without_tables_is_noticed_before_spark_starts(
    job: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(*_: object, **__: object) -> None:
        raise AssertionError("Spark was started")

    monkeypatch.setattr("m4cast.jobs.command.job_session", start)
    result = CliRunner().invoke(main, [job, "--tables", str(tmp_path / "nowhere")])
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == f"m4cast: there is no folder {tmp_path}/nowhere: name the folder that ingest writes to\n"
    result = CliRunner().invoke(main, [job, "--tables", str(tmp_path)])
    assert result.exit_code == 2
    assert f"in {tmp_path}: name the folder that ingest writes to" in result.stderr


def test_what_a_jvm_prints_goes_to_its_log(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    script = "import sys; print('jars'); print('a trace', file=sys.stderr)"
    log = tmp_path / "logs" / "spark.log"
    with _printing_into(log):
        subprocess.run([sys.executable, "-c", script], check=True)
    print("the summary")
    assert capfd.readouterr() == ("the summary\n", "")
    assert log.read_text().splitlines() == ["jars", "a trace"]


def test_a_summary_is_not_cut_where_a_program_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    written = io.StringIO()
    monkeypatch.setattr(sys, "stdout", written)
    name = "events/" + "long-topic-" * 15
    print_summary(IngestSummary((Filled(name, 12, 1, 0, 0),), 0, 1.0), "/tables", Screen())
    assert any(line.split() == [name, "12", "1", "0", "0", "spark"] for line in written.getvalue().splitlines())
