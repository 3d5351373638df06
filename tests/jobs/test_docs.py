"""The snippets and queries of docs/AUDIT.md run, and give what they say."""

import re
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

DOCS = Path(__file__).parent.parent.parent / "docs" / "AUDIT.md"


def test_the_examples_run(spark: SparkSession, audited: str, capsys: Any) -> None:
    text = DOCS.read_text(encoding="utf-8")
    names: dict[str, Any] = {"spark": spark, "folder": audited}
    snippets = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(snippets) == 2
    for snippet in snippets:
        exec(compile(snippet, str(DOCS), "exec"), names)
    assert "INCOMPLETE" in capsys.readouterr().out
    queries = re.findall(r"```sql\n(.*?)```", text, re.DOTALL)
    assert len(queries) == 5
    missing, health, latest, slow, repairs = (spark.sql(query.format(folder=audited)).collect() for query in queries)
    assert missing[0]["receiver"] == "n7" and missing[0]["is_tail"]
    assert any(row["receiver"] == "n5" and not row["is_tail"] for row in missing)
    assert next(row["receiver"] for row in health if row["missing"] or row["lost"]) == "n7"
    assert {row["receiver"] for row in health if row["completeness"] == 100} >= {"n1", "n2", "n3", "n4", "n8", "n9"}
    assert {row["status"] for row in latest} == {"SILENT"}
    assert {row["node_id"] for row in slow} == {"n4"}
    assert {row["node_id"] for row in repairs} == {"n4"}
