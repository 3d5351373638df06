"""A store file of before is read as it was meant, is left as it is, and would be written the same way today."""

import json
from pathlib import Path
from typing import Any

from m4cast.overlay.store.inspection import check, stats
from tests.overlay.store.kept_store import PICTURE, picture, tables, unpack, write_store
from tests.overlay.store.store_parts import opened


def written_down() -> dict[str, Any]:
    facts: dict[str, Any] = json.loads(PICTURE.read_text(encoding="utf-8"))
    return facts


def test_the_kept_store_uses_every_table(tmp_path: Path) -> None:
    unpack(tmp_path)
    assert [name for name, rows in tables(tmp_path).items() if not rows] == []
    assert tables(tmp_path) == written_down()["tables"]


def test_the_kept_store_is_read_as_it_was_written(tmp_path: Path) -> None:
    unpack(tmp_path)
    assert picture(tmp_path) == written_down()["picture"]


def test_opening_the_kept_store_changes_its_incarnation_and_nothing_else(tmp_path: Path) -> None:
    unpack(tmp_path)
    before = tables(tmp_path)
    for _ in range(2):
        with opened(tmp_path):
            pass
    after = tables(tmp_path)
    identity = b"identity".hex()
    raised = [json.loads(bytes.fromhex(found["meta"].pop(identity))) for found in (before, after)]
    assert raised[1] == {**raised[0], "incarnation": raised[0]["incarnation"] + 2}
    assert after == before


def test_the_same_life_writes_the_same_bytes(tmp_path: Path) -> None:
    write_store(tmp_path)
    assert tables(tmp_path) == written_down()["tables"]


def test_the_kept_store_is_inspected_beside_no_node(tmp_path: Path) -> None:
    unpack(tmp_path)
    report = check(tmp_path)
    counts = [report.streams, report.batches, report.rows, report.bytes, report.skips, report.staged, report.payloads]
    assert report.problems == [] and counts == written_down()["picture"]["check"]["counts"]
    found, recovered = stats(tmp_path), written_down()["picture"]["recovered"]
    assert found.owner.node_id == recovered["node_id"] and found.owner.former_ids == recovered["former_ids"]
    assert [reader.name for reader in found.readers] == list(written_down()["picture"]["readers"])
