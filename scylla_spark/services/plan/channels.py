"""What the planner needs to know of the channels of the settings: none of their secrets."""

from __future__ import annotations

from scylla_spark.config.settings import Settings
from scylla_spark.core.plan.notice import Channel, Channels


def channels_of(settings: Settings) -> Channels:
    """Where tasks must go so that they reach the channels."""
    known = {
        name: Channel(channel.handler, channel.queue) if channel.handler is not None else Channel()
        for name, channel in settings.notify.channels.items()
    }
    return Channels(known, settings.api.public_url or "")
