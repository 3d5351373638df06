"""m4cast: a broadcast channel for Spark.

Every row that one pipeline writes reaches every site on the channel, in the order of its stream, without a broker.

This package is the front: public names and the command line. The code itself lives in the folders beside it, which are
reached from here by symlinks and imported under this name only (`m4cast.overlay`, `m4cast.spark_connector`, ...).
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from m4cast.spark_connector.fanout import fanout

__version__ = "0.1.0"
__all__ = ["__version__", "fanout"]


def __getattr__(name: str) -> Any:
    """Public names are imported when they are asked for: the command line needs no Spark."""
    if name == "fanout":
        from m4cast.spark_connector.fanout import fanout

        return fanout
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
