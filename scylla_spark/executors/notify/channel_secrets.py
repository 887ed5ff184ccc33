"""What settings say of channels, taken out of texts that came from outside: receivers repeat the path that they were asked for."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator
from typing import Final
from urllib.parse import unquote

from scylla_spark.config.notify import NotifyChannel
from scylla_spark.core.access.redaction import Redaction

_BETWEEN: Final = re.compile(r"[/?&=:@#;,]+")
_CUT: Final = "…"


def without_secrets(text: str, channels: Iterable[NotifyChannel], *, is_cut: bool = False) -> str:
    """A text without URLs and secrets of channels, whole or in parts, as they were written or as an answer may quote them.

    Args:
        text: what a receiver or a library said.
        channels: that it may know of.
        is_cut: it is the beginning only, which may end with the beginning of a secret.
    """
    redaction = Redaction(
        as_quoted for channel in channels for value in _values(channel) for as_quoted in _quoted(value)
    )
    return redaction.text(text + _CUT, cut_mark=_CUT) if is_cut else redaction.text(text)


def _values(channel: NotifyChannel) -> Iterator[str]:
    if channel.secret is not None:
        secret = channel.secret.get_secret_value()
        yield from (secret, secret.rpartition("_")[2])
    if channel.url is not None:
        url = channel.url.get_secret_value()
        behind_scheme = url.partition("://")[2]
        behind_host = re.sub(r"^[^/?#]*", "", behind_scheme)
        yield from (url, behind_scheme, behind_host, behind_host.partition("?")[0], behind_host.partition("?")[2])
        yield from _BETWEEN.split(behind_scheme)


def _quoted(value: str) -> Iterator[str]:
    for one in (value, unquote(value), value.lower()):
        yield from (one, html.escape(one), one.replace("/", "\\/"))
