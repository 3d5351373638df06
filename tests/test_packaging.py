"""The wheel holds the code as real files under `m4cast/`, with its data, and nothing at the top but that and
the module by which Spark finds the data source.

The folders at the top of the checkout are reached by symlinks. If these were missed, the wheel would be empty; if they
were followed under their own names, it would put `jobs` or `schemas` into everybody's site-packages.
"""

import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ROOMS = ("overlay", "spark_connector", "schemas", "jobs", "conf")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the source (a build leaves files in its tree), and beside it what was built of it, without network."""
    folder = tmp_path_factory.mktemp("packaging")
    tree = folder / "tree"
    tree.mkdir()
    for name in ("pyproject.toml", "LICENSE", "pyspark_m4cast.py"):
        shutil.copy(ROOT / name, tree / name)
    for name in ("m4cast", *ROOMS, "tests"):
        ignore = shutil.ignore_patterns("__pycache__", "results")
        shutil.copytree(ROOT / name, tree / name, symlinks=True, ignore=ignore)
    (tree / "schemas" / "avro").mkdir(exist_ok=True)
    (tree / "schemas" / "avro" / "packaging_probe.avsc").write_text('"string"', encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "build",
        "--no-isolation",
        "--wheel",
        "--sdist",
        "--outdir",
        str(folder),
        str(tree),
    ]
    finished = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> Iterator[zipfile.ZipFile]:
    (path,) = built.glob("*.whl")
    with zipfile.ZipFile(path) as opened:
        yield opened


def expected_files(tree: Path) -> set[str]:
    """Every module and data file of the source, under the name it has in the wheel."""
    front = (path for path in (tree / "m4cast").rglob("*.py") if path.relative_to(tree).parts[1] not in ROOMS)
    expected = {str(path.relative_to(tree)) for path in front}
    expected |= {"m4cast/py.typed", "pyspark_m4cast.py"}
    for room in ROOMS:
        for pattern in ("**/*.py", "avro/*.avsc", "*.toml", "door/console/static/**/*.*"):
            expected.update(f"m4cast/{path.relative_to(tree)}" for path in (tree / room).glob(pattern))
    return expected


def test_the_wheel_holds_exactly_the_code_and_its_data(built: Path, wheel: zipfile.ZipFile) -> None:
    files = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert files == expected_files(built / "tree")
    assert {
        "m4cast/overlay/config/__init__.py",
        "m4cast/schemas/avro/packaging_probe.avsc",
        "m4cast/conf/node.toml",
    } <= files


def test_the_wheel_holds_real_files(wheel: zipfile.ZipFile) -> None:
    links = [entry.filename for entry in wheel.infolist() if (entry.external_attr >> 16) & 0o170000 == 0o120000]
    assert links == []
    assert wheel.read("m4cast/overlay/errors.py") == (ROOT / "overlay" / "errors.py").read_bytes()


def test_the_wheel_carries_the_licence_and_the_command(wheel: zipfile.ZipFile) -> None:
    names = wheel.namelist()
    assert any(name.endswith("/licenses/LICENSE") for name in names)
    (entry_points,) = [name for name in names if name.endswith("/entry_points.txt")]
    assert "m4cast = m4cast.cli:main" in wheel.read(entry_points).decode()


def test_the_sdist_holds_real_files(built: Path) -> None:
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
        assert [member.name for member in sdist if member.issym() or member.islnk()] == []
    assert expected_files(built / "tree") <= names
    assert not any(name.startswith(tuple(f"{room}/" for room in ROOMS)) for name in names)


def test_the_links_to_the_rooms_are_relative() -> None:
    assert {room: (ROOT / "m4cast" / room).readlink() for room in ROOMS} == {room: Path("..", room) for room in ROOMS}


def test_the_lock_is_portable_and_hashed() -> None:
    """Every dependency is pinned with hashes, and no line says where the packages or the project came from."""
    lines = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
    pins = [number for number, line in enumerate(lines) if line and line[0] not in "# "]
    assert pins
    for number in pins:
        assert "==" in lines[number] and lines[number].endswith("\\"), lines[number]
        assert lines[number + 1].startswith("    --hash=sha256:"), lines[number]
    for line in lines:
        assert "://" not in line and "index" not in line and "find-links" not in line and " /" not in line, line
