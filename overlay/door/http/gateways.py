"""Metrics of a gatekeeper, from its report (`overlay/net/gateways/view.py`). Other nodes export no samples of them.

The values of links are summed by the channel at their other end. The settings name these channels, which bounds their
number.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from m4cast.overlay.door.admin.status import Sample

BY_LINK = {
    "m4cast_gateway_sent_rows_total": "sent_rows",
    "m4cast_gateway_sent_bytes_total": "sent_bytes",
    "m4cast_gateway_received_bytes_total": "received_bytes",
    "m4cast_gateway_withheld_total": "withheld",
    "m4cast_gateway_queued_bytes": "queued_bytes",
}


def gateway_samples(report: Mapping[str, Any]) -> Iterator[Sample]:
    if not report:
        return
    yield "m4cast_gateway_units", (), sum(not unit["is_own"] for unit in report["units"])
    yield "m4cast_gateway_unreached_units", (), sum(not unit["is_reached"] for unit in report["units"])
    yield "m4cast_gateway_open_batches", (), report["open_batches"]
    links: Counter[str] = Counter()
    for link in report["links"]:
        links[link["channel"]] += link["level"] is not None and not link["is_suspected"]
    for channel, count in links.items():
        yield "m4cast_gateway_links", (channel,), count
    for name, field in BY_LINK.items():
        sums: Counter[str] = Counter()
        for link in report["links"]:
            sums[link["channel"]] += link[field]
        for channel, total in sums.items():
            yield name, (channel,), total
