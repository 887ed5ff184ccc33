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
from scylla_spark.core.tasks.task import Failure
from scylla_spark.errors import ConfigError
from scylla_spark.executors.notify import apprise_process, message
from scylla_spark.executors.notify.address import AddressRefusedError
from scylla_spark.executors.notify.apprise_child import RAISED, REFUSED, SENT, UNSENT
from scylla_spark.executors.notify.apprise_process import APPRISE_S
from scylla_spark.executors.notify.channel_secrets import without_secrets
from scylla_spark.executors.notify.post import MAX_ANSWER_BYTES, TOTAL_S, Answer, post, target_of
from scylla_spark.executors.notify.signature import key_of, signed, unsigned

_AGAIN: Final = frozenset({408, 425, 429})
_GONE: Final = 410
_LONGEST_WAIT_MS: Final = 3_600_000
_NEEDED: Final = ("id", "rule", "channel", "event", "notice", "count", "since", "at")
_SHOWN_CHARS: Final = 500
_ENDINGS: Final = {UNSENT: "Apprise could not send it.", RAISED: "A plug-in of Apprise failed."}


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


def deliver(payload: Any, settings: Notify, total_s: float = TOTAL_S, apprise_s: float = APPRISE_S) -> Delivered:
    """Sends a message; raises for nothing that a message, a channel or a receiver can do.

    Args:
        payload: of the task that carries the message.
        settings: with the channels.
        total_s: longest that a webhook may take, seconds.
        apprise_s: longest that Apprise may take, seconds.
    """
    if not isinstance(payload, Mapping) or any(name not in payload for name in _NEEDED):
        return _never("payload_invalid", "The payload is no message of the planner.")
    channel = settings.channels.get(str(payload["channel"]))
    if channel is None or channel.url is None:
        return _never("channel_unknown", f"The settings of this dispatcher have no channel {payload['channel']!r}.")
    if channel.kind == "apprise":
        return _by_apprise(payload, channel.url.get_secret_value(), apprise_s)
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
        said = _shown(str(error), channel)
        return _again(kind, f"The receiver was not reached: {type(error).__name__}: {said}")


def _by_webhook(payload: Mapping[str, Any], channel: NotifyChannel, settings: Notify, total_s: float) -> Delivered:
    assert channel.url is not None
    target = target_of(channel.url.get_secret_value())
    body, at_s = message.cloud_event(payload), now_us() // 1_000_000
    id = str(payload["id"])
    key = key_of(channel.secret.get_secret_value()) if channel.secret is not None else None
    proof = signed(id, at_s, body, key) if key is not None else unsigned(id, at_s)
    headers = {"Content-Type": message.CONTENT_TYPE, "User-Agent": "scylla-spark", **proof}
    answer = post(target, headers, body, private=settings.private_addresses, total_s=total_s)
    return judged(answer, now_us(), channel)


def judged(answer: Answer, now: int, channel: NotifyChannel) -> Delivered:
    """Returns what an answer means.

    Args:
        answer: of the receiver.
        now: microseconds since the epoch.
        channel: that the message went to.
    """
    status = answer.status
    if 200 <= status < 300:
        return Delivered(json.dumps({"status": status}))
    said = _shown(answer.body.decode("utf-8", "replace"), channel, is_cut=len(answer.body) >= MAX_ANSWER_BYTES)
    if status in _AGAIN or status >= 500:
        asked_ms = _asked_ms(answer.retry_after, now)
        return Delivered(None, Failure(f"http_{status}", f"The receiver answered {status}: {said}"), False, asked_ms)
    if status == _GONE:
        return _never("gone", "The receiver wants no more of this (410): delete the rule, or change the channel.")
    hint = " Redirects are not followed." if 300 <= status < 400 else ""
    return _never(f"http_{status}", f"The receiver answered {status}.{hint} {said}".strip())


def _shown(text: str, channel: NotifyChannel, *, is_cut: bool = False) -> str:
    """The beginning of what came from outside; it is cut last, so that no half of a secret stands at its end."""
    return without_secrets(text, [channel], is_cut=is_cut)[:_SHOWN_CHARS]


def _asked_ms(text: str | None, now: int) -> int:
    """Returns what a Retry-After says, seconds or a date, of at most an hour; 0: nothing that can be read."""
    if text is None:
        return 0
    try:
        wait_ms = int(text) * 1000 if text.isdecimal() else (to_us(parsedate_to_datetime(text)) - now) // 1000
    except (ValueError, TypeError, OverflowError):
        return 0
    return min(max(wait_ms, 0), _LONGEST_WAIT_MS)


def _by_apprise(payload: Mapping[str, Any], url: str, total_s: float) -> Delivered:
    if not apprise_process.is_installed():
        return _never("apprise_missing", "Apprise is not installed: pip install 'scylla-spark[apprise]'.")
    try:
        ending = apprise_process.send(url, message.title(payload), message.text(payload), total_s)
    except TimeoutError:
        return _again("timed_out", f"Apprise had not sent it after {total_s:g} s.")
    except OSError as error:
        return _again("unreachable", f"Apprise could not be started: {error.strerror}.")
    if ending == SENT:
        return Delivered(json.dumps({"status": "sent"}))
    if ending == REFUSED:
        return _never("channel_refused", "Apprise does not understand the url of this channel.")
    return _again("unreachable", _ENDINGS.get(ending, f"Apprise ended with status {ending}."))


def _never(kind: str, words: str) -> Delivered:
    return Delivered(None, Failure(kind, words), final=True)


def _again(kind: str, words: str) -> Delivered:
    return Delivered(None, Failure(kind, words))
