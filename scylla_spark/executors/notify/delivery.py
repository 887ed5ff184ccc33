"""Sends one message to one channel, and says what became of it: sent, to be tried again, or never to be sent."""

from __future__ import annotations

import json
import ssl
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from http.client import HTTPException, InvalidURL
from typing import Any, Final, NamedTuple

from scylla_spark.clock import now_us, to_us
from scylla_spark.config.notify import Notify, NotifyChannel
from scylla_spark.core.task import Failure
from scylla_spark.errors import ConfigError
from scylla_spark.executors.notify import message
from scylla_spark.executors.notify.address import AddressRefusedError
from scylla_spark.executors.notify.post import TOTAL_S, Answer, post, target_of
from scylla_spark.executors.notify.signature import key_of, signed, unsigned

_AGAIN: Final = frozenset({408, 425, 429})
_GONE: Final = 410
_LONGEST_WAIT_MS: Final = 3_600_000
_NEEDED: Final = ("id", "rule", "channel", "event", "notice", "count", "since", "at")
_SHOWN_BYTES: Final = 500


class Delivered(NamedTuple):
    """What became of a message.

    Attributes:
        result: JSON text; None: it was not sent.
        failure: why not.
        final: it is not to be tried again.
        least_wait_ms: how long not, whatever the retry policy says, because the receiver said so.
    """

    result: str | None = None
    failure: Failure | None = None
    final: bool = False
    least_wait_ms: int = 0


def deliver(payload: Any, settings: Notify, total_s: float = TOTAL_S) -> Delivered:
    """Sends a message; raises for nothing that a message, a channel or a receiver can do.

    Args:
        payload: of the task that carries the message.
        settings: with the channels.
        total_s: longest that a webhook may take, seconds.
    """
    if not isinstance(payload, Mapping) or any(name not in payload for name in _NEEDED):
        return _never("payload_invalid", "The payload is no message of the planner.")
    channel = settings.channels.get(str(payload["channel"]))
    if channel is None or channel.url is None:
        return _never("channel_unknown", f"The settings of this dispatcher have no channel {payload['channel']!r}.")
    if channel.kind == "apprise":
        return _by_apprise(payload, channel.url.get_secret_value())
    try:
        return _by_webhook(payload, channel, settings, total_s)
    except (AddressRefusedError, ConfigError) as error:
        return _never("channel_refused", f"{error.message} {error.hint or ''}".strip())
    except (InvalidURL, UnicodeError) as error:  # whose text is the URL
        return _never("channel_refused", f"The url of this channel cannot be sent to: {type(error).__name__}.")
    except TimeoutError:
        return _again("timed_out", f"The receiver had not answered after {total_s:g} s.")
    except (OSError, HTTPException) as error:
        kind = "certificate" if isinstance(error, ssl.SSLError) else "unreachable"
        return _again(kind, f"The receiver was not reached: {type(error).__name__}: {str(error)[:_SHOWN_BYTES]}")


def _by_webhook(payload: Mapping[str, Any], channel: NotifyChannel, settings: Notify, total_s: float) -> Delivered:
    assert channel.url is not None
    target = target_of(channel.url.get_secret_value())
    body, at_s = message.cloud_event(payload), now_us() // 1_000_000
    id = str(payload["id"])
    key = key_of(channel.secret.get_secret_value()) if channel.secret is not None else None
    proof = signed(id, at_s, body, key) if key is not None else unsigned(id, at_s)
    headers = {"Content-Type": message.CONTENT_TYPE, "User-Agent": "scylla-spark", **proof}
    return judged(post(target, headers, body, private=settings.private_addresses, total_s=total_s), now_us())


def judged(answer: Answer, now: int) -> Delivered:
    """What an answer means.

    Args:
        answer: of the receiver.
        now: microseconds since the epoch.
    """
    status = answer.status
    if 200 <= status < 300:
        return Delivered(json.dumps({"status": status}))
    said = answer.body[:_SHOWN_BYTES].decode("utf-8", "replace")
    if status in _AGAIN or status >= 500:
        asked_ms = _asked_ms(answer.retry_after, now)
        return Delivered(None, Failure(f"http_{status}", f"The receiver answered {status}: {said}"), False, asked_ms)
    if status == _GONE:
        return _never("gone", "The receiver wants no more of this (410): delete the rule, or change the channel.")
    hint = " Redirects are not followed." if 300 <= status < 400 else ""
    return _never(f"http_{status}", f"The receiver answered {status}.{hint} {said}".strip())


def _asked_ms(text: str | None, now: int) -> int:
    """What a Retry-After says, seconds or a date, of at most an hour; 0: nothing that can be read."""
    if text is None:
        return 0
    try:
        wait_ms = int(text) * 1000 if text.isdecimal() else (to_us(parsedate_to_datetime(text)) - now) // 1000
    except (ValueError, TypeError, OverflowError):
        return 0
    return min(max(wait_ms, 0), _LONGEST_WAIT_MS)


def _by_apprise(payload: Mapping[str, Any], url: str) -> Delivered:
    try:
        import apprise
    except ImportError:
        return _never("apprise_missing", "Apprise is not installed: pip install 'scylla-spark[apprise]'.")
    sender = apprise.Apprise()
    if not sender.add(url):
        return _never("channel_refused", "Apprise does not understand the url of this channel.")
    try:
        done = sender.notify(title=message.title(payload), body=message.text(payload))
    except Exception as error:  # a plug-in of Apprise may raise anything
        return _again("unreachable", f"Apprise raised {type(error).__name__}.")
    return Delivered(json.dumps({"status": "sent"})) if done else _again("unreachable", "Apprise could not send it.")


def _never(kind: str, words: str) -> Delivered:
    return Delivered(None, Failure(kind, words), final=True)


def _again(kind: str, words: str) -> Delivered:
    return Delivered(None, Failure(kind, words))
