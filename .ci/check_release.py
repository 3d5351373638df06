"""Checks a folder with one wheel and one sdist: `python .ci/check_release.py dist`.

Their version is that of pyproject.toml. They contain real files, no symlinks, and the wheel has nothing at its top but
the package and the module by which Spark finds the data source. The wheel is installed into a fresh environment, which
borrows its dependencies from this one, and imported there; no network is needed.
"""

import email
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import tomllib
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
PROBE = """
import m4cast, m4cast.cli, m4cast.overlay.client, pyspark_m4cast
from m4cast import Channel, Publisher, fanout
assert {folder!r} in m4cast.__file__, m4cast.__file__
print(m4cast.__version__)
"""


def check(condition: bool, problem: str) -> None:
    if not condition:
        sys.exit(f"release: {problem}")


def check_wheel(path: Path, version: str) -> None:
    with zipfile.ZipFile(path) as wheel:
        links = [each.filename for each in wheel.infolist() if (each.external_attr >> 16) & 0o170000 == 0o120000]
        check(not links, f"{path.name} contains symlinks: {links[:3]}")
        names = wheel.namelist()
        tops = {name.partition("/")[0] for name in names}
        information = f"m4cast-{version}.dist-info"
        expected = {"m4cast", "pyspark_m4cast.py", information}
        check(tops == expected, f"{path.name} has {sorted(tops)} at its top, not {sorted(expected)}")
        for part in (
            "overlay/protocol/node.py",
            "spark_connector/provider.py",
            "jobs/ingest.py",
            "conf/node.toml",
            "py.typed",
        ):
            check(f"m4cast/{part}" in names, f"{path.name} lacks m4cast/{part}")
        check(any(name.endswith(".avsc") for name in names), f"{path.name} lacks the Avro schemas")
        metadata = email.message_from_bytes(wheel.read(f"{information}/METADATA"))
    check(metadata["Name"] == "m4cast" and metadata["Version"] == version, f"{path.name} has the wrong name or version")
    check(metadata["License-Expression"] == "Apache-2.0", f"{path.name} does not name its license")
    check(bool(str(metadata.get_payload()).strip()), f"{path.name} has no description: README.md is missing")
    extras = set(metadata.get_all("Provides-Extra") or [])
    check({"node", "spark", "kafka", "sim"} <= extras, f"{path.name} lacks extras: it has {sorted(extras)}")


def check_sdist(path: Path) -> None:
    with tarfile.open(path) as sdist:
        links = [member.name for member in sdist if member.issym() or member.islnk()]
        names = {member.name.partition("/")[2] for member in sdist.getmembers()}
    check(not links, f"{path.name} contains symlinks: {links[:3]}")
    for part in ("pyproject.toml", "README.md", "LICENSE", "m4cast/overlay/protocol/node.py", "m4cast/conf/node.toml"):
        check(part in names, f"{path.name} lacks {part}")


def check_import(path: Path, version: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        environment = Path(folder).resolve() / "venv"
        venv.create(environment, with_pip=False, symlinks=True)
        (packages,) = environment.glob("lib/python*/site-packages")
        install = [
            sys.executable,
            "-m",
            "pip",
            "--quiet",
            "install",
            "--no-deps",
            "--no-index",
            "--target",
            str(packages),
            str(path),
        ]
        subprocess.run(install, check=True)
        # Dependencies are those of this environment; our own name is found first in the fresh one.
        (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
        python = str(environment / "bin" / "python")
        command = [python, "-I", "-c", PROBE.format(folder=str(environment))]
        found = subprocess.run(command, check=True, capture_output=True, text=True, cwd=folder).stdout.strip()
        check(found == version, f"the installed wheel says that it is version {found!r}, not {version!r}")
        subprocess.run([python, "-I", "-m", "m4cast", "--version"], check=True, cwd=folder)


def main(folder: Path) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    wheels, sdists = list(folder.glob("*.whl")), list(folder.glob("*.tar.gz"))
    check(len(wheels) == 1 and len(sdists) == 1, f"{folder} must contain one wheel and one sdist")
    check(f"## [{version}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), f"CHANGELOG.md has no {version}")
    check_wheel(wheels[0], version)
    check_sdist(sdists[0])
    check_import(wheels[0], version)
    print(f"{wheels[0].name} and {sdists[0].name} are good")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
