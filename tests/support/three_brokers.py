"""A Kafka cluster of three brokers on this machine; the first is also the controller."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from scylla_spark.io.host import broker_files
from scylla_spark.io.host.broker import EmbeddedBroker

_REPLICATED = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "broker.session.timeout.ms": "9000",  # as a cluster has it: so late is a dead broker noticed
}


@contextmanager
def three_brokers(folder: Path) -> Iterator[list[EmbeddedBroker]]:
    """Starts the cluster.

    Args:
        folder: for the records of all brokers.

    Yields:
        The brokers with the node ids 1, 2 and 3. Each answers at its own `bootstrap`.
    """
    with ExitStack() as stack:
        first = stack.enter_context(EmbeddedBroker(folder / "1", heap="256m", overrides=_REPLICATED))
        controller = json.loads(broker_files.Layout(folder / "1").ports.read_text())["controller"]
        identity = (folder / "1" / "records" / "meta.properties").read_text().splitlines()
        cluster = next(line for line in identity if line.startswith("cluster.id="))
        brokers = [first]
        for node in ("2", "3"):
            records = broker_files.Layout(folder / node).records
            records.mkdir(parents=True)
            (records / "meta.properties").write_text(f"version=1\nnode.id={node}\n{cluster}\n")
            ports = broker_files.choose_ports(broker_files.Layout(folder / node))
            own = {
                "process.roles": "broker",
                "node.id": node,
                "controller.quorum.voters": f"1@127.0.0.1:{controller}",
                "listeners": f"CLIENT://127.0.0.1:{ports.broker}",
            }
            brokers.append(stack.enter_context(EmbeddedBroker(folder / node, heap="256m", overrides=_REPLICATED | own)))
        yield brokers
