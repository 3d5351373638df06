"""Ingest a topic into Delta tables and audit its delivery: `python docs/examples/audit.py HOST:PORT,... FOLDER`.

The verdict is OK when every node that was on the channel has every row that was published meanwhile.
"""

import sys
from datetime import timedelta
from typing import TYPE_CHECKING

from m4cast import Channel
from m4cast.jobs import delivery_audit, ingest, ordering_gaps
from m4cast.jobs.session import job_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOPIC = "example-audit"


def main(spark: "SparkSession", nodes: str, folder: str) -> str:
    with Channel(nodes) as channel:
        channel.publish(TOPIC, [{"id": number} for number in range(100)], acks=1)
    ingest.run(spark, ingest.Ingest({"nodes": nodes}, folder, topics=(TOPIC,)))
    gaps = ordering_gaps.run(spark, folder, grace=timedelta(0))
    print(gaps.text)
    audit = delivery_audit.run(spark, folder, grace=timedelta(0))
    print(audit.text)
    return gaps.run.verdict


if __name__ == "__main__":
    main(job_session("example audit"), *sys.argv[1:3])
