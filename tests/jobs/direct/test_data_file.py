"""Files of a table: their columns, their statistics, their number, and what remains of a failed one."""

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DateType,
    DoubleType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from m4cast.jobs.direct import data_file
from m4cast.jobs.direct.data_file import written_files
from m4cast.jobs.direct.layout import COLUMN_ID, PHYSICAL_NAME, FileLayout, columns_in, has_columns, unmet
from m4cast.spark_connector.columns import arrow_schema

AT = datetime(2026, 3, 1, 12, 0, 0, 1_999, tzinfo=UTC)
LAST = "\U0010ffff"
SEVEN = {"CURRENT_DEFAULT": "7"}


def mapped(name: str, type_: DataType, number: int) -> StructField:
    """A column as Delta has it in a table with column mapping."""
    return StructField(name, type_, True, {COLUMN_ID: number, PHYSICAL_NAME: f"col-{number}"})


INNER = StructType([mapped("a.b", StringType(), 5), mapped("c", LongType(), 6)])
COLUMNS = StructType(
    [
        mapped("id", LongType(), 1),
        mapped("total (EUR)", DoubleType(), 2),
        mapped("inner", INNER, 3),
        mapped("many", ArrayType(INNER), 7),
        mapped("by name", MapType(StringType(), INNER), 8),
    ]
)


def layout_of(
    folder: Path, columns: StructType = COLUMNS, statistics: tuple[tuple[str, ...], ...] = (("col-1",),)
) -> FileLayout:
    return FileLayout(folder=str(folder), columns=columns, statistics=statistics, codec="snappy")


def batch_of(columns: StructType, rows: list[dict[str, Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, schema=arrow_schema(columns))


@pytest.mark.parametrize(("codec", "written"), [("zstd", "ZSTD"), ("lz4_raw", "LZ4"), ("uncompressed", "UNCOMPRESSED")])
def test_files_are_compressed_as_spark_is_set_to(tmp_path: Path, codec: str, written: str) -> None:
    layout = replace(layout_of(tmp_path), codec=codec)
    (file,) = written_files(layout, [batch_of(COLUMNS, [{"id": 1}])])
    metadata = pq.read_metadata(tmp_path / file.name)
    assert {metadata.row_group(0).column(at).compression for at in range(metadata.num_columns)} == {written}
    assert file.name.endswith(f".{codec}.parquet")


def test_files_have_the_names_and_ids_of_the_table(tmp_path: Path) -> None:
    struct = {"a.b": "tea", "c": 7}
    row = {"id": 1, "total (EUR)": 2.5, "inner": struct, "many": [struct, None], "by name": [("x", struct)]}
    empty = dict.fromkeys(row)
    layout = FileLayout.from_json(layout_of(tmp_path).to_json())
    (file,) = written_files(layout, [batch_of(COLUMNS, [row, empty]), batch_of(COLUMNS, [row])])
    found = pq.read_table(tmp_path / file.name)
    assert (file.rows, file.bytes) == (3, (tmp_path / file.name).stat().st_size)
    renamed = {"col-5": "tea", "col-6": 7}
    written = {"col-1": 1, "col-2": 2.5, "col-3": renamed, "col-7": [renamed, None], "col-8": [("x", renamed)]}
    assert found.to_pylist() == [written, dict.fromkeys(written), written]
    ids = {field.name: field.metadata[b"PARQUET:field_id"] for field in found.schema}
    assert ids == {name: name.removeprefix("col-").encode() for name in written}
    assert found.schema.field("col-3").type.field(1).metadata == {b"PARQUET:field_id": b"6"}


@pytest.mark.parametrize("partition", [None, "what"])
def test_a_file_that_is_described_is_on_the_disk(tmp_path: Path, synced: set[Path], partition: str | None) -> None:
    """Its name and that of its folder are on the disk, too."""
    columns = StructType([StructField("id", LongType()), StructField("what", StringType())])
    layout = replace(layout_of(tmp_path, columns, ()), partition=partition)
    for file in written_files(layout, [batch_of(columns, [{"id": 1, "what": "a"}, {"id": 2, "what": "b"}])]):
        place = tmp_path / file.name
        assert {place, place.parent, tmp_path} <= synced


def test_statistics_are_those_of_all_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_file, "ROW_GROUP_ROWS", 2)
    types = {"n": LongType(), "x": DoubleType(), "what": StringType(), "day": DateType(), "none": LongType()}
    times = {"at": TimestampType(), "local": TimestampNTZType()}
    columns = StructType([StructField(name, type_) for name, type_ in {**types, **times}.items()])
    paths = tuple((name,) for name in columns.names)
    local = AT.replace(tzinfo=None)
    first = {"n": 3, "x": 1.5, "what": "b", "day": date(2026, 3, 1), "at": AT, "local": local}
    later = {"n": -4, "x": float("nan"), "what": "z" * 33, "at": AT.replace(year=2027)}
    batches = [batch_of(columns, [first]), batch_of(columns, [{}]), batch_of(columns, [later])]
    (file,) = written_files(layout_of(tmp_path, columns, paths), batches)
    assert json.loads(file.statistics) == {
        "numRecords": 3,
        "minValues": {
            "n": -4,
            "what": "b",
            "day": "2026-03-01",
            "at": "2026-03-01T12:00:00.001Z",
            "local": "2026-03-01T12:00:00.001",
        },
        "maxValues": {
            "n": 3,
            "what": "z" * 32 + "\U0010ffff",
            "day": "2026-03-01",
            "at": "2027-03-01T12:00:00.001Z",
            "local": "2026-03-01T12:00:00.001",
        },
        "nullCount": {"n": 1, "x": 1, "what": 1, "day": 2, "none": 3, "at": 1, "local": 2},
    }


@pytest.mark.parametrize(
    ("value", "greatest"),
    [
        ("z" * 32 + LAST, "z" * 32 + LAST),
        ("z" * 32 + LAST + "a", "z" * 32 + LAST * 2),
        (LAST * 40 + "a", LAST * 41),
        (LAST * 40, LAST * 40),
        ("z" * 31 + LAST + "a", "z" * 31 + LAST * 2),
    ],
    ids=["at the end", "at the cut", "all but one", "all", "before the cut"],
)
def test_no_text_is_greater_than_the_greatest_of_its_statistics(tmp_path: Path, value: str, greatest: str) -> None:
    """Even if it has the last of all characters where it is cut."""
    columns = StructType([StructField("what", StringType())])
    (file,) = written_files(layout_of(tmp_path, columns, (("what",),)), [batch_of(columns, [{"what": value}])])
    assert json.loads(file.statistics)["maxValues"]["what"] == greatest >= value


def test_values_that_python_lacks_have_no_ends_in_statistics(tmp_path: Path) -> None:
    """Years beyond 9999, as Spark has them, and text that is none."""
    columns = StructType([StructField("day", DateType()), StructField("what", StringType())])
    no_text = pa.StringArray.from_buffers(1, pa.py_buffer(b"\0\0\0\0\2\0\0\0"), pa.py_buffer(b"\xff\xfe"))
    batch = pa.RecordBatch.from_arrays([pa.array([4_000_000], pa.date32()), no_text], schema=arrow_schema(columns))
    (file,) = written_files(layout_of(tmp_path, columns, (("day",), ("what",))), [batch])
    assert json.loads(file.statistics) == {
        "numRecords": 1,
        "minValues": {},
        "maxValues": {},
        "nullCount": {"day": 0, "what": 0},
    }


def test_a_dot_in_a_name_is_no_path(tmp_path: Path) -> None:
    """In a table without column mapping, names are those of its files."""
    columns = StructType([StructField("a.b", LongType()), StructField("a", StructType([StructField("b", LongType())]))])
    layout = layout_of(tmp_path, columns, (("a.b",), ("a", "b")))
    (file,) = written_files(layout, [batch_of(columns, [{"a.b": 1, "a": {"b": 2}}])])
    assert json.loads(file.statistics)["maxValues"] == {"a.b": 1, "a": {"b": 2}}


def test_statistics_of_a_field_of_a_struct_have_its_path(tmp_path: Path) -> None:
    layout = layout_of(tmp_path, statistics=(("col-3", "col-6"), ("col-9",)))
    (file,) = written_files(layout, [batch_of(COLUMNS, [{"inner": {"c": 5}}])])
    found = json.loads(file.statistics)
    assert (found["minValues"], found["nullCount"]) == ({"col-3": {"col-6": 5}}, {"col-3": {"col-6": 0}})


def test_only_values_that_repeat_have_a_dictionary(tmp_path: Path) -> None:
    columns = StructType([mapped("same", StringType(), 1), mapped("other", StringType(), 2), mapped("in", INNER, 3)])
    rows = [{"same": "tea", "other": f"row {number}", "in": {"a.b": "x", "c": number}} for number in range(100)]
    (file,) = written_files(layout_of(tmp_path, columns), [batch_of(columns, rows)])
    group = pq.read_metadata(tmp_path / file.name).row_group(0)
    chunks = [group.column(at) for at in range(group.num_columns)]
    with_dictionary = [chunk.path_in_schema for chunk in chunks if chunk.has_dictionary_page]
    assert with_dictionary == ["col-1", "col-3.col-5"]


def test_large_row_groups_make_several_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_file, "ROW_GROUP_ROWS", 2)
    monkeypatch.setattr(data_file, "FILE_BYTES", 1)
    batches = [batch_of(COLUMNS, [{"id": number}]) for number in range(5)]
    files = list(written_files(layout_of(tmp_path), [*batches, batch_of(COLUMNS, [])]))
    assert [file.rows for file in files] == [2, 2, 1]
    assert [json.loads(file.statistics)["minValues"]["col-1"] for file in files] == [0, 2, 4]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(file.name for file in files)


def test_no_rows_make_no_file(tmp_path: Path) -> None:
    assert not list(written_files(layout_of(tmp_path), [batch_of(COLUMNS, [])]))
    assert not list(tmp_path.iterdir())


def test_a_file_that_is_not_finished_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_file, "ROW_GROUP_ROWS", 1)

    def broken() -> Iterator[pa.RecordBatch]:
        yield batch_of(COLUMNS, [{"id": 1}])
        yield batch_of(COLUMNS, [{"id": 2}])
        raise OSError("the node is gone")

    with pytest.raises(OSError, match="the node is gone"):
        list(written_files(layout_of(tmp_path), broken()))
    assert not list(tmp_path.iterdir())


def test_a_layout_has_the_columns_of_the_topic_as_the_table_has_them() -> None:
    table = StructType([*COLUMNS, mapped("gone", LongType(), 9)])
    topic = StructType([StructField("ID", LongType()), StructField("inner", INNER)])
    found = columns_in(table, topic)
    assert found.names == ["ID", "inner"]
    assert found["ID"].metadata == COLUMNS["id"].metadata
    assert has_columns(table, topic)
    assert not has_columns(table, StructType([StructField("new", LongType())]))
    assert not has_columns(table, StructType([StructField("id", StringType())]))


@pytest.mark.parametrize(
    ("table", "fits"),
    [
        (COLUMNS, True),
        (StructType([*COLUMNS, mapped("new", LongType(), 9)]), True),
        (StructType([*COLUMNS.fields[1:]]), False),
        (StructType([mapped("id", StringType(), 1), *COLUMNS.fields[1:]]), False),
        (StructType([mapped("renamed", LongType(), 1), *COLUMNS.fields[1:]]), True),
        (StructType([mapped("id", LongType(), 10), *COLUMNS.fields[1:]]), False),
        (StructType([*COLUMNS.fields[:4], mapped("by name", MapType(StringType(), LongType()), 8)]), False),
    ],
)
def test_files_fit_a_table_that_has_kept_their_columns(table: StructType, fits: bool, tmp_path: Path) -> None:
    assert layout_of(tmp_path).is_part_of(table) == fits


@pytest.mark.parametrize(
    ("column", "why"),
    [
        (StructField("more", LongType()), None),
        (StructField("more", LongType(), nullable=False), "rows lack column 'more', which is NOT NULL"),
        (StructField("ID", LongType(), nullable=False), None),
        (
            StructField("more", LongType(), True, {"CURRENT_DEFAULT": "7"}),
            "rows lack column 'more', which has a default",
        ),
        (StructField("id", LongType(), True, {"CURRENT_DEFAULT": "7"}), None),
        (
            StructField("id", StringType(), True, {"__CHAR_VARCHAR_TYPE_STRING": "varchar(3)"}),
            "the length of column 'id' is limited",
        ),
    ],
)
def test_what_a_table_asks_of_rows_is_known(column: StructField, why: str | None) -> None:
    assert unmet(StructType([column]), {"id"}) == why


def test_columns_that_were_renamed_are_in_files(tmp_path: Path) -> None:
    table = StructType([mapped("renamed", LongType(), 1), mapped("new", LongType(), 9)])
    assert layout_of(tmp_path).names_in(table) == ["renamed"]
