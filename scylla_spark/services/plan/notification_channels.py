"""What the planner needs to know of the channels of the settings: none of their secrets, and the key of its proofs."""

from __future__ import annotations

from scylla_spark.config.settings import Settings
from scylla_spark.core.notifications.proof import notice_key
from scylla_spark.core.plan.notices.notice import Channel, Channels
from scylla_spark.io.host.deployment_secret import desk_secret


def channels_of(settings: Settings) -> Channels:
    """Returns where tasks must go so that they reach the channels."""
    known = {
        name: Channel(channel.handler, channel.queue, channel.tasks)
        if channel.handler is not None
        else Channel(tasks=channel.tasks)
        for name, channel in settings.notify.channels.items()
    }
    return Channels(known, settings.api.public_url or "", notice_key(desk_secret(settings)))
