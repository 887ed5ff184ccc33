"""What kafka-python (3.0.12) lacks to go on after trouble; each has a test that shows the trouble on a real broker.

- Producer: when a batch expires that may have reached the broker, the idempotent producer drops its producer id, but asks for
  a new one only from a state that it never returns to: from then on it keeps what it is given, sends nothing and fails
  nothing. And if the request for an id itself times out, the producer is lost for good.
- Group member: a join that new metadata began is forgotten once it outlives one poll, and the member then neither rejoins nor
  sends heartbeats: partitions wait for ever. (Java had a sibling of this: KAFKA-9815.)
- Group member: while a callback of a rebalance runs, `poll` and with it any commit waits; only heartbeats go on. So they tell when
  the group last took us for a member.
- Group leader: with the topic's metadata still under way, it assigns nothing to anybody.
- All clients: names of hosts are resolved without a time limit, in the thread that waits for the broker.
- All clients: the socket of a connection that fails stays open until Python looks for cyclic garbage. While a broker is away, that
  is a descriptor for each try.
- All clients: a TLS handshake has no time limit. A broker that falls silent meanwhile is never connected to again.
- Consumer: what asks for offsets waits for ever where no time limit is given.
- Group leader: a member that was away for longer than its session still claims what it had, and gets it at once, before the
  member that has it now has let go of it. (Java's members say in which generation they got what they claim.)
"""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import Any, Final

from kafka import KafkaConsumer, KafkaProducer
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.consumer import ConsumerCoordinator
from kafka.errors import KafkaConnectionError, LeaderNotAvailableError, RebalanceInProgressError
from kafka.net.inet import KafkaNetSocket
from kafka.net.transport import KafkaSSLTransport
from kafka.producer.transaction_manager import TransactionManager, TransactionState

from scylla_spark.clock import boot_us
from scylla_spark.io.host.resolving import resolved
from scylla_spark.log import get_logger

log = get_logger("kafka")

RESOLVE_S: Final = 3.0
HANDSHAKE_S: Final = 10.0


class _Transactions(TransactionManager):  # type: ignore[misc]
    def reset_producer_id(self) -> None:
        super().reset_producer_id()
        self._begin_anew()

    def transition_to_fatal_error(self, exc: BaseException) -> None:
        if self.is_transactional() or "unknown reasons" not in str(exc):  # what it says of a request that timed out
            super().transition_to_fatal_error(exc)
        else:
            self._begin_anew()

    def _begin_anew(self) -> None:
        with self._lock:
            self._current_state = TransactionState.UNINITIALIZED


class _Coordinator(ConsumerCoordinator):  # type: ignore[misc]
    heard_us = 0  # boot clock at which the last heartbeat was sent that the group answered as a member's

    async def _send_heartbeat_request(self) -> Any:
        sent = boot_us()
        try:
            answer = await super()._send_heartbeat_request()
        except RebalanceInProgressError:  # still a member: the group waits for it to join again
            self.heard_us = sent
            raise
        self.heard_us = sent
        return answer

    def need_rejoin(self) -> bool:
        needed: bool = super().need_rejoin()
        if needed:
            self.request_rejoin()  # it stays needed until a join has succeeded, whatever began it
        return needed


class Assignor(CooperativeStickyAssignor):  # type: ignore[misc]
    """Cooperative sticky assignment that believes the newest of several claims.

    It tries again, rather than assign nothing, while the topic's metadata is not there.
    """

    version = 2  # of the subscription; the first that tells the generation

    def metadata(self, topics: Any) -> Any:
        """As in the base class, with the generation in which we got what we claim."""
        told = super().metadata(topics)
        told.generation_id = self.generation
        return told

    def assign(self, cluster: Any, members: Any) -> Any:
        """As in the base class.

        Raises:
            LeaderNotAvailableError: the topic's metadata is not there; the join is repeated.
        """
        topics = {topic for member in members for topic in member.metadata.topics}
        if missing := [topic for topic in topics if not cluster.partitions_for_topic(topic)]:
            raise LeaderNotAvailableError(f"no metadata yet of {', '.join(sorted(missing))}")
        _drop_old_claims(members)
        return super().assign(cluster, members)


def _drop_old_claims(members: Any) -> None:
    """Leaves each partition to the claim of the highest generation."""
    newest: dict[tuple[str, int], int] = {}
    for metadata in (member.metadata for member in members):
        for owned in metadata.owned_partitions or ():
            for place in ((owned.topic, number) for number in owned.partitions):
                newest[place] = max(newest.get(place, -1), metadata.generation_id)
    for metadata in (member.metadata for member in members):
        for owned in metadata.owned_partitions or ():
            owned.partitions = [n for n in owned.partitions if newest[owned.topic, n] == metadata.generation_id]


def recovering(producer: KafkaProducer) -> KafkaProducer:
    """The same producer, mended; without idempotence there is nothing to mend."""
    transactions = producer._transaction_manager  # noqa: SLF001 - made deep inside its constructor
    if transactions is not None:
        transactions.__class__ = _Transactions
    return producer


def rejoining(consumer: KafkaConsumer) -> KafkaConsumer:
    """The same group member, mended; it must use `Assignor`."""
    consumer._coordinator.__class__ = _Coordinator  # noqa: SLF001 - made deep inside its constructor
    return consumer


class _EndingWaits(KafkaConsumer):  # type: ignore[misc]
    wait_ms = 0

    def beginning_offsets(self, partitions: Any, timeout_ms: int | None = None) -> Any:
        return super().beginning_offsets(partitions, timeout_ms or self.wait_ms)

    def end_offsets(self, partitions: Any, timeout_ms: int | None = None) -> Any:
        return super().end_offsets(partitions, timeout_ms or self.wait_ms)

    def position(self, partition: Any, timeout_ms: int | None = None) -> Any:
        return super().position(partition, timeout_ms or self.wait_ms)


def ending_waits(consumer: KafkaConsumer, wait_ms: int) -> KafkaConsumer:
    """The same consumer, whose questions about offsets end.

    Args:
        consumer: as it is made.
        wait_ms: how long such a question waits at most, milliseconds; then it raises KafkaTimeoutError.
    """
    consumer.__class__ = _EndingWaits
    consumer.wait_ms = wait_ms
    return consumer


def _dns_lookup(_socket: KafkaNetSocket, host: str, port: int, raise_error: bool = False) -> list[Any]:
    """What a resolver says of a broker within `RESOLVE_S`; nothing, and an error where the library wants one, if it says nothing."""
    with suppress(OSError):
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    try:
        return resolved(host, port, RESOLVE_S)
    except OSError as error:
        if raise_error:
            raise KafkaConnectionError(f"DNS lookup failed for {host}:{port}, {error!r}") from error
        log.warning("the name of a broker is not resolved", host=host, why=str(error))
        return []


KafkaNetSocket.dns_lookup = _dns_lookup
_sock_connect: Final = KafkaNetSocket.sock_connect
_handshake: Final = KafkaSSLTransport.handshake


async def _connect(
    net_socket: KafkaNetSocket, net: Any, sock: Any, sockaddr: Any, timeout_at: float | None = None
) -> Any:
    """As `KafkaNetSocket.sock_connect`; closes the socket where that fails."""
    try:
        return await _sock_connect(net_socket, net, sock, sockaddr, timeout_at=timeout_at)
    except BaseException:
        sock.close()
        raise


async def _handshake_in_time(transport: KafkaSSLTransport) -> None:
    """As `KafkaSSLTransport.handshake`, within `HANDSHAKE_S`; closes the socket where that fails."""
    sock, net = transport._sock, transport._net  # noqa: SLF001 - its own method

    def give_up() -> None:
        with suppress(OSError):
            socket.socket.shutdown(sock, socket.SHUT_RDWR)  # that of TLS would let the handshake go on without it

    limit = net.call_later(HANDSHAKE_S, give_up)
    try:
        await _handshake(transport)
    except BaseException:
        sock.close()
        raise
    finally:
        net.cancel(limit)


KafkaNetSocket.sock_connect = _connect
KafkaSSLTransport.handshake = _handshake_in_time
