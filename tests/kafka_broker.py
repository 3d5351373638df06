"""A real Kafka broker for tests and benchmarks: one process in KRaft mode on the loopback.

    with running_broker(folder) as broker:
        KafkaConsumer("orders", bootstrap_servers=broker.address)

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
from pathlib import Path

import pyspark
from kafka import KafkaAdminClient
from kafka.errors import KafkaError

from m4cast.local_cluster import free_ports

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

# One broker that is its own controller; the internal topics have one small replica, so that they are made quickly.
# Records are kept whatever their timestamp is: by default, old ones are removed by the first round of retention.
SETTINGS = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
    "auto.create.topics.enable": "false",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "controlled.shutdown.enable": "false",
    "log.retention.ms": "-1",
}


class KafkaBroker:
    """A broker with its data in a folder; `start` it, `stop` or `kill` it, and start it again."""

    def __init__(self, folder: Path, settings: Mapping[str, str], java_options: Sequence[str]) -> None:
        self.folder = folder
        self._java = [*_java(), *java_options]
        self.address, controller = free_ports(2)
        self._process: subprocess.Popen[bytes] | None = None
        self._properties = folder / "server.properties"
        folder.mkdir(parents=True)
        lines = {
            **SETTINGS,
            "listeners": f"PLAINTEXT://{self.address},CONTROLLER://{controller}",
            "controller.quorum.voters": f"1@{controller}",
            "log.dirs": str(folder / "data"),
            **settings,
        }
        self._properties.write_text("".join(f"{name}={value}\n" for name, value in lines.items()), encoding="utf-8")
        cluster_id = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        self._run_tool("kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(self._properties))

    @property
    def log(self) -> Path:
        return self.folder / "log"

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> "KafkaBroker":
        """Until it answers."""
        assert not self.is_running(), "it runs already"
        with self.log.open("ab") as log:
            words = [*self._java, "kafka.Kafka", str(self._properties)]
            self._process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        deadline = time.monotonic() + READY_TIMEOUT_S
        while not self._answers():
            if not self.is_running() or time.monotonic() > deadline:
                self.kill()
                raise AssertionError(f"the broker did not come:\n{self._log_tail()}")
            time.sleep(POLL_S)
        return self

    def stop(self) -> None:
        """In order, as SIGTERM does; the process is gone afterwards."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """As kill -9 does; the process is gone afterwards."""
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
            admin = KafkaAdminClient(bootstrap_servers=self.address, bootstrap_timeout_ms=1_000)
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
    broker = KafkaBroker(folder, settings or {}, java_options)
    try:
        yield broker.start()
    finally:
        broker.kill()


def _java() -> list[str]:
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    assert java, "Java is needed: .ci/java says how to get it"
    # Spark's Ivy leaves Scala's own library out of what it resolves, since Spark has it.
    scala = (Path(pyspark.__path__[0]) / "jars").glob("scala-library-*.jar")
    jars = [*sorted((_resolved_jars() / "jars").glob("*.jar")), *scala]
    return [java, *JAVA_OPTIONS, "-cp", os.pathsep.join(str(jar) for jar in jars)]


def _resolved_jars() -> Path:
    """Where the jars are; resolved by the first who asks, while others wait."""
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
