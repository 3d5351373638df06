"""The front package: what `import m4cast` offers, and what it costs."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import m4cast

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("name", m4cast.__all__)
def test_every_public_name_is_imported_on_first_use(name: str) -> None:
    script = f"import m4cast; assert {name!r} not in vars(m4cast); from m4cast import {name}; assert {name} is not None"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_public_names_are_the_objects_of_their_rooms() -> None:
    from m4cast.overlay import client, errors
    from m4cast.spark_connector.errors import ConnectorError
    from m4cast.spark_connector.fanout import fanout

    assert m4cast.Channel is client.Channel
    assert m4cast.Publisher is client.Publisher
    assert m4cast.fanout is fanout
    assert m4cast.ConnectorError is ConnectorError
    defined = {name for name, value in vars(errors).items() if isinstance(value, type)}
    assert defined <= set(m4cast.__all__)
    assert set(m4cast.__all__) <= set(dir(m4cast))


def test_importing_the_package_loads_nothing_heavy() -> None:
    heavy = ("pyarrow", "pyarrow.flight", "pyspark", "lmdb", "click", "rich", "importlib.metadata")
    script = f"import sys, m4cast; sys.exit(', '.join(name for name in {heavy!r} if name in sys.modules) or None)"
    ran = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'm4cast' has no attribute 'Chanel'"):
        _ = m4cast.Chanel  # type: ignore[attr-defined]


def test_the_version_is_the_one_in_pyproject() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    assert m4cast.__version__ == declared
    found = [path for path in (ROOT / "m4cast").glob("*.py") if declared in path.read_text(encoding="utf-8")]
    assert found == [], "the version is written in pyproject.toml only"
