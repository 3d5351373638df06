"""Contents of a micro-batch of the shared query, as arithmetic on offsets and joins."""

import json
from pathlib import Path
from typing import Any

import pytest

from m4cast.jobs.direct import shared_source
from m4cast.jobs.direct.joins import JoinFolder, PlanFile, PlannedTopic, TopicJoin, new_number
from m4cast.jobs.direct.shared_feed import committed_offset
from m4cast.jobs.direct.shared_source import OWN_TASK_ROWS, SharedStream, TopicPart, positions, shared_out, topic_parts
from m4cast.spark_connector import offsets
from m4cast.spark_connector.options import Access, ReadOptions
from m4cast.spark_connector.source.planner import SequenceSpan

A, B = "a" * 32, "b" * 32
OPTIONS = ReadOptions(Access(("h:1",)), topic_pattern=".*", max_rows_per_partition=1_000_000)


def offset(frontier: dict[str, dict[str, int]], **joins: int) -> dict[str, Any]:
    return offsets.with_joins(dict(frontier), joins)


def planned(number: int, layout: str | None = "layout", **start: int) -> PlannedTopic:
    return PlannedTopic(number, start, layout)


def read(parts: list[TopicPart]) -> dict[str, list[tuple[int, int]]]:
    found: dict[str, list[tuple[int, int]]] = {}
    for part in parts:
        found.setdefault(part.topic, []).extend((span.first, span.next) for span in part.spans)
    return found


def test_a_topic_is_where_its_join_or_its_offset_says() -> None:
    plan = {"old": planned(1), "again": PlannedTopic(3, {A: 5}, "x"), "new": PlannedTopic(4, {A: 7}, None)}
    at = positions(offset({"old": {A: 9}, "again": {A: 9}, "left": {A: 9}}, old=1, again=2, left=1), plan)
    assert at == {"old": {A: 9}, "again": {A: 5}, "new": {A: 7}}


def test_a_topic_that_joins_again_is_read_from_its_start() -> None:
    plan = {"t": PlannedTopic(2, {A: 5}, "x")}
    parts = topic_parts(offset({"t": {A: 9}}, t=1), offset({"t": {A: 12}}, t=2), plan, OPTIONS)
    assert read(parts) == {"t": [(5, 12)]}
    assert [(part.join, part.start, part.layout) for part in parts] == [(2, {A: 5}, "x")]


def test_what_was_planned_before_a_topic_joined_again_is_not_read() -> None:
    plan = {"t": PlannedTopic(3, {A: 5}, "x"), "u": planned(1)}
    end = offset({"t": {A: 12}, "u": {A: 4}}, t=2, u=1)
    assert read(topic_parts(offset({"t": {A: 9}, "u": {A: 2}}, t=2, u=1), end, plan, OPTIONS)) == {"u": [(2, 4)]}


@pytest.mark.parametrize(("before", "start"), [(2, {A: 9}), (1, None)])
def test_a_topic_without_a_plan_is_not_passed_over(before: int, start: dict[str, int] | None) -> None:
    """Its task reports it, so that it joins again there; None: at the start of its join, which the driver knows."""
    (part,) = topic_parts(offset({"t": {A: 9}}, t=before), offset({"t": {A: 12}}, t=2), {}, OPTIONS)
    assert (part.topic, part.join, part.start, part.layout) == ("t", 2, start, None)


def test_small_streams_of_a_topic_share_a_file_and_large_ones_have_their_own_task() -> None:
    end = offset({"t": {A: OWN_TASK_ROWS + 1, B: 11, "c" * 32: 4}}, t=1)
    parts = topic_parts({}, end, {"t": planned(1)}, OPTIONS)
    assert sorted(len(part.spans) for part in parts) == [1, 2]
    few = ReadOptions(Access(("h:1",)), topic_pattern=".*", min_partitions=3)
    split = topic_parts({}, offset({"t": {A: 31}}, t=1), {"t": planned(1)}, few)
    assert [len(part.spans) for part in split] == [1, 1, 1]


def test_topics_are_shared_out_equally() -> None:
    def part(topic: str, rows: int) -> TopicPart:
        return TopicPart(topic, 1, {}, "x", (SequenceSpan(topic, A, 1, rows + 1),))

    parts = [part("huge", OWN_TASK_ROWS), part("big", 40_000), *(part(f"t{number}", 10) for number in range(20))]
    tasks = shared_out(parts, 2)
    assert [each.topic for each in tasks[0]] == ["huge"]
    assert sorted(each.topic for task in tasks for each in task) == sorted(each.topic for each in parts)
    costs = [sum(each.cost for each in task) for task in tasks[1:]]
    assert len(costs) == 2 and max(costs) - min(costs) < 10_000
    assert shared_out([], 2) == []


def test_topics_that_waited_longest_come_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shared_source, "TABLES_MAX", 2)
    plan = PlanFile(tmp_path / "plan")
    plan.write({f"t{number}": planned(1) for number in range(5)} | {"aside": planned(1, None)})
    stream = SharedStream(OPTIONS, plan, 2)
    latest = {f"t{number}": {A: 11} for number in range(5)} | {"aside": {A: 11}, "unknown": {A: 11}}
    monkeypatch.setattr(stream._topics, "newest", lambda wait_s: latest)
    at: dict[str, Any] = {}
    seen = []
    for _ in range(3):
        end = stream.latestOffset(at, stream.getDefaultReadLimit())
        seen.append(sorted(read(topic_parts(at, end, plan.read(), OPTIONS))))
        at = end
    assert seen == [["t0", "t1"], ["t2", "t3"], ["t4"]]
    latest |= {f"t{number}": {A: 21} for number in range(5)}
    assert stream.latestOffset(at, stream.getDefaultReadLimit()) == at, "they have been read a moment ago"
    latest["t3"] = {A: OWN_TASK_ROWS + 11}
    end = stream.latestOffset(at, stream.getDefaultReadLimit())
    assert sorted(read(topic_parts(at, end, plan.read(), OPTIONS))) == ["t3"], "many rows do not wait"
    at = end
    monkeypatch.setattr(shared_source, "PAUSE_PER_TOPIC_S", 0.0)
    end = stream.latestOffset(at, stream.getDefaultReadLimit())
    assert sorted(read(topic_parts(at, end, plan.read(), OPTIONS))) == ["t0", "t1"]


def test_joins_and_plans_are_kept(tmp_path: Path) -> None:
    joins = JoinFolder(tmp_path / "joins")
    assert joins.read("events/t") is None
    join = TopicJoin("q", new_number(), {A: 3})
    joins.write("events/t", join)
    assert joins.read("events/t") == join
    again = join.again(None)
    assert again.number > join.number and again.start == join.start
    joins.remove("events/t")
    assert joins.read("events/t") is None
    plan = PlanFile(tmp_path / "plan")
    plan.write({"t": planned(1)})
    version = plan.version()
    plan.write({"t": planned(2)})
    assert plan.read() == {"t": planned(2)} and plan.version() != version


def test_the_checkpoint_of_an_earlier_version_says_how_far_it_came(tmp_path: Path) -> None:
    assert committed_offset(tmp_path) == ({}, True)
    for number in range(3):
        (tmp_path / "offsets").mkdir(exist_ok=True)
        (tmp_path / "offsets" / str(number)).write_text(f"v1\n{{}}\n{json.dumps({'t': {A: number}})}")
    assert committed_offset(tmp_path) == ({}, False)
    (tmp_path / "commits").mkdir()
    (tmp_path / "commits" / "1").write_text("v1")
    assert committed_offset(tmp_path) == ({"t": {A: 1}}, False)
    (tmp_path / "commits" / "2").write_text("v1")
    assert committed_offset(tmp_path) == ({"t": {A: 2}}, True)
