"""Clients at the door: who is let in by TLS, by certificate and by token, and to what."""

import hashlib
import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyarrow import flight

from m4cast.cli import main
from m4cast.overlay.client import Channel
from m4cast.overlay.door.access.rights import Rights
from m4cast.overlay.door.access.tokens import Tokens
from m4cast.overlay.errors import ConfigError, LocalProtocolError, RefusedError, UnreachableError
from tests.overlay.door.served import Served, serving
from tests.security.attackers import Certificates, until_refused

SECRETS = {name: f"the secret of {name}, long enough" for name in ("writer", "reader", "admin", "all")}
DIGEST = hashlib.sha256(SECRETS["reader"].encode()).hexdigest()
TOKENS = f"""
[[token]]
name = "writer"
secret = "{SECRETS["writer"]}"
publish = ["orders", "events.*"]

[[token]]
name = "reader"
sha256 = "{DIGEST}"
read = ["events.*", "orders"]

[[token]]
name = "admin"
secret = "{SECRETS["admin"]}"
admin = true

[[token]]
name = "all"
secret = "{SECRETS["all"]}"
publish = ["*"]
read = ["*"]
"""
ROWS = [{"n": 1}, {"n": 2}]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, certificates: Certificates) -> Iterator[Served]:
    """A node with TLS and tokens."""
    folder = tmp_path_factory.mktemp("guarded")
    (folder / "tokens.toml").write_text(TOKENS)
    with serving(folder, 1, None, f"file:{folder / 'tokens.toml'}", certificates.settings) as served:
        channel(served, certificates, "all").publish("orders", ROWS)
        channel(served, certificates, "all").publish("secret", ROWS)
        yield served


def channel(served: Served, certificates: Certificates, name: str) -> Channel:
    return Channel(served.addresses, token=SECRETS.get(name, name), ca=str(certificates.ca))


def refused(code: str, call: Any, *arguments: Any, **named: Any) -> str:
    with pytest.raises(RefusedError) as error:
        call(*arguments, **named)
    assert error.value.code == code, error.value
    assert not any(secret in str(error.value) for secret in SECRETS.values())
    return error.value.detail


# ---- tokens


def test_no_token_and_a_wrong_one_are_refused_and_counted(guarded: Served, certificates: Certificates) -> None:
    before = guarded.nodes[0].driver.refused["unauthenticated"]
    for name, what in (("", "no token"), ("not a token of this node", "an unknown token")):
        stranger = channel(guarded, certificates, name)
        calls: list[Any] = [stranger.topics, stranger.status, stranger.frontier]
        calls += [lambda who=stranger: who.read("orders"), lambda who=stranger: who.publish("orders", ROWS)]
        calls += [lambda who=stranger: who.schema("orders"), lambda who=stranger: next(who.tail("orders", "earliest"))]
        for call in calls:
            assert what in refused("unauthenticated", call)
    reader = channel(guarded, certificates, "reader")
    assert reader.read("orders")["n"].to_pylist() == [1, 2], "nothing was published"
    guarded.run(until_refused(guarded.nodes[0], "unauthenticated", before + 14))
    assert guarded.nodes[0].driver.refused["unauthenticated"] == before + 14


def test_a_token_may_do_what_it_says_and_nothing_else(guarded: Served, certificates: Certificates) -> None:
    writer, reader = (channel(guarded, certificates, name) for name in ("writer", "reader"))
    writer.publish("events.new", ROWS)
    assert reader.read("events.new")["n"].to_pylist() == [1, 2]
    assert "'publish' on topic 'secret'" in refused("forbidden", writer.publish, "secret", ROWS)
    assert "'read' on topic 'orders'" in refused("forbidden", writer.read, "orders")
    refused("forbidden", writer.topics)
    refused("forbidden", reader.publish, "orders", ROWS)
    for call in (reader.read, reader.frontier, reader.schema):
        assert "'read' on topic 'secret'" in refused("forbidden", call, "secret")
    refused("forbidden", reader.read, ["orders", "secret"])
    refused("forbidden", lambda: next(reader.tail("secret", "earliest")))
    guarded.run(until_refused(guarded.nodes[0], "forbidden", 8))
    assert writer.status()["name"] == "n0"


def test_what_may_not_be_read_is_not_listed(guarded: Served, certificates: Certificates) -> None:
    assert "secret" in channel(guarded, certificates, "all").topics()
    reader = channel(guarded, certificates, "reader")
    assert "secret" not in reader.topics()
    assert "orders" in reader.topics()
    assert "secret" not in reader.frontier()
    client = raw(guarded, certificates, "reader")
    listed = [info.descriptor.path[0].decode() for info in client.list_flights()]
    assert "secret" not in listed and "orders" in listed
    client.close()


def test_readers_deliveries_and_topics_need_their_rights(guarded: Served, certificates: Certificates) -> None:
    everybody, reader, writer, admin = (
        channel(guarded, certificates, name) for name in ("all", "reader", "writer", "admin")
    )
    everybody.lease("of all", topics=["orders", "secret"])
    reader.lease("of orders", topics="orders")
    assert [each["reader"] for each in reader.readers()] == ["of orders"]
    assert len(everybody.readers()) == 2
    assert "'read' on topic 'secret'" in refused("forbidden", reader.lease, "mine", topics="secret")
    assert "'read' on topic 'secret'" in refused("forbidden", reader.lease, "of all", topics="orders")
    assert "'read' on topic 'secret'" in refused("forbidden", reader.release, "of all")
    assert everybody.release("of all") and reader.release("of orders")
    assert "on all topics" in refused("forbidden", reader.deliveries)
    assert "on all topics" in refused("forbidden", reader.delivery_range)
    assert everybody.deliveries().num_rows > 0
    assert writer.roster().num_rows == 1
    assert reader.describe("orders")["rows"] == 2
    refused("forbidden", reader.describe, "secret")
    for call in (everybody.delete_topic, everybody.set_retention, everybody.set_summaries):
        assert "'admin'" in refused("forbidden", call, "orders")
    assert admin.set_retention("orders")["is_default"]


def raw(served: Served, certificates: Certificates, name: str) -> Any:
    """Plain Flight, with the header that the protocol asks for."""

    class Shows(flight.ClientMiddleware):  # type: ignore[misc]
        def sending_headers(self) -> dict[str, str]:
            return {"authorization": f"Bearer {SECRETS[name]}"}

    class Factory(flight.ClientMiddlewareFactory):  # type: ignore[misc]
        def start_call(self, info: Any) -> Any:
            return Shows()

    return flight.connect(
        f"grpc+tls://{served.addresses[0]}", tls_root_certs=certificates.ca.read_bytes(), middleware=[Factory()]
    )


def stage(client: Any, topic: str, stage_id: str) -> None:
    command = json.dumps({"topic": topic, "stage": stage_id}).encode()
    rows = pa.record_batch({"n": [1]})
    writer, _ = client.do_put(flight.FlightDescriptor.for_command(command), rows.schema)
    writer.write_batch(rows)
    writer.close()


def act(client: Any, name: str, **body: Any) -> Any:
    (result,) = client.do_action(flight.Action(name, json.dumps(body).encode()))
    return json.loads(result.body.to_pybytes())


def test_what_is_staged_is_committed_by_those_who_may_publish_it(guarded: Served, certificates: Certificates) -> None:
    everybody, writer, reader = (raw(guarded, certificates, name) for name in ("all", "writer", "reader"))
    stage(everybody, "secret", "a")
    stage(writer, "orders", "b")
    with pytest.raises(flight.FlightUnauthorizedError, match="'publish' on topic 'secret'"):
        stage(writer, "secret", "c")
    for action in ("commit", "abort"):
        with pytest.raises(flight.FlightUnauthorizedError, match="'publish' on topic 'secret'"):
            act(writer, action, stage_ids=["b/0", "a/0"])
        with pytest.raises(flight.FlightUnauthorizedError, match="no right 'publish'"):
            act(reader, action, stage_ids=["b/0"])
    assert act(writer, "commit", stage_ids=["b/0"])["ranges"][0]["topic"] == "orders"
    assert act(everybody, "commit", stage_ids=["a/0"])["ranges"][0]["topic"] == "secret", "it was not aborted"
    for client in (everybody, writer, reader):
        client.close()


def test_an_action_that_is_not_listed_is_for_administrators(guarded: Served, certificates: Certificates) -> None:
    everybody, admin = (raw(guarded, certificates, name) for name in ("all", "admin"))
    with pytest.raises(flight.FlightUnauthorizedError, match="no right 'admin'"):
        act(everybody, "explode")
    with pytest.raises(flight.FlightServerError, match="no action 'explode'"):
        act(admin, "explode")
    everybody.close()
    admin.close()


def test_tokens_change_while_the_node_runs(tmp_path: Path) -> None:
    file = tmp_path / "tokens.toml"
    file.write_text(TOKENS)
    with serving(tmp_path, 1, tokens=f"file:{file}") as served:  # plain TCP
        writer = Channel(served.addresses, token=SECRETS["writer"])
        writer.publish("orders", ROWS)
        file.write_text("[[token]\nbroken")
        writer.publish("orders", ROWS)
        file.write_text(TOKENS.replace(SECRETS["writer"], "another secret, also long"))
        refused("unauthenticated", writer.publish, "orders", ROWS)
        Channel(served.addresses, token="another secret, also long").publish("orders", ROWS)


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("", "must be 1 to 1000 tables"),
        ("x = 1\n" + TOKENS, "and nothing else"),
        ("token = 1", "must be 1 to 1000 tables"),
        ("[[token]", "is not TOML"),
        ('[[token]]\nsecret = "long enough, surely"', "token 1: name must be"),
        ('[[token]]\nname = "a"', "token 'a': needs either sha256 or secret"),
        ('[[token]]\nname = "a"\nsecret = "hunter2"', "token 'a': secret must be 16 ASCII characters or more"),
        ('[[token]]\nname = "a"\nsha256 = "hunter2"', "token 'a': sha256 must be 64 hex digits"),
        (f'[[token]]\nname = "a"\nsha256 = "{DIGEST}"\nread = "*"', "token 'a': read must be a list"),
        (f'[[token]]\nname = "a"\nsha256 = "{DIGEST}"\nadmin = 1', "token 'a': admin must be true or false"),
        (f'[[token]]\nname = "a"\nsha256 = "{DIGEST}"\nraed = []', "token 'a': unknown field 'raed'"),
    ],
)
def test_invalid_tokens_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: str, message: str
) -> None:
    (tmp_path / "tokens.toml").write_text(written)
    monkeypatch.setenv("SOME_TOKENS", written)
    for reference in (f"file:{tmp_path / 'tokens.toml'}", "env:SOME_TOKENS"):
        with pytest.raises(ConfigError) as error:
            Tokens(reference)
        assert message in str(error.value)
        assert "hunter2" not in str(error.value)


def test_missing_tokens_are_reported(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.toml: cannot be read"):
        Tokens(f"file:{tmp_path / 'none.toml'}")
    with pytest.raises(ConfigError, match="the environment has no NO_SUCH_NAME"):
        Tokens("env:NO_SUCH_NAME")


def test_patterns_are_of_whole_names() -> None:
    rights = Rights("x", read=("events.*", "a?c", "[xy]1"))
    assert [topic for topic in ("events.", "events.a.b", "abc", "x1") if not rights.may("read", topic)] == []
    assert [topic for topic in ("events", "Events.a", "abbc", "z1", "my events.a") if rights.may("read", topic)] == []


# ---- TLS


def test_without_tokens_a_certificate_of_the_cluster_lets_in(tmp_path: Path, certificates: Certificates) -> None:
    others = Certificates(tmp_path / "others")
    ca = str(certificates.ca)
    with serving(tmp_path, 2, settings=certificates.settings) as served:
        mine, node = certificates.client("reports"), certificates.node("n0")
        here = Channel(served.addresses[:1], ca=ca, cert=str(mine.certificate), key=str(mine.key))
        there = Channel(served.addresses[1:], ca=ca, cert=str(node.certificate), key=str(node.key))
        here.publish("orders", ROWS, acks=1)
        assert there.read("orders", end=here.frontier("orders"))["n"].to_pylist() == [1, 2]
        wrong, expired = others.client("reports"), certificates.node("expired", days=-1)
        nobody: dict[str, dict[str, Any]] = {
            "no certificate": {"ca": ca},
            "wrong CA": {"ca": ca, "cert": str(wrong.certificate), "key": str(wrong.key)},
            "expired": {"ca": ca, "cert": str(expired.certificate), "key": str(expired.key)},
            "a client that does not know the CA": {"ca": str(others.ca)},
            "plain TCP": {},
        }
        for what, credentials in nobody.items():
            stranger = Channel(served.addresses[:1], timeout_s=5, **credentials)
            for call in (stranger.status, lambda who=stranger: who.publish("orders", ROWS)):
                with pytest.raises((UnreachableError, RefusedError)):
                    pytest.fail(f"{what}: {call()}")
        assert here.read("orders")["n"].to_pylist() == [1, 2]


# ---- the client


def test_a_reference_keeps_the_secret_out_of_the_pickle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, guarded: Served, certificates: Certificates
) -> None:
    secret = SECRETS["reader"]
    (tmp_path / "token").write_text(secret + "\n")
    monkeypatch.setenv("A_TOKEN", secret)
    for reference in (f"file:{tmp_path / 'token'}", "env:A_TOKEN"):
        pickled = pickle.dumps(Channel(guarded.addresses, token=reference, ca=str(certificates.ca)))
        assert secret.encode() not in pickled
        assert pickle.loads(pickled).read("orders").num_rows >= 2
    literal = Channel(guarded.addresses, token=secret, ca=str(certificates.ca))
    assert secret not in repr(literal) and secret not in repr(literal.credentials)
    monkeypatch.delenv("A_TOKEN")
    refused("unauthenticated", Channel(guarded.addresses, token="env:A_TOKEN", ca=str(certificates.ca)).topics)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"cert": "x.crt"}, "cert and key must be set together"),
        ({"token": "env:NO_SUCH_NAME"}, "the environment has no NO_SUCH_NAME"),
        ({"token": "file:/no/such/file"}, "/no/such/file: cannot be read"),
        ({"token": "two\nlines"}, "must be printable ASCII"),
        ({"ca": "/no/such/ca"}, "/no/such/ca: cannot be read"),
    ],
)
def test_invalid_credentials_are_reported(given: dict[str, Any], message: str) -> None:
    with pytest.raises(LocalProtocolError, match=message):
        Channel(["127.0.0.1:1"], **given).topics()


def test_the_command_line_shows_tokens_and_certificates(
    monkeypatch: pytest.MonkeyPatch, guarded: Served, certificates: Certificates
) -> None:
    run = CliRunner().invoke
    where = ["--node", guarded.addresses[0], "--topic", "events.cli"]
    said = run(main, ["publish", *where, "--ca", str(certificates.ca)], input='{"n": 7}\n')
    assert said.exit_code == 2 and "unauthenticated: no token" in said.output
    monkeypatch.setenv("WRITER", SECRETS["writer"])
    options = ["--ca", str(certificates.ca), "--token", "env:WRITER"]
    published = run(main, ["publish", *where, *options], input='{"n": 7}\n')
    assert published.exit_code == 0, published.output
    monkeypatch.setenv("M4CAST_TOKEN", SECRETS["reader"])
    monkeypatch.setenv("M4CAST_CA", str(certificates.ca))
    tailed = run(main, ["tail", *where, "--from", "earliest", "--max-rows", "1"])
    assert tailed.exit_code == 0, tailed.output
    assert json.loads(tailed.stdout)["n"] == 7
