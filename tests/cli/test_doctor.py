"""Findings of the doctor: on this machine, and on machines that lack something."""

import json
import re
import socket
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from m4cast.cli import main
from m4cast.cli.trials import doctor
from m4cast.overlay.config import NodeConfig
from tests.overlay.door.served import serving


def examined(*words: str) -> tuple[int, dict[str, dict[str, Any]]]:
    result = CliRunner().invoke(main, ["doctor", "--json", *words])
    said = json.loads(result.stdout)
    assert list(said) == ["healthy", "checks"]
    assert said["healthy"] is (result.exit_code == 0)
    checks = {check.pop("name"): check for check in said["checks"]}
    assert all(set(check) == {"level", "said"} and check["said"] for check in checks.values())
    return result.exit_code, checks


def test_a_machine_that_runs_these_tests_is_healthy(tmp_path: Path) -> None:
    exit_code, checks = examined("--dir", str(tmp_path))
    assert exit_code == 0, checks
    levels = {name: check["level"] for name, check in checks.items()}
    for name in ("python", "packages: client", "packages: node", "packages: spark", "java", "disk: fsync", "clock"):
        assert levels[name] == "ok", checks[name]
    assert "pyarrow 2" in checks["packages: client"]["said"]
    assert {"jars", "port: listen", "port: door", "disk: space", "open files"} <= set(levels)
    assert list(tmp_path.iterdir()) == []


def test_the_packages_of_each_extra_are_checked() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = {name: wanted for name, wanted in project["optional-dependencies"].items() if name != "dev"}
    wanted = {"client": project["dependencies"], **extras}
    checked = {
        extra: [doctor.DISTRIBUTIONS.get(module, module) for module in modules]
        for extra, modules in doctor.PACKAGES.items()
    }
    assert checked == {
        extra: sorted(re.split(r"[<>=\[;]", requirement)[0] for requirement in requirements)
        for extra, requirements in wanted.items()
    }


def test_people_get_a_table_that_counts(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["doctor", "--dir", str(tmp_path)])
    levels = Counter(line.split()[0] for line in result.output.splitlines()[:-1] if line[:1].strip())
    counted = f"{levels['ok']} ok, {levels['warn']} warnings, {levels['fail']} failed"
    assert result.output.splitlines()[-1] == counted


def test_nodes_that_answer_and_nodes_that_do_not(tmp_path: Path) -> None:
    with serving(tmp_path / "nodes", 1) as served:
        exit_code, checks = examined("--node", served.addresses[0])
        assert exit_code == 0
        assert "n0 answers in" in checks[f"node {served.addresses[0]}"]["said"]
        node = served.nodes[0].driver.node
        node.clocks.heard(node.me.node_id, 5, 1)  # as if a neighbour's clock were not set
        node.clocks.offset_ms = 86_400_000
        _, checks = examined("--node", served.addresses[0])
        assert checks[f"node {served.addresses[0]}"]["level"] == "warn"
        assert "its clock is 86400 s ahead of its neighbours'" in checks[f"node {served.addresses[0]}"]["said"]
    exit_code, checks = examined("--node", "127.0.0.1:1")
    assert exit_code == 1
    assert checks["node 127.0.0.1:1"]["level"] == "fail"
    assert "cannot be reached" in checks["node 127.0.0.1:1"]["said"]


def test_a_folder_that_is_not_there_fails(tmp_path: Path) -> None:
    exit_code, checks = examined("--dir", str(tmp_path / "nowhere"))
    assert exit_code == 1
    assert "cannot be written: No such file" in checks["disk"]["said"]


def test_java_that_is_old_silent_or_not_there_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert "cannot be run" in doctor._java().said
    for said, level, meant in (
        ('openjdk version "1.8.0_392"', "warn", "Spark needs Java 17 or newer"),
        ('openjdk version "21.0.1" 2023-10-17', "ok", 'version "21.0.1"'),
        ("nothing", "warn", "does not report its version"),
    ):
        java.write_text(f"#!/bin/sh\necho '{said}' >&2\n", encoding="utf-8")
        java.chmod(0o755)
        check = doctor._java()
        assert check.level == level
        assert meant in check.said


def test_a_package_that_is_missing_is_named_with_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "PACKAGES", {"client": ("no_such_one",), "node": ("no_such_two", "click")})
    client, node = doctor._packages()
    assert (client.level, node.level) == ("fail", "warn")
    assert "no_such_one" in client.said and "pip install m4cast" in client.said
    assert "no_such_two" in node.said and "click" not in node.said and "m4cast[node]" in node.said


def test_a_port_that_is_taken_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = f"127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setattr(doctor, "NodeConfig", lambda: NodeConfig(listen=taken, http="127.0.0.1:0"))
        listen, _, http = doctor._ports()
    assert (listen.level, http.level) == ("warn", "ok")
    assert taken in listen.said and "set another `listen`" in listen.said
