"""Config files: TOML with a table [cluster], a table [node], or both. A file with [node] may also have any number of
[[subscribe]] tables and, for a gatekeeper, a table [federation] with any number of [[gateway]] tables."""

import difflib
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar

from m4cast.overlay.config import ClusterConfig, NodeConfig
from m4cast.overlay.config.federation import FederationConfig, GatewayConfig
from m4cast.overlay.config.settings import TopicFilter, shown
from m4cast.overlay.errors import ConfigError

C = TypeVar("C")

PATH_SETTINGS = ("tls_ca", "tls_cert", "tls_key")
TABLES = ("cluster", "node")
"""A file has one table or both; each loader reads its own."""
SUBSCRIBE = "subscribe"
"""Tables beside [node]: the rows that the node wants."""
FEDERATION, GATEWAY = "federation", "gateway"
OTHERS = (SUBSCRIBE, FEDERATION, GATEWAY)


def load_cluster(path: Path | str) -> ClusterConfig:
    return _load(Path(path), "cluster", ClusterConfig)


def load_node(path: Path | str) -> NodeConfig:
    """Relative paths in the file begin at its folder."""
    config = _load(Path(path), "node", NodeConfig)
    config = replace(config, subscribe=_filters(Path(path)))
    folder = Path(path).parent
    paths = {name: str(folder / named) for name in PATH_SETTINGS if (named := getattr(config, name))}
    if config.tokens.startswith("file:"):
        paths["tokens"] = f"file:{folder / config.tokens.removeprefix('file:')}"
    return replace(config, **paths) if paths else config  # type: ignore[arg-type]


def load_federation(path: Path | str) -> FederationConfig | None:
    """The [federation] of a file; None if the node is not a gatekeeper. Relative paths begin at the file's folder."""
    content = _read(Path(path))
    values, tables = content.get(FEDERATION), content.get(GATEWAY, [])
    if values is None:
        if tables:
            raise ConfigError(f"{path}: [[{GATEWAY}]] without a table [{FEDERATION}]: add it, or remove the gateways")
        return None
    if not isinstance(values, dict) or not isinstance(tables, list):
        raise ConfigError(f"{path}: [{FEDERATION}] is a table, and [[{GATEWAY}]] a list of tables: write them so")
    if "gateways" in values:
        raise ConfigError(f"{path}: [{FEDERATION}] gateways: are [[{GATEWAY}]] tables: write them so")
    gateways = []
    for table in tables:
        if not isinstance(table, dict):
            raise ConfigError(f"{path}: [[{GATEWAY}]] {shown(table)}: must be a table")
        gateway = made(GatewayConfig, table, f"{path}: [[{GATEWAY}]]")
        gateways.append(replace(gateway, ca=str(Path(path).parent / gateway.ca)) if gateway.ca else gateway)
    return made(FederationConfig, {**values, "gateways": gateways}, f"{path}: [{FEDERATION}]")


def _filters(path: Path) -> tuple[TopicFilter, ...]:
    """The [[subscribe]] tables of a file."""
    tables = _read(path).get(SUBSCRIBE, [])
    found = []
    for table in tables if isinstance(tables, list) else [tables]:
        if not isinstance(table, dict) or not table.keys() <= {"topic", "where"} or "topic" not in table:
            raise ConfigError(f"{path}: [[{SUBSCRIBE}]] {shown(table)}: must have a topic and may have a where")
        found.append(TopicFilter(table["topic"], table.get("where", "")))
    return tuple(found)


def _load(path: Path, table: str, config_class: type[C]) -> C:
    return made(config_class, read_table(path, table, TABLES, OTHERS), f"{path}: [{table}]")


def read_table(path: Path, table: str, tables: Collection[str], others: Collection[str] = ()) -> dict[str, Any]:
    """One table of a file, which may contain these tables, and `others` beside them."""
    content = _read(path)
    for name in content:
        if name not in tables and name not in others:
            places = " and ".join(f"[{each}]" for each in tables)
            raise ConfigError(f"{path}: unknown key {name!r} at the top; settings go under {places}")
    values = content.get(table)
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: has no table [{table}]: add it, with the settings under it")
    return values


def made(config_class: type[C], values: Mapping[str, Any], where: str) -> C:
    """A config with these values; `where`, their source, is in every message."""
    known = [config_field.name for config_field in fields(config_class)]  # type: ignore[arg-type]  # a dataclass
    for name, value in values.items():
        if name not in known:
            raise ConfigError(f"{where} {name} = {shown(value)}: unknown setting{_nearest(name, known)}")
    # TOML has lists where a frozen value has tuples. (Any, because the constructor is what checks the types.)
    arguments: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in values.items()
    }
    try:
        return config_class(**arguments)
    except ConfigError as error:
        raise ConfigError(f"{where} {error}") from error


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: is not TOML: {error}") from error


def _nearest(name: str, known: list[str]) -> str:
    nearest = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {nearest[0]}?" if nearest else f"; known are {', '.join(known)}"
