"""A store with the protocol of S3 that is slow or silent: it serves a folder for reading, in a process of its own.

It must not be a thread of the test: where a call keeps the interpreter's lock while it waits, its answer would never come.
"""

import contextlib
import os
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.parse
from collections.abc import Iterator
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from uuid import uuid4
from xml.sax.saxutils import escape

from scylla_spark.io.host import die_with_parent

BUCKET = "lake"
ASKED_S = 10.0  # a request waits this long for a thread of the test


class SlowStore:
    """A bucket `lake` that holds the files of a folder.

    Attributes:
        environment: the variables by which clients of AWS find it.
    """

    def __init__(self, folder: Path, port: int) -> None:
        self._mood = folder.with_name(f"{folder.name}.mood")
        self._asked = folder.with_name(f"{folder.name}.asked")
        self._asked.mkdir()
        self.environment = aws_variables(port)
        self.answer()

    def answer(self, silent: str = "$^") -> None:
        """From now on requests are answered at once, and none whose key matches the expression `silent`."""
        self._feel(f"- {silent}")

    @contextlib.contextmanager
    def asking(self) -> Iterator[None]:
        """Answers each request in the block after a thread beside the caller has let it: fails if that thread could not run meanwhile."""
        over, waited = threading.Event(), [0]

        def let() -> None:
            while not over.wait(0.002):
                for request in self._asked.iterdir():
                    request.unlink(missing_ok=True)
                    waited[0] += 1

        thread = threading.Thread(target=let)
        thread.start()
        self._feel("ask $^")
        try:
            yield
        finally:
            self.answer()
            over.set()
            thread.join()
        stuck = self._asked.with_suffix(".stuck")
        assert not stuck.exists(), f"no thread could run while {stuck.read_text()!r} was read"
        assert waited[0], "the store was asked for nothing"

    def _feel(self, mood: str) -> None:
        new = self._mood.with_suffix(".new")
        new.write_text(mood)
        new.replace(self._mood)


@contextlib.contextmanager
def slow_store(folder: Path) -> Iterator[SlowStore]:
    """Serves the folder until the end of the block."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        store = SlowStore(folder, listener.getsockname()[1])
        command = [sys.executable, "-m", "tests.support.slow_store", str(listener.fileno()), str(folder)]
        with subprocess.Popen(
            die_with_parent.command(command), pass_fds=(listener.fileno(),), cwd=Path(__file__).parents[2], stdin=subprocess.DEVNULL
        ) as server:  # fmt: skip
            try:
                yield store
            finally:
                server.kill()


def aws_variables(port: int) -> dict[str, str]:
    """The variables by which clients of AWS find a store at a port of this machine."""
    return {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "known-to-nobody",
        "AWS_EC2_METADATA_DISABLED": "true",
    }


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    folder: Path

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, *, with_body: bool) -> None:
        place = urllib.parse.urlsplit(self.path)
        key = urllib.parse.unquote(place.path).removeprefix(f"/{BUCKET}").strip("/")
        query = dict(urllib.parse.parse_qsl(place.query))
        how, silent = self.folder.with_name(f"{self.folder.name}.mood").read_text().split(" ", 1)
        if re.search(silent, key or query.get("prefix", "")):
            threading.Event().wait()
        if how == "ask":
            self._ask(key)
        if "list-type" in query:
            self._send(200, self._listing(query), with_body=with_body)
        elif (file := self.folder / key).is_file():
            self._send(200, file.read_bytes(), with_body=with_body, written=file.stat().st_mtime)
        else:
            self._send(404, b"<Error><Code>NoSuchKey</Code></Error>", with_body=with_body)

    def _ask(self, key: str) -> None:
        request = self.folder.with_name(f"{self.folder.name}.asked") / uuid4().hex
        request.touch()
        until = time.monotonic() + ASKED_S
        while request.exists():
            if time.monotonic() > until:
                request.parent.with_suffix(".stuck").write_text(key)
                request.unlink(missing_ok=True)
            time.sleep(0.002)

    def _send(self, status: int, body: bytes, *, with_body: bool, written: float | None = None) -> None:
        found = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", "")) if status == 200 else None
        whole, extra = len(body), {}
        if found and whole:
            first = int(found[1]) if found[1] else max(whole - int(found[2]), 0)
            last = min(int(found[2]) if found[1] and found[2] else whole - 1, whole - 1)
            status, body, extra = 206, body[first : last + 1], {"Content-Range": f"bytes {first}-{last}/{whole}"}
        if written is not None:
            extra |= {"Last-Modified": formatdate(written, usegmt=True), "ETag": f'"{written}-{whole}"'}
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(body))} | extra).items():
            self.send_header(name, value)
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def _listing(self, query: dict[str, str]) -> bytes:
        prefix, after = query.get("prefix", ""), query.get("start-after", "")
        files = {str(path.relative_to(self.folder)): path for path in self.folder.rglob("*") if path.is_file()}
        entries, folders = [], set()
        for key in sorted(key for key in files if key.startswith(prefix) and key > after):
            inner, slash, _ = key.removeprefix(prefix).partition(query.get("delimiter") or "\0")
            if slash:
                folders.add(f"{prefix}{inner}{slash}")
                continue
            found = files[key].stat()
            written = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(found.st_mtime))
            entries.append(
                f"<Contents><Key>{escape(key)}</Key><LastModified>{written}</LastModified><Size>{found.st_size}</Size>"
                f"<ETag>&quot;{found.st_mtime}-{found.st_size}&quot;</ETag><StorageClass>STANDARD</StorageClass></Contents>"
            )
        shared = "".join(f"<CommonPrefixes><Prefix>{escape(one)}</Prefix></CommonPrefixes>" for one in sorted(folders))
        return (
            f"<ListBucketResult><Name>{BUCKET}</Name><Prefix>{escape(prefix)}</Prefix><KeyCount>{len(entries)}</KeyCount>"
            f"<MaxKeys>1000</MaxKeys><IsTruncated>false</IsTruncated>{''.join(entries)}{shared}</ListBucketResult>"
        ).encode()

    def log_message(self, *_: object) -> None:
        """Says nothing."""


def _serve(descriptor: int, folder: str) -> None:
    _Handler.folder = Path(folder)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler, bind_and_activate=False)
    server.socket.close()
    server.socket = socket.socket(fileno=os.dup(descriptor))
    server.serve_forever()


if __name__ == "__main__":
    _serve(int(sys.argv[1]), sys.argv[2])
