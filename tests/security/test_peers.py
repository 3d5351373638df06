"""Peers that should not be in: refused, counted, and the node goes on as before. Real sockets."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from m4cast.overlay.errors import M4castError
from m4cast.overlay.net.certificates import Pair
from m4cast.overlay.protocol.wire.messages import PROTOCOL_VERSION_MAX
from tests.overlay.net.running import settled, start_node
from tests.security.attackers import (
    CLUSTER,
    Certificates,
    attack,
    context,
    hello,
    run_on_uvloop,
    running_pair,
    still_works,
    until_refused,
)


def test_rows_travel_over_tls(tmp_path: Path, certificates: Certificates) -> None:
    async def run() -> None:
        async with running_pair(tmp_path, certificates) as nodes:
            for name in ("n2", "n3", "n4", "n5"):
                nodes.append(await start_node(tmp_path, name, (nodes[0].address,), **certificates.settings(name)))
            await settled(nodes)
            for number in range(10):
                await nodes[number % 2].publish("t", bytes([number]) * (300_000 if number % 3 == 0 else 100))
            for node in nodes:
                await node.until_delivered(10)
                for stream in {delivery.stream for delivery in node.deliveries}:
                    firsts = [each.first_sequence for each in node.deliveries if each.stream == stream]
                    assert firsts == list(range(1, 6))
                assert not node.driver.refused

    run_on_uvloop(run())


def test_certificates_that_are_not_of_this_cluster_are_refused(tmp_path: Path, certificates: Certificates) -> None:
    others = Certificates(tmp_path / "others")
    bad: dict[str, tuple[Pair | None, str]] = {
        "none": (None, "tls"),
        "wrong CA": (others.node("n9"), "tls"),
        "wrong CA, known name": (others.node("n1"), "tls"),
        "expired": (certificates.node("expired", days=-1), "tls"),
        "a client's": (certificates.client("somebody"), "not-a-node"),
    }

    async def run() -> None:
        async with running_pair(tmp_path, certificates) as nodes:
            for what, (pair, reason) in bad.items():
                before = nodes[0].driver.refused[reason]
                said = await attack(nodes[0], hello(), context(certificates.ca, pair))
                assert said == b"", f"{what}: the node told it something"
                await until_refused(nodes[0], reason, before + 1)
                await still_works(nodes)

    run_on_uvloop(run())


def test_a_node_does_not_speak_to_one_of_another_cluster(tmp_path: Path, certificates: Certificates) -> None:
    others = Certificates(tmp_path / "others")

    async def run() -> None:
        async with running_pair(tmp_path, certificates) as nodes:
            stranger = await start_node(tmp_path, "n9", (nodes[0].address,), **others.settings("n9"))
            nodes.append(stranger)
            await until_refused(stranger, "tls")
            assert stranger.driver.node.roster.population() == 1
            await still_works(nodes[:2])

    run_on_uvloop(run())


def test_plain_tcp_at_a_node_with_tls_is_refused(tmp_path: Path, certificates: Certificates) -> None:
    async def run() -> None:
        async with running_pair(tmp_path, certificates) as nodes:
            said = await attack(nodes[0], hello())
            assert bytes(nodes[0].driver.node.me.node_id) not in said
            await until_refused(nodes[0], "tls")
            plain = await start_node(tmp_path, "plain", (nodes[0].address,))
            nodes.append(plain)
            await until_refused(nodes[0], "tls", 2)
            assert plain.driver.node.roster.population() == 1
            await still_works(nodes[:2])

    run_on_uvloop(run())


def test_a_node_id_belongs_to_the_name_in_its_certificate(tmp_path: Path, certificates: Certificates) -> None:
    thief = context(certificates.ca, certificates.node("thief"))

    async def run() -> None:
        async with running_pair(tmp_path, certificates) as nodes:
            owned = nodes[1].driver.node.me.node_id
            await nodes[0].until(lambda: nodes[0].driver.node.roster.get(owned) is not None)
            said = await attack(nodes[0], hello(owned), thief)
            assert b"certificate" in said
            assert nodes[0].driver.refused == {"certificate": 1}
            await still_works(nodes)
            while nodes:
                await nodes.pop().stop()
            nodes.append(await start_node(tmp_path, "n0", **certificates.settings("n0")))
            assert b"certificate" in await attack(nodes[0], hello(owned), thief), "a restart forgot whose it is"

    run_on_uvloop(run())


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (hello(cluster=replace(CLUSTER, channel_instance="another")), "settings"),
        (hello(version_min=PROTOCOL_VERSION_MAX + 1, version_max=PROTOCOL_VERSION_MAX + 9), "version"),
        (b"\xff" * 100, "malformed"),
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "malformed"),
        (hello() + hello(), "second-hello"),
        (b"\xff\xff\xff\x7f" + hello()[4:], "malformed"),  # says that 2 GiB follow
    ],
    ids=["wrong channel", "version", "garbage", "http", "two hellos", "oversize"],
)
@pytest.mark.parametrize("protected", [True, False], ids=["tls", "plain"])
def test_nonsense_costs_the_connection_and_is_counted(
    tmp_path: Path, certificates: Certificates, sent: bytes, reason: str, protected: bool
) -> None:
    async def run() -> None:
        async with running_pair(tmp_path, certificates if protected else None) as nodes:
            tls = context(certificates.ca, certificates.node("n7")) if protected else None
            await attack(nodes[0], sent, tls)
            await until_refused(nodes[0], reason)
            await still_works(nodes)

    run_on_uvloop(run())


# ---- certificates that change


def test_new_certificates_are_used_without_a_restart(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path / "certificates")

    async def run() -> None:
        async with running_pair(tmp_path, certificates) as nodes:

            async def shown() -> bytes:
                host, _, port = nodes[0].address.rpartition(":")
                tls = context(certificates.ca, certificates.node("looker"))
                _, writer = await asyncio.open_connection(host, int(port), ssl=tls)
                der = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
                writer.transport.abort()
                return bytes(der)

            first = await shown()
            assert await shown() == first
            certificates.node("n0")
            second = await shown()
            assert second != first
            key = certificates.folder / "n0.key"
            kept = key.read_bytes()
            key.write_text("this is no key")
            assert await shown() == second, "a broken file was taken"
            key.write_bytes(kept)
            await still_works(nodes)
            nodes.append(await start_node(tmp_path, "n2", (nodes[0].address,), **certificates.settings("n2")))
            await settled(nodes)

    run_on_uvloop(run())


def test_an_authority_is_replaced_through_a_file_with_both(tmp_path: Path) -> None:
    old, new = Certificates(tmp_path / "old"), Certificates(tmp_path / "new")

    async def run() -> None:
        async with running_pair(tmp_path, old) as nodes:
            both = old.ca.read_bytes() + new.ca.read_bytes()
            old.ca.write_bytes(both)
            new.ca.write_bytes(both)
            nodes.append(await start_node(tmp_path, "n2", (nodes[0].address,), **new.settings("n2")))
            await settled(nodes)

    run_on_uvloop(run())


# ---- what a node needs to start


def start(folder: Path, **settings: Any) -> None:
    async def run() -> None:
        await (await start_node(folder, "n0", **settings)).stop()

    run_on_uvloop(run())


def test_a_node_starts_only_with_certificates_that_fit(tmp_path: Path, certificates: Certificates) -> None:
    good = certificates.settings("n0")
    other, client = certificates.node("other"), certificates.client("somebody")
    expired = certificates.node("gone", days=-1)
    broken = tmp_path / "broken.crt"
    broken.write_text("no certificate")
    start(tmp_path, **good)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"tls_ca": ""}, "tls_cert, tls_key without tls_ca"),
        ({"insecure": True}, "insecure = true together with certificates"),
        ({"tls_ca": str(tmp_path / "none")}, "tls_ca .*none: cannot be used: No such file"),
        ({"tls_ca": str(broken)}, "tls_ca .*broken.crt: cannot be used"),
        ({"tls_cert": str(broken)}, "broken.crt: is not a certificate in PEM"),
        ({"tls_cert": str(other.certificate)}, "is the certificate of node 'other', but this node's name is 'n0'"),
        ({"tls_cert": str(client.certificate)}, "is not a node's"),
        ({"tls_cert": str(expired.certificate)}, "is the certificate of node 'gone'"),
        ({"tls_key": str(other.key)}, "cannot be used"),
    ]
    for settings, message in wrong:
        with pytest.raises(M4castError, match=message):
            start(tmp_path / "not made", **{**good, **settings})
    assert not (tmp_path / "not made").exists()
    certificates.node("n0", days=-1)
    with pytest.raises(M4castError, match="ended at"):
        start(tmp_path, **good)
