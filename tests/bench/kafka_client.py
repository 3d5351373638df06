"""Kafka's own Java clients as processes that stay: they are told what to do by lines, so that a round does not measure
how a JVM starts. `KafkaClient.java` is compiled when it is run, by the compiler that Spark has along."""

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark

from tests.kafka_broker import java

SOURCE = Path(__file__).with_name("KafkaClient.java")
SETTINGS = {
    "compression.type": "lz4",
    "batch.size": str(256 << 10),
    "linger.ms": "5",
    "buffer.memory": str(64 << 20),
    "max.request.size": str(8 << 20),
    "max.partition.fetch.bytes": str(8 << 20),
    "fetch.max.bytes": str(64 << 20),
    "max.poll.records": "50000",
    "auto.offset.reset": "earliest",
    "enable.auto.commit": "false",
}
"""As tuned as those of Spark's connector."""


class KafkaClient:
    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.pid = process.pid
        self._process = process
        assert self._said() == "ready"

    def tell(self, *words: object) -> None:
        """Start the work; `wait` until it is done."""
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(map(str, words)) + "\n")
        self._process.stdin.flush()

    def wait(self) -> None:
        assert self._said() == "done"

    def _said(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


@contextmanager
def running_clients(brokers: Sequence[str], count: int, **settings: str) -> Iterator[list[KafkaClient]]:
    """`settings`: with underscores for dots."""
    more = {**SETTINGS, **{name.replace("_", "."): value for name, value in settings.items()}}
    compiler = [str(jar) for jar in (Path(pyspark.__path__[0]) / "jars").glob("*janino*.jar")]
    compiler += [str(jar) for jar in (Path(pyspark.__path__[0]) / "jars").glob("commons-compiler*.jar")]
    *head, class_path = java()
    words = [*head, ":".join([class_path, *compiler]), "org.codehaus.janino.SimpleCompiler", str(SOURCE), SOURCE.stem]
    words += [",".join(brokers), *(f"{name}={value}" for name, value in more.items())]
    with ExitStack() as stack:
        processes = []
        for _ in range(count):
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
            processes.append(stack.enter_context(subprocess.Popen(words, text=True, **pipes)))  # type: ignore[call-overload]
            stack.callback(processes[-1].kill)
        yield [KafkaClient(process) for process in processes]
