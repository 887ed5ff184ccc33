"""What append times tell of our clock."""

from __future__ import annotations


def clock_offset_us(append_ms: int, sent_us: int, now: int) -> int:
    """How far our clock is from the broker's, at least: 0 if the append time lies between the send and now.

    Args:
        append_ms: the broker's append time of a record of ours.
        sent_us: our clock when it was sent.
        now: our clock.
    """
    append_us = append_ms * 1000
    if append_us + 1000 < sent_us:
        return append_us - sent_us
    return max(append_us - now, 0)
