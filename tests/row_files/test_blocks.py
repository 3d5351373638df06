"""Files and pipes as rows: what types come of it, and which line is to blame."""

import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet
import pytest

from m4cast.overlay.errors import M4castError
from m4cast.row_files import blocks, lines
from m4cast.row_files.blocks import blocks_of
from m4cast.row_files.column_types import ColumnTypes


def tables(file: Path, kind: str, known: ColumnTypes | None = None) -> Iterator[pa.Table]:
    for block in blocks_of(file, kind, known or ColumnTypes()):
        yield block.table()


def rows_of(tmp_path: Path, text: str, kind: str = "jsonl", known: ColumnTypes | None = None) -> list[dict[str, Any]]:
    file = tmp_path / "input"
    file.write_bytes(text.encode())
    return [row for table in tables(file, kind, known) for row in table.to_pylist()]


def types_of(tmp_path: Path, text: str, kind: str = "jsonl", known: ColumnTypes | None = None) -> dict[str, str]:
    file = tmp_path / "input"
    file.write_bytes(text.encode())
    (table,) = tables(file, kind, known)
    return {field.name: str(field.type) for field in table.schema}


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "BLOCK_BYTES", 64)
    monkeypatch.setattr(lines, "READ_BYTES", 16)


# ---- types


def test_text_in_json_stays_text(tmp_path: Path) -> None:
    text = '{"at": "2026-01-01T00:00:00Z", "days": ["2026-01-01"], "deep": {"at": "2026-01-01"}, "n": 1, "f": 1.5}\n'
    assert types_of(tmp_path, text) == {
        "at": "string",
        "days": "list<element: string>",
        "deep": "struct<at: string>",
        "n": "int64",
        "f": "double",
    }


def test_what_is_empty_everywhere_has_no_type_yet(tmp_path: Path) -> None:
    text = '{"none": null, "list": [], "object": {}, "deep": {"list": []}, "id": 1}\n'
    no_types = dict.fromkeys(("none", "list", "object", "deep"), "null")
    assert types_of(tmp_path, text) == {**no_types, "id": "int64"}


def test_types_of_the_topic_count(tmp_path: Path) -> None:
    known = ColumnTypes()
    known.learn(
        pa.schema(
            {
                "at": pa.timestamp("us", "UTC"),
                "day": pa.date32(),
                "days": pa.list_(pa.date32()),
                "price": pa.float64(),
                "small": pa.int8(),
                "money": pa.decimal128(10, 2),
                "untold": pa.string(),
                "tags": pa.map_(pa.string(), pa.string()),
                "nothing": pa.null(),
            }
        )
    )
    text = '{"at": "2026-01-01T00:00:00Z", "day": "2026-01-31", "days": ["2026-01-01"], "price": 1, "small": 2, '
    text += '"money": 1.5, "new": "2026-01-01"}\n'
    assert types_of(tmp_path, text, known=known) == {
        "at": "timestamp[us, tz=UTC]",
        "day": "date32[day]",
        "days": "list<item: date32[day]>",
        "price": "double",
        "small": "int8",
        "money": "decimal128(10, 2)",
        "new": "string",
    }
    assert types_of(tmp_path, "price,small\n1,2\n", "csv", known) == {"price": "double", "small": "int8"}


def test_csv_is_guessed(tmp_path: Path) -> None:
    text = "n,f,truth,day,at,text\n1,1.5,true,2026-01-01,2026-01-01T00:00:00Z,tea\n"
    types = ["int64", "double", "bool", "date32[day]", "timestamp[s, tz=UTC]", "string"]
    assert list(types_of(tmp_path, text, "csv").values()) == types


@pytest.mark.parametrize(
    ("value", "type_"),
    [
        ("18446744073709551615", None),
        ("0.12345678901234567891", None),
        ("1e-400", None),
        ("9007199254740993", pa.float64()),
        ("0.1", pa.float32()),
        ("1.239", pa.decimal128(10, 2)),
    ],
)
def test_a_number_that_would_change_is_an_error_that_names_its_line(
    tmp_path: Path, value: str, type_: pa.DataType | None
) -> None:
    for kind, text in (("jsonl", f'{{"x": 0.5}}\n{{"x": {value}}}\n'), ("csv", f"x\n0.5\n{value}\n")):
        known = ColumnTypes()
        if type_ is not None:
            known.learn(pa.schema([("x", type_)]))
        with pytest.raises(M4castError, match=f"line {3 if kind == 'csv' else 2}: "):
            rows_of(tmp_path, text, kind, known)


def test_numbers_are_kept_as_they_are_written(tmp_path: Path) -> None:
    numbers = [0.1, 0.30000000000000004, 1e22, 5e-324, 9007199254740992]
    assert rows_of(tmp_path, "".join(f'{{"x": {each!r}}}\n' for each in numbers)) == [{"x": each} for each in numbers]
    assert rows_of(tmp_path, "x\n" + "".join(f"{each!r}\n" for each in numbers), "csv") == [{"x": x} for x in numbers]
    known = ColumnTypes()
    known.learn(pa.schema([("x", pa.float32()), ("deep", pa.list_(pa.float32()))]))
    assert rows_of(tmp_path, '{"x": 1, "deep": [0.5]}\n{"x": 0.5}\n', known=known)[0] == {"x": 1.0, "deep": [0.5]}
    assert rows_of(tmp_path, "x\n 0.5\n", "csv", known) == [{"x": 0.5}]


def test_json_that_is_nested_too_deep_is_an_error(tmp_path: Path) -> None:
    """Arrow's reader would end the process."""
    with pytest.raises(M4castError, match="line 2: it is nested deeper than 32"):
        rows_of(tmp_path, '{"a": 1}\n{"a": ' + "[" * 20_000 + "]" * 20_000 + "}\n")


# ---- blocks


@pytest.mark.usefixtures("small_blocks")
def test_lines_of_many_blocks_are_all_there_once(tmp_path: Path) -> None:
    expected = [{"id": number, "what": "x" * (number % 50)} for number in range(200)]
    text = "\n\n".join(json.dumps(row) for row in expected)  # empty lines are nothing; the last line does not end
    assert rows_of(tmp_path, text) == expected
    assert rows_of(tmp_path, text.replace("\n", "\r\n")) == expected


@pytest.mark.usefixtures("small_blocks")
def test_records_of_many_blocks_may_have_line_ends_in_quotes(tmp_path: Path) -> None:
    expected = [{"id": number, "what": 'a\n"b",\n' * (number % 5)} for number in range(100)]
    lines = ['"{}","{}"'.format(row["id"], str(row["what"]).replace('"', '""')) for row in expected]
    assert rows_of(tmp_path, "\n\nid,what\n" + "\n".join(lines), "csv") == expected


@pytest.mark.usefixtures("small_blocks")
def test_quotes_that_never_end_do_not_hold_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "LINE_BYTES_MAX", 256)
    file = tmp_path / "input"
    file.write_text("id,what\n" + '1,5" pipe\n' + "2,plain pipe\n" * 1000)
    sizes = [table.num_rows for table in tables(file, "csv")]
    assert sum(sizes) == 1001 and max(sizes) < 100


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("kind", ["jsonl", "csv"])
def test_a_line_without_an_end_is_not_read_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(lines, "LINE_BYTES_MAX", 256)
    file = tmp_path / "input"
    file.write_bytes(b'{"a": 1}\n{"a": 2}\n' + b"x" * 1000)
    with pytest.raises(M4castError, match="line 3: is longer than the limit of 256 bytes"):
        list(tables(file, kind))


@pytest.mark.parametrize(
    ("kind", "text"),
    [("jsonl", ""), ("jsonl", "\n \n"), ("csv", ""), ("csv", "\n"), ("csv", "id,what\n"), ("csv", "id")],
)
def test_no_rows_are_no_error(tmp_path: Path, kind: str, text: str) -> None:
    assert rows_of(tmp_path, text, kind) == []


def test_a_byte_order_mark_is_no_row(tmp_path: Path) -> None:
    assert rows_of(tmp_path, '\ufeff{"id": 1}\n') == [{"id": 1}]
    assert rows_of(tmp_path, "\ufeffid\n1\n", "csv") == [{"id": 1}]


@pytest.mark.usefixtures("small_blocks")
def test_columns_may_come_later(tmp_path: Path) -> None:
    text = "".join(f'{{"id": {number}}}\n' for number in range(20)) + '{"id": 20, "what": "tea"}\n{"what": null}\n'
    rows = rows_of(tmp_path, text)
    assert len(rows) == 22
    assert rows[-2:] == [{"id": 20, "what": "tea"}, {"id": None, "what": None}]


# ---- what is wrong, and where


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(
    ("kind", "line", "said"),
    [
        ("jsonl", "not json", "not a JSON object: jsonl has one per line"),
        ("jsonl", "[1]", "not a JSON object"),
        ("jsonl", '{"id": 1', "not a JSON object"),
        ("jsonl", '{"id": }', "JSON parse error"),
        ("jsonl", '{"id": 1} {"id": 2}', "more than one JSON object"),
        ("jsonl", '{"id": "x"}', "JSON parse error: Column(/id) changed from number to string"),
        ("jsonl", '{"id": 1.5}', "Failed to convert JSON to int64"),
        ("jsonl", '{"in": {"a": 1, "b": 2}}', "column 'in' is struct<a: int64> so far"),
        ("csv", "1", "CSV parse error: Expected 2 columns, got 1"),
        ("csv", "1,2,3", "CSV parse error: Expected 2 columns, got 3"),
        ("csv", "x,y", "column 'id': CSV conversion error to int64: invalid value 'x'"),
    ],
)
@pytest.mark.parametrize("at", [60, 61, 62, 63, 64])
def test_the_line_that_is_wrong_is_named(tmp_path: Path, kind: str, line: str, said: str, at: int) -> None:
    good = '{"id": 7, "in": {"a": 1}}' if kind == "jsonl" else "7,tea"
    lines = [good if kind == "jsonl" else "id,what", *[good] * 100]
    lines[at - 1] = line
    with pytest.raises(M4castError) as wrong:
        rows_of(tmp_path, "\n".join(lines), kind)
    assert f"input: is not {kind}: line {at}: {said}" in str(wrong.value)
    assert "row" not in str(wrong.value).lower().replace("tea", "")


def test_text_that_is_not_utf_8_is_named(tmp_path: Path) -> None:
    file = tmp_path / "input"
    file.write_bytes(b'{"id": "a"}\n{"id": "\xff"}\n')
    with pytest.raises(M4castError, match="line 2: "):
        list(tables(file, "jsonl"))


# ---- parquet and arrow


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_files_with_types_come_batch_by_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(blocks, "BATCH_ROWS", 100)
    file = tmp_path / "input"
    table = pa.table({"id": pa.array(range(1000), pa.int16())})
    if kind == "parquet":
        pyarrow.parquet.write_table(table, file)
    else:
        pyarrow.feather.write_feather(table, file, chunksize=100)
    read = list(tables(file, kind))
    assert [each.num_rows for each in read] == [100] * 10
    assert pa.concat_tables(read) == table


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_a_pipe_of_them_is_read_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    table = pa.table({"id": [1, 2]})
    file = tmp_path / "input"
    pyarrow.parquet.write_table(table, file) if kind == "parquet" else pyarrow.feather.write_feather(table, file)

    class Pipe(io.BytesIO):
        def seekable(self) -> bool:
            return False

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(Pipe(file.read_bytes())))
    assert pa.concat_tables(list(tables(Path("-"), kind))) == table


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_files_of_another_format_are_reported(tmp_path: Path, kind: str) -> None:
    (tmp_path / "input").write_text("tea")
    with pytest.raises(M4castError, match=rf"input: (is not|cannot be read as) {kind}"):
        list(tables(tmp_path / "input", kind))


def test_a_member_that_is_null_everywhere_takes_nothing_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = '{"a": {"x": 1, "y": null}, "l": [{"q": 1, "r": []}], "e": {}}\n'
    wanted = {"a": {"x": 1}, "l": [{"q": 1}], "e": None}
    assert rows_of(tmp_path, text) == [wanted]
    monkeypatch.setattr(lines, "BLOCK_BYTES", 1)
    monkeypatch.setattr(lines, "READ_BYTES", len(text))
    assert rows_of(tmp_path, text * 3) == [wanted] * 3, "block after block"
    with pytest.raises(M4castError, match=r"line 2: column 'a' is struct<x: int64> so far, but here it is struct<"):
        rows_of(tmp_path, text + text.replace("null", "2222"))


def test_objects_without_members_are_no_rows(tmp_path: Path) -> None:
    with pytest.raises(M4castError, match="line 1: an object without members"):
        rows_of(tmp_path, "{}\n{}\n")


def test_lines_that_end_with_cr_alone_are_refused(tmp_path: Path) -> None:
    with pytest.raises(M4castError, match="line 1: a line that ends with CR alone"):
        rows_of(tmp_path, "id,name\r1,a\r2,b\r", "csv")
    assert rows_of(tmp_path, "id,name\r\n1,a\r\n", "csv") == [{"id": 1, "name": "a"}]


# ---- arrays


ARRAY = [
    {"id": 1, "text": 'a "quoted" , [ ] { } \\\\ line\nend'},
    {"id": 2, "text": "ü"},
    {"id": 3, "deep": [{"a": [1, 2]}]},
]


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("indent", [None, 4])
def test_an_array_is_its_elements_in_blocks(tmp_path: Path, indent: int | None) -> None:
    text = json.dumps(ARRAY * 10, indent=indent)
    for given in (text, f"\ufeff \n{text}\n\n"):
        rows = rows_of(tmp_path, given, "json")
        assert [(row["id"], row.get("text")) for row in rows] == [(each["id"], each.get("text")) for each in ARRAY * 10]


def test_an_empty_array_is_no_rows(tmp_path: Path) -> None:
    assert rows_of(tmp_path, "[ ]") == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[{"a": 1}, 2]', "element 2: not a JSON object"),
        ('[{"a": 1},, {"a": 2}]', "element 2: not a JSON object"),
        ('[{"a": 1},]', "element 2: not a JSON object"),
        ('[{"a": 1} {"a": 2}]', "element 1: "),
        ('[{"a": 1}', "element 1: the array does not end: ']' is missing"),
        ('[{"a": 1}, {"a": 2', "element 2: the array does not end"),
        ('[{"a": 1}] {"a": 2}', "element 2: unexpected text after the array"),
        ('[[{"a": 1}]]', "element 1: not a JSON object"),
        ('[{"a": 1}, {"a": "x"}]', "element 2: "),
    ],
)
def test_invalid_arrays_are_reported_with_the_element(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(M4castError) as error:
        rows_of(tmp_path, text)
    assert said in str(error.value)


# ---- columns


def chosen(
    tmp_path: Path, text: str, kind: str, columns: list[str], *, has_header: bool = True
) -> list[dict[str, Any]]:
    file = tmp_path / "input"
    file.write_bytes(text.encode())
    blocks = blocks_of(file, kind, ColumnTypes(), columns, has_header=has_header)
    return [row for block in blocks for row in block.table().to_pylist()]


def test_columns_are_taken_in_their_order(tmp_path: Path) -> None:
    for text, kind in (("a,b,c\n1,2,3\n", "csv"), ('{"a": 1, "b": 2, "c": 3}\n', "jsonl")):
        (row,) = chosen(tmp_path, text, kind, ["c", "a"])
        assert list(row.items()) == [("c", 3), ("a", 1)]
    pyarrow.parquet.write_table(pa.table({"a": [1], "b": [2], "c": [3]}), tmp_path / "rows.parquet")
    (block,) = blocks_of(tmp_path / "rows.parquet", "parquet", ColumnTypes(), ["c", "a"])
    assert block.table().to_pylist() == [{"c": 3, "a": 1}]


def test_a_csv_without_names_is_given_them(tmp_path: Path) -> None:
    (row,) = chosen(tmp_path, '1,"x, y"\n', "csv", ["id", 'a "name", with all'], has_header=False)
    assert row == {"id": 1, 'a "name", with all': "x, y"}
    with pytest.raises(M4castError, match=r"line 2: .*Expected 2 columns, got 3"):
        chosen(tmp_path, "1,2\n1,2,3\n", "csv", ["a", "b"], has_header=False)


def test_a_column_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(M4castError, match="there is no column 'x': the columns are 'a', 'b'"):
        chosen(tmp_path, "a,b\n1,2\n", "csv", ["a", "x"])
    rows = chosen(tmp_path, '{"a": 1}\n{"b": 2}\n', "jsonl", ["b", "x"])
    assert rows == [{"b": None}, {"b": 2}], "rows of JSON may lack columns"
    with pytest.raises(M4castError, match="there is no column 'x': the columns are 'a'"):
        chosen(tmp_path, '{"a": 1}\n', "jsonl", ["x"])
