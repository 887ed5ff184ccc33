"""One small HTTP question to an address that may be wrong or hostile: bounded in time and size, and never sent elsewhere."""

from __future__ import annotations

import threading
from email.message import Message
from http.client import HTTPException
from typing import IO, Any, Final
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPHandler, HTTPRedirectHandler, HTTPSHandler, OpenerDirector, Request

_LARGEST: Final = 8 * 1024 * 1024


class AnswerError(Exception):
    """There is no answer that can be used; says why in a few words."""


class _NoRedirects(HTTPRedirectHandler):
    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> Request | None:
        """Nothing is followed: whoever answers must not choose what we ask next."""
        return None


def fetch(question: Request | str, *, timeout_s: float, largest: int = _LARGEST) -> bytes:
    """The body of a 200 answer.

    Only http and https, no redirects, no proxies of the environment, and all of it within the time.

    Args:
        question: address, or a request.
        timeout_s: for everything together.
        largest: bytes of the longest answer.

    Raises:
        AnswerError: anything else.
    """
    request = Request(question) if isinstance(question, str) and _is_web(question) else question
    if isinstance(request, str) or not _is_web(request.full_url):
        raise AnswerError("it is not an http address")
    found: list[bytes | str] = []
    # a thread, because a socket's timeout bounds each read only: an answer of a byte a second would never end
    reader = threading.Thread(target=lambda: found.append(_read(request, timeout_s, largest)), daemon=True)
    reader.start()
    reader.join(timeout_s)
    answer = found[0] if found else "it takes too long"
    if isinstance(answer, str):
        raise AnswerError(answer)
    return answer


def _read(request: Request, timeout_s: float, largest: int) -> bytes | str:
    opener = OpenerDirector()
    handlers: tuple[Any, ...] = (HTTPHandler(), HTTPSHandler(), _NoRedirects())
    for handler in handlers:
        opener.add_handler(handler)
    try:
        reply = opener.open(request, timeout=timeout_s)
        if reply is None:
            return "it is not an http address"
        with reply:
            if reply.status != 200:
                return f"it answers {reply.status}"
            body = reply.read(largest + 1)
    except HTTPError as error:
        with error:
            return f"it answers {error.code}"
    except (URLError, OSError, ValueError, HTTPException) as error:
        return f"it does not answer ({type(error).__name__})"
    return f"its answer is longer than {largest:,} bytes" if len(body) > largest else bytes(body)


def _is_web(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        return False
