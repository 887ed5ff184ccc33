"""Forms that make something and were sent a moment ago: whoever presses a button twice has it done once.

A page that such a form stands on gives it a random id. The same form with the same fields is then answered with what came of it the
first time, also while that is still being done: a browser that is pressed twice gives the first request up, and waits for the second.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from starlette.responses import Response

FORM_ID: Final = "form_id"
REMEMBERED_US: Final = 600_000_000
_MOST: Final = 2_000


def press_of(path: str, form: Mapping[str, str]) -> str:
    """Returns the id of one press of a button. Empty: the form may be sent any number of times.

    Args:
        path: that the form was sent to.
        form: its fields, with those of its address; the token among them is that of the session.
    """
    if not form.get(FORM_ID):
        return ""
    text = "\0".join([path, *(f"{name}\0{form[name]}" for name in sorted(form))])
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


class Presses:
    """The results of recently sent forms, for use by one event loop."""

    def __init__(self) -> None:
        self._done: OrderedDict[str, tuple[int, asyncio.Future[Response]]] = OrderedDict()

    async def once(self, press: str, now: int, act: Callable[[], Awaitable[Response]]) -> tuple[Response, bool]:
        """Does it unless it was done, or is being done; whether it had been goes along.

        What ends in anything but a way to another page has done nothing, and is forgotten. Whoever stops waiting stops nothing.

        Args:
            press: as `press_of` gives it.
            now: microseconds since the epoch.
            act: does it.
        """
        self._forget(now)
        known = self._done.get(press)
        if known is not None:
            return await asyncio.shield(known[1]), True
        doing = asyncio.ensure_future(act())
        self._done[press] = (now, doing)
        doing.add_done_callback(lambda done: self._judge(press, done))
        return await asyncio.shield(doing), False

    def _judge(self, press: str, done: asyncio.Future[Response]) -> None:
        if done.cancelled() or done.exception() is not None or done.result().status_code != 303:
            self._done.pop(press, None)

    def _forget(self, now: int) -> None:
        while self._done and (len(self._done) >= _MOST or next(iter(self._done.values()))[0] + REMEMBERED_US < now):
            self._done.popitem(last=False)
