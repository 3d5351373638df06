"""Real Kafka brokers for tests and benchmarks: one process each, in KRaft mode on the loopback.

    with running_broker(folder) as broker:
        KafkaConsumer("orders", bootstrap_servers=broker.address)

    with running_brokers(folder, 3) as brokers:
        KafkaConsumer("orders", bootstrap_servers=[broker.address for broker in brokers])

Nothing but Java is needed. The jars are resolved once, by Spark's own Ivy, into the home folder; like Spark's
packages they come from wherever Spark is told to look (`DEFAULT_ARTIFACT_REPOSITORY`, or Maven Central).
The broker keeps its port and its data when it is stopped or killed, and started again.
"""

import fcntl
import os
import shutil
import socket
import subprocess
import sys
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pyspark
from kafka import KafkaAdminClient
from kafka.errors import KafkaError
from kafka.net import selector
from kafka.net.inet import KafkaNetSocket

from m4cast.cluster.ports import free_ports

KAFKA_VERSION = "4.3.1"
PACKAGES = (f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}", "org.slf4j:slf4j-simple:1.7.36")
JARS_FOLDER = Path.home() / ".cache" / "m4cast" / f"kafka-{KAFKA_VERSION}"
RESOLVED = "resolved"
RESOLVE_TIMEOUT_S = 600.0
READY_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 30.0
POLL_S = 0.05
LOG_TAIL_BYTES = 3_000
JAVA_OPTIONS = ("-Xmx1g", "-XX:+UseSerialGC", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn")
QUICK_START = ("-XX:TieredStopAtLevel=1",)
"""Less compiling: up sooner, slower under load. For tests; a benchmark gives ()."""

# Every broker is a controller, too; the internal topics have one small replica, so that they are made quickly. A
# consumer that was killed may be given up soon, if it asks for that.
# Records are kept whatever their timestamp is: by default, old ones are removed by the first round of retention.
SETTINGS = {
    "process.roles": "broker,controller",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
    "auto.create.topics.enable": "false",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "controlled.shutdown.enable": "false",
    "log.retention.ms": "-1",
}


class ForgivenSocket(socket.socket):
    """Closes itself in silence. kafka-python 3.0 forgets sockets: that of a client which is closed while it connects
    or writes, and two of each producer that found no broker. Python would warn of them when they are collected, and
    fail whichever test runs at that moment."""

    def __del__(self) -> None:
        self.close()

    @classmethod
    def pair(cls) -> "tuple[ForgivenSocket, ...]":
        return tuple(cls(fileno=each.detach()) for each in socket.socketpair())


KafkaNetSocket.socket = lambda _, family, kind, protocol: ForgivenSocket(family, kind, protocol)
selector.socket = SimpleNamespace(socketpair=ForgivenSocket.pair)


@dataclass(frozen=True, slots=True)
class Seat:
    """A broker's place among those of its cluster."""

    number: int
    address: str
    controllers: Mapping[int, str]
    """By number, of all."""
    cluster_id: str


class KafkaBroker:
    """A broker with its data in a folder; `start` it, `stop` or `kill` it, and start it again."""

    def __init__(self, folder: Path, seat: "Seat", settings: Mapping[str, str], java_options: Sequence[str]) -> None:
        self.folder = folder
        self._java = [*java(), *java_options]
        self.address = seat.address
        self._process: subprocess.Popen[bytes] | None = None
        self._properties = folder / "server.properties"
        folder.mkdir(parents=True)
        lines = {
            **SETTINGS,
            "node.id": str(seat.number),
            "listeners": f"PLAINTEXT://{seat.address},CONTROLLER://{seat.controllers[seat.number]}",
            "controller.quorum.voters": ",".join(f"{number}@{at}" for number, at in seat.controllers.items()),
            "log.dirs": str(folder / "data"),
            **settings,
        }
        self._properties.write_text("".join(f"{name}={value}\n" for name, value in lines.items()), encoding="utf-8")
        self._run_tool("kafka.tools.StorageTool", "format", "-t", seat.cluster_id, "-c", str(self._properties))

    @property
    def pid(self) -> int:
        assert self._process is not None, "it was not started"
        return self._process.pid

    @property
    def log(self) -> Path:
        return self.folder / "log"

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> "KafkaBroker":
        """Wait until it answers."""
        self.spawn()
        self.wait()
        return self

    def spawn(self) -> None:
        assert not self.is_running(), "it runs already"
        with self.log.open("ab") as log:
            words = [*self._java, "kafka.Kafka", str(self._properties)]
            self._process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def wait(self) -> None:
        """Wait until it answers."""
        deadline = time.monotonic() + READY_TIMEOUT_S
        while not self._answers():
            if not self.is_running() or time.monotonic() > deadline:
                self.kill()
                raise AssertionError(f"the broker did not come:\n{self._log_tail()}")
            time.sleep(POLL_S)

    def stop(self) -> None:
        """Stop it in order, as SIGTERM does; the process is gone afterwards."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """Kill it, as kill -9 does; the process is gone afterwards."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(STOP_TIMEOUT_S)

    def _answers(self) -> bool:
        host, _, port = self.address.rpartition(":")
        try:
            socket.create_connection((host, int(port)), timeout=1).close()  # kafka-python leaks what does not connect
        except OSError:
            return False
        try:
            admin = KafkaAdminClient(bootstrap_servers=self.address, bootstrap_timeout_ms=10_000)
        except KafkaError:
            return False
        try:
            return bool(admin.describe_cluster()["brokers"])
        except KafkaError:
            return False
        finally:
            admin.close()

    def _run_tool(self, *words: str) -> None:
        done = subprocess.run(
            [*self._java, *words], capture_output=True, text=True, timeout=READY_TIMEOUT_S, check=False
        )
        assert done.returncode == 0, f"{words[0]} failed:\n{done.stdout}{done.stderr}"

    def _log_tail(self) -> str:
        return self.log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace")


@contextmanager
def running_broker(
    folder: Path, settings: Mapping[str, str] | None = None, java_options: Sequence[str] = QUICK_START
) -> Iterator[KafkaBroker]:
    """`settings`: of the broker, besides or in place of those that it has here."""
    with running_brokers(folder, 1, settings, java_options) as (broker,):
        yield broker


@contextmanager
def running_brokers(
    folder: Path, count: int, settings: Mapping[str, str] | None = None, java_options: Sequence[str] = QUICK_START
) -> Iterator[list[KafkaBroker]]:
    """A cluster: all are started before the first can answer, since controllers need a majority."""
    addresses = free_ports(2 * count)
    controllers = dict(enumerate(addresses[count:], start=1))
    # Not beginning with a dash, which Kafka's tool would take for an option.
    cluster_id = urlsafe_b64encode(b"m" + uuid.uuid4().bytes[1:]).decode().rstrip("=")
    brokers = [
        KafkaBroker(
            folder if count == 1 else folder / str(number),
            Seat(number, addresses[number - 1], controllers, cluster_id),
            settings or {},
            java_options,
        )
        for number in controllers
    ]
    try:
        for broker in brokers:
            broker.spawn()
        for broker in brokers:
            broker.wait()
        yield brokers
    finally:
        for broker in brokers:
            broker.kill()


def java() -> list[str]:
    """The words that run a class of Kafka's."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    assert java, "Java is needed: .ci/java says how to get it"
    # Spark's Ivy leaves Scala's own library out of what it resolves, since Spark has it.
    scala = (Path(pyspark.__path__[0]) / "jars").glob("scala-library-*.jar")
    jars = [*sorted((_resolved_jars() / "jars").glob("*.jar")), *scala]
    return [java, *JAVA_OPTIONS, "-cp", os.pathsep.join(str(jar) for jar in jars)]


def _resolved_jars() -> Path:
    """The folder of the jars; resolved by the first caller, while others wait."""
    JARS_FOLDER.mkdir(parents=True, exist_ok=True)
    with (JARS_FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (JARS_FOLDER / RESOLVED).exists():
            _resolve()
            (JARS_FOLDER / RESOLVED).touch()
    return JARS_FOLDER


def _resolve() -> None:
    """An empty program with these packages: Spark gets them before it starts it."""
    program = JARS_FOLDER / "nothing.py"
    program.touch()
    spark_submit = Path(pyspark.__path__[0]) / "bin" / "spark-submit"
    words = ["--master", "local", "--packages", ",".join(PACKAGES), "--conf", f"spark.jars.ivy={JARS_FOLDER}"]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(
        [str(spark_submit), *words, str(program)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=RESOLVE_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, f"{', '.join(PACKAGES)} could not be had:\n{done.stderr[-LOG_TAIL_BYTES:]}"
