"""Outputs of handlers in a sandbox, which reach no folder: a child hands over an open file, and a thread outside copies it.

A socket of its own leads into each child. A message on it names the invocation, the file and its media type, and carries two
descriptors: the file, and a socket on which the answer is awaited. Nothing is opened by name here, so a file is worth what the
sandbox could read anyway; and a child is believed only about the calls that it has, so no other task's files can be replaced.
Whatever comes is read by a thread that serves this child alone, and no descriptor that comes outlives its message.
"""

from __future__ import annotations

import json
import logging
import os
import select
import socket
import stat
import tempfile
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, BinaryIO, Final

from scylla_spark.core.tasks.output import OutputLink, OutputTerms, checked_output_name, read_link
from scylla_spark.core.tasks.task import Invocation
from scylla_spark.errors import ArgumentError
from scylla_spark.handlers.outputs import AttemptOutputs
from scylla_spark.io.host.output_files import Source, attempt_over, opened

_log = logging.getLogger(__name__)
_MESSAGE_BYTES: Final = 4096
_ANSWER_BYTES: Final = 4096
_DESCRIPTORS: Final = 2
_STOP_S: Final = 5.0

Has = Callable[[int], bool]
"""Whether a child has the invocation with that id; may be called from any thread."""


class OutputDesk:
    """The end outside: stores what children hand over.

    Args:
        terms: where files are kept.
    """

    def __init__(self, terms: OutputTerms) -> None:
        self._terms = terms
        self._running: dict[int, AttemptOutputs] = {}
        self._ways: dict[int, _Way] = {}

    def open(self, child: int, has: Has) -> socket.socket:
        """Begins to take the files of a child; the end that it is to have, and that is to be closed here when it has it.

        Args:
            child: its number.
            has: whether it has an invocation; files of others are refused.
        """
        ours, inside = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ways[child] = way = _Way(ours, lambda number: self._running.get(number) if has(number) else None)
        way.start()
        return inside

    def close(self, child: int) -> None:
        """The child has ended: takes no more from it, or from what it has left running."""
        way = self._ways.pop(child, None)
        if way is not None:
            way.shut()

    def begin(self, batch: Iterable[Invocation]) -> None:
        """These invocations may hand over files from now on."""
        self._running.update((item.id, AttemptOutputs(self._terms, item)) for item in batch)

    def end(self, ids: Iterable[int]) -> None:
        """They are over."""
        for number in ids:
            self._running.pop(number, None)

    def stop(self) -> None:
        """Takes no more."""
        ways = list(self._ways.values())
        self._ways.clear()
        for way in ways:
            way.shut()
        for way in ways:
            way.join(_STOP_S)


class _Way(threading.Thread):
    """What leads out of one child.

    Args:
        ours: the end outside; it is closed when nothing can come any more.
        find: what stores the files of an invocation; None: the child has none of that id.
    """

    def __init__(self, ours: socket.socket, find: Callable[[int], AttemptOutputs | None]) -> None:
        super().__init__(name="output-desk", daemon=True)
        self._ours = ours
        self._find = find
        self._shut = False

    def shut(self) -> None:
        """Has the thread end."""
        self._shut = True
        with suppress(OSError):
            self._ours.shutdown(socket.SHUT_RDWR)

    def run(self) -> None:
        """Takes what comes until nothing can come."""
        with self._ours:  # whoever speaks to a closed end hears of it, and does not wait
            while not self._shut:
                try:
                    self._take_next()
                except EOFError:
                    return
                except Exception:  # it is about one file, and others are to be taken
                    _log.exception("an output of a sandbox was not stored")

    def _take_next(self) -> None:
        """Takes a message; what comes with it is closed, whatever it is.

        Raises:
            EOFError: the other end is gone, which an empty message does not say.
        """
        try:
            data, descriptors, _, _ = socket.recv_fds(self._ours, _MESSAGE_BYTES, _DESCRIPTORS, socket.MSG_CMSG_CLOEXEC)
        except OSError:
            raise EOFError from None
        try:
            if not data and self._hung_up():
                raise EOFError
            if len(descriptors) == _DESCRIPTORS:
                self._take(data, descriptors)
        finally:
            for number in descriptors:
                os.close(number)

    def _hung_up(self) -> bool:
        poll = select.poll()
        poll.register(self._ours, select.POLLRDHUP)
        return bool(poll.poll(0))

    def _take(self, data: bytes, descriptors: Sequence[int]) -> None:
        """Answers a message; the descriptors stay the caller's."""
        with suppress(OSError):
            answer = socket.socket(fileno=descriptors[1])
            try:
                answer.send(
                    json.dumps(self._answer(data, descriptors[0])).encode(), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
                )
            finally:
                answer.detach()

    def _answer(self, data: bytes, descriptor: int) -> list[Any]:
        """["stored", *OutputLink], or ["refused", message, hint], or ["failed", number of the error]."""
        try:
            id_, name, media_type = json.loads(data)
            outputs = self._find(id_) if type(id_) is int else None
            if outputs is None:
                raise attempt_over()
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return ["refused", "It is no plain file.", ""]
            with os.fdopen(descriptor, "rb", closefd=False) as file:
                file.seek(0)
                return ["stored", *outputs.write(name, file, media_type, lambda: self._find(id_) is not outputs)]
        except ArgumentError as error:
            return ["refused", error.message, error.hint]
        except OSError as error:
            return ["failed", error.errno or 0]
        except (ValueError, TypeError, RecursionError):
            return ["refused", "That is no message of ours.", ""]


class HandedOutputs:
    """The end inside, of one call: writes a file to `/tmp`, hands it over, and waits until it is stored.

    Args:
        descriptor: of the socket that leads out.
        item: the invocation of the call.
    """

    def __init__(self, descriptor: int, item: Invocation) -> None:
        self._descriptor = descriptor
        self._id = item.id

    def write(
        self, name: str, source: Source, media_type: str | None, _over: Callable[[], bool] = lambda: False
    ) -> OutputLink:
        """Stores a file; see `TaskContext.output`. Outside it is known, too, whether the call is over."""
        message = json.dumps([self._id, checked_output_name(name), media_type]).encode()
        with opened(source) as content, tempfile.TemporaryFile() as copy:
            while chunk := content.read(1 << 20):
                copy.write(chunk)
            copy.flush()
            return _stored(self._handed_over(message, copy))

    def _handed_over(self, message: bytes, file: BinaryIO) -> list[Any]:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours:
            with theirs, socket.socket(fileno=os.dup(self._descriptor)) as way:
                socket.send_fds(way, [message], [file.fileno(), theirs.fileno()])
            return list(json.loads(ours.recv(_ANSWER_BYTES) or b"[]"))


def _stored(answer: list[Any]) -> OutputLink:
    """The link of an answer.

    Raises:
        ArgumentError: it was refused.
        OSError: it could not be stored.
    """
    verb, *rest = answer or ["failed", 5]
    if verb == "refused":
        raise ArgumentError(str(rest[0]), hint=str(rest[1]), reason="wrong_value")
    link = read_link(rest) if verb == "stored" else None
    if link is None:
        raise OSError(rest[0], f"The file could not be stored: {os.strerror(int(rest[0]))}")
    return link
