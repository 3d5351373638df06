"""`m4cast.subscribe_all`: profiles of many clients from a DataFrame."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from m4cast.overlay.errors import M4castError
from m4cast.spark_connector.access import channel_of
from m4cast.spark_connector.errors import ConnectorError
from m4cast.spark_connector.options import access_of, parse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from m4cast.overlay.client.roaming.many import SubscribedClients


def subscribe_all(
    df: "DataFrame | Iterable[Mapping[str, Any]]",
    *,
    nodes: str | Sequence[str],
    start: Literal["latest", "earliest"] = "latest",
    **options: object,
) -> "SubscribedClients":
    """Give a profile to a client for each row: columns `key`, `credential`, `topic`, and if wanted `where`, `language`
    and `name`. Clients that nobody has are created at the first of the `nodes` that answers. `options` are those of
    access (`token`, `tlsCa`, ...). Rows are collected by the driver, at most a million.

    A profile that a client has already changes nothing, so it may be repeated. If rows are refused, the others are done
    all the same, and the error names them. Returns how many clients were created and changed.

    >>> m4cast.subscribe_all(wishes, nodes="127.0.0.1:7501").created
    2000
    """
    from m4cast.overlay.client.roaming.many import COLUMNS, subscribe_rows

    given = {"nodes": nodes if isinstance(nodes, str) else ",".join(nodes)}
    access = access_of(parse({**given, **{name: str(value) for name, value in options.items()}}))
    rows = df if isinstance(df, Iterable) else _collected(df, COLUMNS)
    try:
        return subscribe_rows(channel_of(access), rows, start=start)
    except ConnectorError:
        raise
    except M4castError as error:
        raise ConnectorError("M4CAST_CLIENT", str(error), "rows that are done may be repeated") from None


def _collected(df: "DataFrame", columns: Sequence[str]) -> Iterator[dict[str, Any]]:
    unknown = [name for name in df.columns if name not in columns]
    if unknown:
        fix = f"select columns of {', '.join(columns)}"
        raise ConnectorError("M4CAST_CLIENT", f"the DataFrame has a column {unknown[0]!r}", fix)
    return (row.asDict() for row in df.toLocalIterator())
