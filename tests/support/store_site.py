"""A store that speaks the protocol of S3, on loopback: moto, in a process of its own that ends with ours."""

import contextlib
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator

from scylla_spark.io.host import die_with_parent
from scylla_spark.io.host.broker_files import free_port
from tests.support.slow_store import BUCKET, aws_variables
from tests.support.waiting import eventually

_SERVE = "import sys; from moto.server import main; main(sys.argv[1:])"


@contextlib.contextmanager
def store() -> Iterator[dict[str, str]]:
    """An empty bucket `lake`; the variables of the environment by which clients of AWS find it."""
    port = free_port()
    command = [sys.executable, "-c", _SERVE, "-H", "127.0.0.1", "-p", str(port)]
    environment = aws_variables(port)
    with subprocess.Popen(
        die_with_parent.command(command),
        env=os.environ | environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as server:
        try:
            eventually(lambda: _makes_bucket(port), 60, "the store takes a bucket")
            yield environment
        finally:
            server.kill()


def _makes_bucket(port: int) -> bool:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/{BUCKET}", method="PUT")
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return bool(answer.status == 200)
    except urllib.error.HTTPError:
        raise
    except OSError:
        return False
