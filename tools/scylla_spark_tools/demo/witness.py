"""The receiver: a small HTTP server in a process of its own that writes down what arrives, and when.

Its log is the demo's witness: order, overlap and earliness are judged by it, not by what the scheduler says of itself.
Each line is one POST: `{"arrived_us": …, "events": [{key, attempt, started_us, state, value, pid}, …]}`.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Final, Self

from scylla_spark.clock import now_us
from scylla_spark.errors import SetupError
from scylla_spark.io.host import die_with_parent

_OK: Final = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
_BAD: Final = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
_LENGTH: Final = b"content-length:"
_MAX_BODY: Final = 16 * 1024 * 1024


class Receiver:
    """The receiver's process; a context manager. It ends with this process, whatever happens.

    Args:
        log_file: where it writes; overwritten.
    """

    def __init__(self, log_file: Path) -> None:
        self.log_file = log_file
        self.address = ""
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        """Starts it; `address` is then "host:port".

        Raises:
            SetupError: it ended at once.
        """
        command = die_with_parent.command([sys.executable, "-m", __name__, str(self.log_file)])
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        port = self._process.stdout.readline().strip()
        if not port:
            raise SetupError("The demo's HTTP receiver did not start.", hint="See its message above.")
        self.address = f"127.0.0.1:{port}"
        return self

    def __exit__(self, *_: object) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()

    def events(self) -> Iterator[dict[str, Any]]:
        """Everything that arrived so far, with `arrived_us`."""
        with self.log_file.open() as lines:
            for line in lines:
                post = json.loads(line)
                for event in post["events"]:
                    yield event | {"arrived_us": post["arrived_us"]}


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, log: IO[bytes]) -> None:
    try:
        while head := await reader.readuntil(b"\r\n\r\n"):
            length = _content_length(head)
            if not head.startswith(b"POST ") or length is None:
                writer.write(_BAD)
                return
            body = await reader.readexactly(length)
            log.write(b'{"arrived_us":%d,"events":%s}\n' % (now_us(), body))
            writer.write(_OK)
            await writer.drain()
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError):
        pass  # the other side is gone, as killed handlers are
    finally:
        writer.close()


def _content_length(head: bytes) -> int | None:
    """Of a request's head; None where there is none that we take."""
    for line in head.lower().split(b"\r\n"):
        if line.startswith(_LENGTH):
            text = line[len(_LENGTH) :].strip()
            return int(text) if text.isdigit() and int(text) <= _MAX_BODY else None
    return None


async def _serve(log_file: Path) -> None:
    with log_file.open("wb", buffering=0) as log:
        server = await asyncio.start_server(
            lambda reader, writer: _answer(reader, writer, log), "127.0.0.1", 0, backlog=512
        )
        print(server.sockets[0].getsockname()[1], flush=True)  # noqa: T201 - the port is what the parent waits for
        async with server:
            await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve(Path(sys.argv[1])))
