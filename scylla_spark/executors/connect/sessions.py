"""Sessions of Spark Connect: one per attempt, opened by the child that runs it, released by the dispatcher when it has ended.

The name of a session follows from the number of the invocation. So the dispatcher can release it, and with that end all that the
attempt has running in Spark, whatever became of its child.
"""

from __future__ import annotations

import threading
import uuid
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

_USER: Final = "scylla-spark"
RELEASE_S: Final = 5.0
_IN_THE_SERVER: Final = ("spark.sql.codegen.wholeStage", "true")


class Endpoint(NamedTuple):
    """A server, as children are told of it.

    Attributes:
        url: sc://host:port.
        token: what it asks for; empty: nothing.
        salt: a UUID that tells the sessions of this pool from others of the server.
        own: it is the application of our services, whose sessions are set up for small batches.
    """

    url: str
    token: str
    salt: str
    own: bool

    def session_id(self, number: int) -> str:
        """The name of the session of an invocation.

        Args:
            number: of the invocation, unique within the dispatcher process.
        """
        return str(uuid.uuid5(uuid.UUID(self.salt), str(number)))

    def address(self, number: int) -> str:
        """Returns what PySpark needs to know to open or release the session of an invocation."""
        token = f"token={quote(self.token, safe='')};" if self.token else ""
        return f"{self.url.rstrip('/')}/;{token}user_id={_USER};session_id={self.session_id(number)}"


class AttemptSession:
    """The session of one attempt, in its child; may be asked for from any thread of it.

    Args:
        endpoint: the server.
        number: of the invocation.
    """

    def __init__(self, endpoint: Endpoint, number: int) -> None:
        self._endpoint = endpoint
        self._number = number
        self._lock = threading.Lock()
        self._session: SparkSession | None = None

    def get(self) -> SparkSession:
        """The session, which the first call opens.

        Raises:
            pyspark.errors.PySparkException: the server refuses it.
        """
        with self._lock:
            if self._session is None:
                self._session = self._open()
            return self._session

    def close(self) -> None:
        """Lets go of the connection; the session itself is the dispatcher's to release."""
        with self._lock:
            session, self._session = self._session, None
        if session is not None:
            session.release_session_on_close = False
            session.stop()

    def _open(self) -> SparkSession:
        from pyspark.sql.connect.session import SparkSession

        session: SparkSession = SparkSession.builder.remote(self._endpoint.address(self._number)).create()
        if self._endpoint.own:
            session.conf.set(*_IN_THE_SERVER)
        return session


def release(endpoint: Endpoint, number: int) -> None:
    """Ends all that an invocation has running in Spark, and lets its session go; does nothing where it never had one.

    Args:
        endpoint: the server.
        number: of the invocation.

    Raises:
        grpc.RpcError: the server did not answer within seconds.
    """
    from pyspark.sql.connect import proto
    from pyspark.sql.connect.client.core import DefaultChannelBuilder
    from pyspark.sql.connect.proto import SparkConnectServiceStub

    builder = DefaultChannelBuilder(endpoint.address(number))
    request: Any = proto.ReleaseSessionRequest(session_id=endpoint.session_id(number), client_type=builder.userAgent)
    request.user_context.user_id = _USER
    stub: Any = SparkConnectServiceStub  # untyped
    with builder.toChannel() as channel:
        stub(channel).ReleaseSession(request, timeout=RELEASE_S, metadata=builder.metadata())
