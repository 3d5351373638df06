"""m4cast: a broadcast channel for Spark.

Every row that one pipeline writes reaches every site on the channel, in the order of its stream, without a broker.

    from m4cast import Channel

    channel = Channel(["127.0.0.1:7500"])
    channel.publish("orders", [{"id": 1, "price": 9.5}])

This package is the front: the public names, the command line, local clusters and the demo. The channel itself lives in
the folders beside it, which are symlinked into this package and imported under its name only (`m4cast.overlay`,
`m4cast.spark_connector`, ...).

Public names are imported on first use, so `import m4cast` loads neither Arrow nor Spark.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from m4cast.jobs.snapshot import snapshot
    from m4cast.overlay.client import Channel, Client, GroupMember, Publisher
    from m4cast.overlay.errors import (
        ConfigError,
        LocalProtocolError,
        M4castError,
        RefusedError,
        RemoteProtocolError,
        StoreError,
        UnreachableError,
    )
    from m4cast.spark_connector.errors import ConnectorError
    from m4cast.spark_connector.fanout import fanout
    from m4cast.spark_connector.subscribing import subscribe_all

    __version__: str

__all__ = [
    "Channel",
    "Client",
    "GroupMember",
    "Publisher",
    "fanout",
    "snapshot",
    "subscribe_all",
    "M4castError",
    "ConfigError",
    "ConnectorError",
    "LocalProtocolError",
    "RefusedError",
    "RemoteProtocolError",
    "StoreError",
    "UnreachableError",
    "__version__",
]

_ERRORS = "m4cast.overlay.errors"
_MODULES = {
    "Channel": "m4cast.overlay.client",
    "Client": "m4cast.overlay.client",
    "GroupMember": "m4cast.overlay.client",
    "Publisher": "m4cast.overlay.client",
    "fanout": "m4cast.spark_connector.fanout",
    "snapshot": "m4cast.jobs.snapshot",
    "subscribe_all": "m4cast.spark_connector.subscribing",
    "M4castError": _ERRORS,
    "ConfigError": _ERRORS,
    "ConnectorError": "m4cast.spark_connector.errors",
    "LocalProtocolError": _ERRORS,
    "RefusedError": _ERRORS,
    "RemoteProtocolError": _ERRORS,
    "StoreError": _ERRORS,
    "UnreachableError": _ERRORS,
}
"""The module that defines each public name."""


if not TYPE_CHECKING:  # type checkers take the imports above, and so report a name that does not exist

    def __getattr__(name: str) -> Any:
        if name == "__version__":
            value: Any = _installed_version()
        elif name in _MODULES:
            value = getattr(importlib.import_module(_MODULES[name]), name)
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _installed_version() -> str:
    """The version in pyproject.toml, read from the metadata of the installed package."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("m4cast")
    except PackageNotFoundError:  # a copy of the source that was never installed, such as one shipped to executors
        return "unknown"
