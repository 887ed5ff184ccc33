"""What the embedded broker is started with: ports, `server.properties`, log set-up and the JVM command line."""

from __future__ import annotations

import hashlib
import json
import os
import random
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from scylla_spark.errors import BrokerError
from scylla_spark.io.host import jars, private_files
from scylla_spark.io.host.java import require_java

HOST = "127.0.0.1"
# Below the range from which Linux takes the ports of outgoing connections, so that a restart finds its port free.
_PORT_RANGE = range(20_000, 32_000)

_SERVER = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "CLIENT",
    # topics are made on purpose, by `init`; time is the broker's
    "auto.create.topics.enable": "false",
    "log.message.timestamp.type": "LogAppendTime",
    "unclean.leader.election.enable": "false",
    "message.max.bytes": "2097152",
    "replica.fetch.max.bytes": "2097152",
    "log.retention.hours": "168",
    # one node: every internal topic has one replica, and few partitions
    "default.replication.factor": "1",
    "min.insync.replicas": "1",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "8",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.max.timeout.ms": "60000",  # so long can an open transaction hold back what stands behind it
    "auto.leader.rebalance.enable": "false",
    # consumer groups: no wait for more members; a dead owner may be noticed in less than Kafka's usual six seconds
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    # after kill -9 the broker may register again only when its old session has ended (9 s by default)
    "broker.heartbeat.interval.ms": "1000",
    "broker.session.timeout.ms": "3000",
    # idle: no empty metadata record every half second (2.1 % of a core became 0.9 %)
    "metadata.max.idle.interval.ms": "0",
    # small machine
    "num.network.threads": "2",
    "num.io.threads": "4",
    "num.recovery.threads.per.data.dir": "2",
    "background.threads": "2",
    "log.cleaner.dedupe.buffer.size": "8388608",
}

# With access control: clients say SCRAM, so that nobody who takes the port while the broker is down learns the secret. Its own
# connections, and ours that tells it the clients' secret, say PLAIN with a password of this start.
_NODE = "node"
_CLIENT_MECHANISM = "SCRAM-SHA-512"
_SECURED = {
    "listener.security.protocol.map": "CLIENT:SASL_PLAINTEXT,CONTROLLER:SASL_PLAINTEXT",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    "sasl.mechanism.controller.protocol": "PLAIN",
    "listener.name.controller.sasl.enabled.mechanisms": "PLAIN",
    "listener.name.client.sasl.enabled.mechanisms": f"{_CLIENT_MECHANISM},PLAIN",
    "listener.name.client.scram-sha-512.sasl.jaas.config": (
        "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    ),
}
_OPEN = {"listener.security.protocol.map": "CLIENT:PLAINTEXT,CONTROLLER:PLAINTEXT"}

_LOG4J = """\
log4j.rootLogger=INFO, file
log4j.appender.file=org.apache.log4j.RollingFileAppender
log4j.appender.file.File=logs/broker.log
log4j.appender.file.MaxFileSize=5MB
log4j.appender.file.MaxBackupIndex=2
log4j.appender.file.layout=org.apache.log4j.PatternLayout
log4j.appender.file.layout.ConversionPattern=%d{ISO8601} %p %c{1}: %m%n
log4j.logger.kafka.coordinator=WARN
log4j.logger.org.apache.kafka.coordinator=WARN
log4j.logger.org.apache.kafka.clients=WARN
log4j.logger.kafka.log.LogCleaner=WARN
"""


@dataclass(frozen=True, slots=True)
class Ports:
    """The two loopback ports of the node: clients talk to `broker`, the node to itself on `controller`."""

    broker: int
    controller: int


@dataclass(frozen=True, slots=True)
class Layout:
    """Where things are below the broker's data folder."""

    root: Path

    @property
    def lock(self) -> Path:
        """Held, by flock, as long as a broker runs on this folder."""
        return self.root / "broker.lock"

    @property
    def ports(self) -> Path:
        """The ports that were chosen at the first start."""
        return self.root / "ports.json"

    @property
    def properties(self) -> Path:
        """Kafka's configuration, written anew at every start."""
        return self.root / "server.properties"

    @property
    def log4j(self) -> Path:
        """Log configuration, written anew at every start."""
        return self.root / "log4j.properties"

    @property
    def records(self) -> Path:
        """Kafka's `log.dirs`: the records themselves and the cluster's metadata."""
        return self.root / "records"

    @property
    def log(self) -> Path:
        """Returns what the broker reports; rotated at 5 MB, two older files kept."""
        return self.root / "logs" / "broker.log"

    @property
    def console(self) -> Path:
        """Returns what the JVM itself says, emptied at every start."""
        return self.root / "logs" / "console.log"

    @property
    def secret(self) -> Path:
        """Returns what clients must know where access is controlled."""
        return secret_file(self.root)

    @property
    def formatted(self) -> bool:
        """Returns True if the storage has its cluster id already."""
        return (self.records / "meta.properties").is_file()


CLIENT_USER = "scylla-spark"


def secret_file(root: Path) -> Path:
    """Returns where the broker of a data folder keeps the secret of its clients."""
    return root / "client.secret"


def is_free(port: int) -> bool:
    """Returns True if a server could listen on a loopback port right now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


def choose_ports(layout: Layout, fixed: int | None = None) -> Ports:
    """The ports to start with: those of the last start where they are still free, else new ones; the choice is kept.

    Args:
        layout: where the last choice is kept.
        fixed: the client port that the caller insists on.

    Raises:
        BrokerError: `fixed` is in use by another process.
    """
    if fixed is not None and not is_free(fixed):
        raise BrokerError(
            f"port {fixed} is in use by another process.",
            hint="Choose another port, or let the broker choose.",
            port=fixed,
        )
    try:
        last = Ports(**json.loads(layout.ports.read_text()))
    except (OSError, ValueError, TypeError):
        last = Ports(0, 0)
    broker = fixed or (last.broker if last.broker and is_free(last.broker) else free_port())
    controller = last.controller
    if controller in (0, broker) or not is_free(controller):
        controller = free_port(broker)
    chosen = Ports(broker, controller)
    private_files.write(layout.ports, json.dumps(asdict(chosen)) + "\n")
    return chosen


def write_configuration(
    layout: Layout, ports: Ports, overrides: Mapping[str, str] | None = None, *, node_password: str | None = None
) -> None:
    """Write `server.properties` and `log4j.properties` for this start.

    Args:
        layout: where to.
        ports: to listen on.
        overrides: Kafka settings that win.
        node_password: what the node knows itself by, where access is controlled; None where it is open.
    """
    listener = f"CLIENT://{HOST}:{ports.broker}"
    addresses = {
        "listeners": f"{listener},CONTROLLER://{HOST}:{ports.controller}",
        "advertised.listeners": listener,
        "controller.quorum.voters": f"1@{HOST}:{ports.controller}",
        "log.dirs": layout.records.name,  # relative to the working directory, so that no path needs escapes
    }
    access = _OPEN if node_password is None else _SECURED | _known_by(node_password)
    settings = {**_SERVER, **addresses, **access, **(overrides or {})}
    layout.log.parent.mkdir(parents=True, exist_ok=True)
    private_files.write(layout.properties, "".join(f"{key}={value}\n" for key, value in settings.items()))
    private_files.write(layout.log4j, _LOG4J)


def _known_by(password: str) -> dict[str, str]:
    login = (
        "org.apache.kafka.common.security.plain.PlainLoginModule required "
        f'username="{_NODE}" password="{password}" user_{_NODE}="{password}";'
    )
    return {f"listener.name.{name}.plain.sasl.jaas.config": login for name in ("client", "controller")}


def node_access(password: str | None) -> dict[str, str]:
    """Returns how kafka-python connects as the node itself."""
    return {} if password is None else _access("PLAIN", _NODE, password)


def client_access(secret: str | None) -> dict[str, str]:
    """Returns how kafka-python connects as a client."""
    return {} if secret is None else _access(_CLIENT_MECHANISM, CLIENT_USER, secret)


def _access(mechanism: str, user: str, password: str) -> dict[str, str]:
    return {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
        "sasl_plain_username": user,
        "sasl_plain_password": password,
    }


def jvm(layout: Layout, heap: str) -> list[str]:
    """`java` with its flags and class path; a main class and arguments follow.

    Args:
        layout: the broker's data folder.
        heap: largest heap, in Java's notation ("512m").

    Raises:
        SetupError: Java or the broker's jars are missing and cannot be had.
    """
    java = require_java()
    flags = [
        f"-Xmx{heap}",
        "-Xms64m",
        "-Xss512k",
        "-XX:+UseSerialGC",
        # the optimising compiler would take more of a small machine for its first minutes than it ever gives back
        "-XX:TieredStopAtLevel=1",
        "-XX:+ExitOnOutOfMemoryError",
        "-XX:-UsePerfData",
    ]
    flags += ["-Djava.awt.headless=true", f"-Dlog4j.configuration={layout.log4j.resolve().as_uri()}"]
    return [str(java), *flags, "-cp", os.pathsep.join(map(str, jars.broker_jars()))]


def class_archive(java: str) -> Path:
    """Returns where the classes that the broker loads are kept, ready parsed, for the next start (halves its time and CPU).

    It stands beside the jars and belongs to one Java binary; Java ignores one that does not fit.
    """
    stat = Path(java).resolve().stat()
    key = hashlib.sha256(f"{Path(java).resolve()}:{stat.st_size}:{stat.st_mtime_ns}".encode()).hexdigest()[:12]
    return jars.folder("broker").with_name(f"broker-classes-{key}.jsa")


def tail(layout: Layout, lines: int = 15) -> str:
    """The last lines of the broker's log and of the JVM's own output, for an error message."""
    kept: list[str] = []
    for path in (layout.log, layout.console):
        try:
            text = path.read_text(errors="replace")
        except OSError:
            continue
        kept += [line for line in text.splitlines()[-lines:] if line.strip()]
    return "\n".join(f"  {line[:300]}" for line in kept)


def free_port(*taken: int) -> int:
    """A loopback port that no process listens on, below the range of outgoing connections.

    Args:
        taken: ports that are wanted for something else.

    Raises:
        BrokerError: none was found.
    """
    for port in random.sample(_PORT_RANGE, 200):
        if port not in taken and is_free(port):
            return port
    raise BrokerError("no free loopback port was found.", hint="Look for processes that hold ports: ss -ltn")
