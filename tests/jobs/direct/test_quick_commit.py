"""Commits without Kernel: only the next version after one's own, only a later micro-batch, and never over another's."""

import errno
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql.types import StructType

from m4cast.jobs.direct.data_file import DataFile
from m4cast.jobs.direct.layout import FileLayout
from m4cast.jobs.direct.quick_commit import LastCommit, is_replaced

FILE = DataFile(name="part-1.parquet", rows=3, bytes=70, modified_at_ms=5, statistics='{"numRecords": 3}')


@pytest.fixture
def layout(tmp_path: Path) -> FileLayout:
    return FileLayout(folder=str(tmp_path), columns=StructType(), statistics=(), codec="snappy")


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """It has versions up to 7, the last of which is ours."""
    folder = tmp_path / "_delta_log"
    folder.mkdir()
    path(folder, 7).touch()
    return folder


@pytest.fixture
def last(log: Path, layout: FileLayout) -> LastCommit:
    found = LastCommit.noted(7, "q", 4, layout, ["clustering", "columnMapping"], {})
    assert found is not None
    return found


def path(log: Path, version: int) -> Path:
    return log / f"{version:020}.json"


def test_a_version_that_is_taken_is_on_the_disk(
    last: LastCommit, layout: FileLayout, log: Path, synced: set[Path]
) -> None:
    assert last.followed([FILE], layout, "q", 6, "") is not None
    assert log in synced and len(synced) == 2


def test_the_next_version_is_taken(last: LastCommit, layout: FileLayout, log: Path) -> None:
    after = last.followed([FILE], layout, "q", 6, "the writer")
    assert after == replace(last, version=8, micro_batch=6)
    about, transaction, add = (json.loads(line) for line in path(log, 8).read_text().splitlines())
    assert (about["commitInfo"]["engineInfo"], about["commitInfo"]["operation"]) == ("the writer", "STREAMING UPDATE")
    assert about["commitInfo"]["operationParameters"] == {"outputMode": "Append", "queryId": "q", "epochId": "6"}
    assert about["commitInfo"]["operationMetrics"] == {
        "numAddedFiles": "1",
        "numRemovedFiles": "0",
        "numOutputRows": "3",
        "numOutputBytes": "70",
    }
    assert (transaction["txn"]["appId"], transaction["txn"]["version"]) == ("q", 6)
    assert add["add"] == {
        "path": "part-1.parquet",
        "partitionValues": {},
        "size": 70,
        "modificationTime": 5,
        "dataChange": True,
        "stats": '{"numRecords": 3}',
    }
    assert sorted(log.iterdir()) == [path(log, 7), path(log, 8)]


@pytest.mark.parametrize(("query", "micro_batch"), [("q", 4), ("q", 3), ("other", 5)])
def test_what_may_be_in_the_log_is_left_to_kernel(
    last: LastCommit, layout: FileLayout, log: Path, query: str, micro_batch: int
) -> None:
    assert last.followed([FILE], layout, query, micro_batch, "") is None
    assert not path(log, 8).exists()


def test_another_ones_version_is_not_overwritten(last: LastCommit, layout: FileLayout, log: Path) -> None:
    path(log, 8).write_text("another's")
    assert last.followed([FILE], layout, "q", 5, "") is None
    assert path(log, 8).read_text() == "another's"
    assert sorted(log.iterdir()) == [path(log, 7), path(log, 8)]


def test_a_version_that_another_writer_has_replaced_is_known(last: LastCommit, layout: FileLayout, log: Path) -> None:
    assert last.followed([FILE], layout, "q", 6, "") is not None
    assert not is_replaced(log, 8, "q", 6)
    own = path(log, 8).read_text()
    another = log / "another"
    another.write_text(own.replace('"appId":"q"', '"appId":"p"'))
    another.rename(path(log, 8))
    assert is_replaced(log, 8, "q", 6)
    path(log, 8).write_text("")
    assert is_replaced(log, 8, "q", 6)
    path(log, 8).unlink()
    assert not is_replaced(log, 8, "q", 6), "it was removed, as Delta does in time"


def test_a_table_in_place_of_the_known_one_gets_no_hole(last: LastCommit, layout: FileLayout, log: Path) -> None:
    path(log, 7).rename(path(log, 0))
    assert last.followed([FILE], layout, "q", 5, "") is None
    assert not path(log, 8).exists()


def test_a_table_in_place_of_the_known_one_is_noticed_though_it_has_as_many_versions(
    last: LastCommit, layout: FileLayout, log: Path
) -> None:
    path(log, 7).rename(log / "another")
    path(log, 7).touch()
    assert last.followed([FILE], layout, "q", 5, "") is None
    assert not path(log, 8).exists()
    (log / "another").rename(path(log, 7))
    after = last.followed([FILE], layout, "q", 5, "")
    assert after is not None and after.followed([FILE], layout, "q", 6, "") is not None


def test_checkpoints_other_columns_and_other_features_are_kernels(
    last: LastCommit, layout: FileLayout, log: Path
) -> None:
    path(log, 9).touch()
    assert replace(last, version=9).followed([FILE], layout, "q", 5, "") is None, "every tenth by default"
    assert last.followed([FILE], replace(layout), "q", 5, "") is None, "a layout that Kernel has not checked"
    assert LastCommit.noted(7, "q", 4, layout, ["columnMapping", "inCommitTimestamp"], {}) is None
    assert LastCommit.noted(7, "q", 4, replace(layout, partition="kind"), [], {}) is None
    rarely = LastCommit.noted(9, "q", 4, layout, [], {"delta.checkpointInterval": "50"})
    assert rarely is not None and rarely.followed([FILE], layout, "q", 5, "") is not None


def test_a_link_whose_answer_was_lost_is_known_as_ones_own(
    last: LastCommit, layout: FileLayout, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = os.link

    def answered_late(*given: Path) -> None:
        link(*given)
        raise FileExistsError

    monkeypatch.setattr(os, "link", answered_late)
    assert last.followed([FILE], layout, "q", 5, "") is not None
    assert path(log, 8).exists()


def test_without_hard_links_kernel_commits_and_other_trouble_is_said(
    last: LastCommit, layout: FileLayout, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: Path) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", failing)
    number = errno.EPERM
    assert last.followed([FILE], layout, "q", 5, "") is None
    number = errno.ENOSPC
    with pytest.raises(OSError, match="No space left"):
        last.followed([FILE], layout, "q", 5, "")
    assert list(log.iterdir()) == [path(log, 7)], "nothing is left behind"
