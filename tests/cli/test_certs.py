"""`m4cast certs`: what it makes, what it says of it, and what it does not overwrite."""

import json
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from m4cast.cli import main


def run(*words: str | Path) -> str:
    result = CliRunner().invoke(main, ["certs", *map(str, words)])
    assert result.exit_code == 0, result.output
    return result.output


def shown(file: Path) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads(run("show", file, "--json"))
    return facts


def test_an_authority_and_its_certificates(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    assert "made" in run("ca", "--dir", folder, "--days", "30")
    made = json.loads(
        run("node", "warsaw-1", "--dir", folder, "--address", "10.0.0.7", "--address", "w.test", "--json")
    )
    assert made == {"certificate": str(folder / "warsaw-1.crt"), "key": str(folder / "warsaw-1.key")}
    run("client", "reports", "--dir", folder, "--days", "2")
    ca, node, client = (shown(folder / f"{name}.crt") for name in ("ca", "warsaw-1", "reports"))
    assert (ca["kind"], ca["days_left"]) == ("ca", 29)
    assert (node["kind"], node["name"]) == ("node", "warsaw-1")
    assert sorted(node["addresses"]) == ["10.0.0.7", "127.0.0.1", "localhost", "w.test"]
    assert (client["kind"], client["name"], client["addresses"], client["days_left"]) == ("client", "reports", [], 1)
    assert node["issuer"] == client["issuer"] == ca["name"]
    for key in folder.glob("*.key"):
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert "warsaw-1" in run("show", folder / "warsaw-1.crt")


def test_nothing_is_overwritten_unless_asked(tmp_path: Path) -> None:
    run("ca", "--dir", tmp_path)
    run("node", "n1", "--dir", tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    for words in (["ca"], ["node", "n1"], ["client", "n1"]):
        result = CliRunner().invoke(main, ["certs", *words, "--dir", str(tmp_path)])
        assert result.exit_code == 2
        assert "exists already" in result.output
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    run("node", "n1", "--dir", tmp_path, "--force")
    assert (tmp_path / "n1.crt").read_bytes() != before["n1.crt"]
    assert (tmp_path / "ca.crt").read_bytes() == before["ca.crt"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["node", "Warsaw"], "a node cannot be called 'Warsaw'"),
        (["node", "ca"], "the authority's own name"),
        (["client", "../x"], "a client cannot be called '../x'"),
        (["node", "n1", "--address", "h:7400"], "neither a host name nor an IP address: give one without a port"),
    ],
)
def test_invalid_names_are_refused(tmp_path: Path, words: list[str], message: str) -> None:
    run("ca", "--dir", tmp_path)
    result = CliRunner().invoke(main, ["certs", *words, "--dir", str(tmp_path)])
    assert result.exit_code == 2
    assert message in result.output
    assert len(list(tmp_path.iterdir())) == 2


def test_a_missing_or_broken_authority_is_reported(tmp_path: Path) -> None:
    missing = CliRunner().invoke(main, ["certs", "node", "n1", "--dir", str(tmp_path)])
    assert missing.exit_code == 2 and "make them with `m4cast certs ca" in missing.output
    run("ca", "--dir", tmp_path)
    (tmp_path / "ca.key").write_text("no key")
    broken = CliRunner().invoke(main, ["certs", "node", "n1", "--dir", str(tmp_path)])
    assert broken.exit_code == 2 and "ca.key: is not a readable key" in broken.output
    for file, said in (("ca.key", "is not a certificate in PEM"), ("none.crt", "cannot be read")):
        result = CliRunner().invoke(main, ["certs", "show", str(tmp_path / file)])
        assert result.exit_code == 2 and said in result.output


def test_an_install_without_node_packages_names_the_extra(tmp_path: Path) -> None:
    code = "import sys; sys.modules['cryptography'] = None; from m4cast.cli import main; main()"
    words = [sys.executable, "-c", code, "certs", "ca", "--dir", str(tmp_path)]
    said = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert (said.returncode, said.stdout) == (2, "")
    assert said.stderr == "m4cast: certificates need the package cryptography: pip install 'm4cast[node]'\n"
