"""Where a child of a worker leaves how its task ended, for the case that its descriptors are closed: memory stays when those go."""

from __future__ import annotations

import ctypes
from multiprocessing.context import SpawnContext
from typing import Any, Final

_LENGTH_BYTES: Final = 8
_BYTES: Final = 512 * 1024  # result, checkpoint, metrics and both texts of an error are less


class ReportMemory:
    """The last report of one child, shared with its parent; can be sent to the child while that is being started.

    Args:
        context: makes the child.
    """

    def __init__(self, context: SpawnContext) -> None:
        self._array: Any = context.RawArray(ctypes.c_char, _BYTES)

    def put(self, token: str, text: str) -> None:
        """Keeps a report in place of the one before; one that is too long is not kept, and has its descriptor alone.

        Args:
            token: of the lease that ends, without a space.
            text: the report.
        """
        view, data = memoryview(self._array).cast("B"), f"{token} {text}".encode()
        view[:_LENGTH_BYTES] = bytes(_LENGTH_BYTES)  # whoever dies half-way has left nothing
        if len(data) <= _BYTES - _LENGTH_BYTES:
            view[_LENGTH_BYTES : _LENGTH_BYTES + len(data)] = data
            view[:_LENGTH_BYTES] = len(data).to_bytes(_LENGTH_BYTES, "little")

    def of(self, token: str) -> str | None:
        """The report of a lease; None: it is not here.

        Args:
            token: of the lease.
        """
        view = memoryview(self._array).cast("B")
        length = min(int.from_bytes(view[:_LENGTH_BYTES], "little"), _BYTES - _LENGTH_BYTES)
        said, _, text = bytes(view[_LENGTH_BYTES : _LENGTH_BYTES + length]).decode(errors="replace").partition(" ")
        return text if length and said == token else None
