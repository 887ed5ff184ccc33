"""The server of Spark Connect within the Spark application of this process, for the sessions of its own handlers.

It is a thread of the JVM that is there already, so it costs no second one, and ends with it. It listens on this machine only, and
wants a token that it makes anew at every start, because everybody on this machine can reach its port.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_HOST: Final = "127.0.0.1"


class ServerAddress(NamedTuple):
    """Where sessions are to be had.

    Attributes:
        url: sc://host:port.
        token: what it asks for; empty: nothing.
    """

    url: str
    token: str


class ConnectServer:
    """The server in the JVM of a session; there is one at most, because Spark knows no second.

    Args:
        spark: a session of this process, with its JVM.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._context: Any = spark.sparkContext
        self._jvm = cast(Any, self._context._jvm)  # noqa: SLF001 - the only way into the JVM
        self._service = self._jvm.org.apache.spark.sql.connect.service.SparkConnectService

    def start(self) -> ServerAddress:
        """Starts it on a free port.

        Raises:
            Exception: Spark Connect is not among the jars of this application, or no port is free.
        """
        token = secrets.token_hex(32)
        conf = self._jvm.org.apache.spark.SparkEnv.get().conf()
        conf.set("spark.connect.grpc.binding.address", _HOST)
        conf.set("spark.connect.grpc.binding.port", "0")
        conf.set("spark.connect.authenticate.token", token)
        self._service.start(self._context._jsc.sc())  # noqa: SLF001
        companion = getattr(self._jvm.org.apache.spark.sql.connect.service, "SparkConnectService$")
        port = getattr(companion, "MODULE$").localPort()
        # only to this name does PySpark's client send a token without TLS, and it checks that the connection is local
        return ServerAddress(f"sc://localhost:{port}", token)

    def stop(self) -> None:
        """Ends it, with all sessions that it has."""
        nothing = self._jvm.scala.Option.empty()
        self._service.stop(nothing, nothing)
