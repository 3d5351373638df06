"""Parsing counts: whoever makes a node parse filters pays for it from the budget of its token, by every way."""

from collections.abc import Callable, Iterator
from urllib.parse import quote

import pytest

from m4cast.overlay.client import Channel
from m4cast.overlay.errors import RefusedError
from tests.overlay.door.access.token_file import channel_of, secret_of, token_file
from tests.overlay.door.web.doors import WebServed, web_serving

DEAR = "n = " + " AND n = ".join(map(str, range(200))) + " AND"  # refused at its end, after most of the work
ALL = 'publish = ["*"]\nread = ["*"]\nadmin = true'
BUDGET = 'read = ["*"]\nsubscribe = ["*"]\nfilter_cpu = 0.001'


def by_ticket(web: WebServed, name: str, where: str) -> None:
    with pytest.raises(RefusedError, match="where: at character"):
        channel_of(web.served, name).read("t", where=where)


def by_action(web: WebServed, name: str, where: str) -> None:
    channel: Channel = channel_of(web.served, name)
    with pytest.raises(RefusedError, match="where: at character"):
        channel.explain("t", where)


def by_http(web: WebServed, name: str, where: str) -> None:
    answer = web.get(f"/topics/t/rows?where={quote(where)}", Authorization=f"Bearer {secret_of(name)}")
    assert answer.status == 400 and "where: at character" in answer.json["detail"]


def by_http_action(web: WebServed, name: str, where: str) -> None:
    headers = {"Authorization": f"Bearer {secret_of(name)}"}
    answer = web.post("/actions/explain", {"topic": "t", "where": where}, **headers)
    assert answer.status == 400 and "where: at character" in answer.json["detail"]


WAYS: tuple[Callable[[WebServed, str, str], None], ...] = (by_ticket, by_action, by_http, by_http_action)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebServed]:
    file = tmp_path_factory.mktemp("budgets") / "tokens.toml"
    names = {way.__name__: BUDGET for way in WAYS}
    file.write_text(token_file(all=ALL, plain=BUDGET, **names), encoding="utf-8")
    with web_serving(file.parent, 1, tokens=f"file:{file}") as web:
        channel_of(web.served, "all").publish("t", [{"n": 1}])
        yield web


@pytest.mark.parametrize("way", WAYS)
def test_filters_that_are_refused_are_paid_for(
    guarded: WebServed, monkeypatch: pytest.MonkeyPatch, way: Callable[[WebServed, str, str], None]
) -> None:
    services, pauses = guarded.served.doors[0].services, list[float]()
    monkeypatch.setattr(services.frontiers, "wait_closed", pauses.append)
    way(guarded, way.__name__, DEAR)
    spent_s = services.calls.filter_cpu.so_far()[way.__name__]
    for _ in range(20):  # 1 ms of CPU time uses up what was saved within a second
        way(guarded, way.__name__, DEAR)
    assert services.calls.filter_cpu.so_far()[way.__name__] > spent_s > 0
    assert pauses


def test_reads_and_actions_without_a_filter_count_nothing(guarded: WebServed) -> None:
    channel = channel_of(guarded.served, "plain")
    assert len(channel.read("t")) == 1 and channel.topics() == ["t"]
    assert "plain" not in guarded.served.doors[0].services.calls.filter_cpu.so_far()
