"""Channels of notifications: where messages go, with the secrets that this takes. Rules name a channel and hold none of them."""

from __future__ import annotations

import re
from typing import Final, Literal

from pydantic import Field, SecretStr, model_validator

from scylla_spark.config.section import Section
from scylla_spark.defaults import NOTIFY_QUEUE
from scylla_spark.errors import shown
from scylla_spark.name import RULE, is_name

_SCHEMES = ("http://", "https://")
_SENDABLE: Final = re.compile(r"[!-~]+")
URL_RULE: Final = "has only letters, digits and signs of ASCII, no blanks, and no end of a line: write others as %20, and a host as xn--"


def is_sendable(url: str) -> bool:
    """Returns True if a request can have this URL as it stands; Python repeats one that it cannot have in its errors, secrets and all.

    Args:
        url: of a webhook.
    """
    return _SENDABLE.fullmatch(url) is not None


class NotifyChannel(Section):
    """Where messages go: a webhook, whatever Apprise knows, or a handler of this deployment."""

    kind: Literal["webhook", "apprise", "handler"] = Field(
        "webhook", description="webhook, apprise (an extra: scylla-spark[apprise]), or handler"
    )
    url: SecretStr | None = Field(None, description="of the webhook, http or https; or what Apprise is to send to")
    secret: SecretStr | None = Field(
        None, description="whsec_ and base64, which signs what the webhook gets; missing: it is not signed"
    )
    handler: str | None = Field(None, description="whose tasks have the messages as their payloads")
    queue: str = Field(NOTIFY_QUEUE, description="of these tasks")
    tasks: bool = Field(False, description="tasks may name the channel (`notify`), which is told of their ends")

    @model_validator(mode="after")
    def _check(self) -> NotifyChannel:
        url = self.url.get_secret_value() if self.url is not None else ""
        if self.kind == "handler":
            if not is_name(self.handler) or not is_name(self.queue):
                raise ValueError(f"a channel of kind handler names a handler and a queue; names are {RULE}")
        elif not url:
            raise ValueError(f"a channel of kind {self.kind} has a url")
        elif self.kind == "webhook" and not url.startswith(_SCHEMES):
            raise ValueError("the url of a webhook begins with https:// or http://")
        elif self.kind == "webhook" and not is_sendable(url):
            raise ValueError(f"the url of a webhook {URL_RULE}")
        return self


class Notify(Section):
    """Notifications: who is told when something fails, and where. Rules are put by `scylla-spark notify put`."""

    channels: dict[str, NotifyChannel] = Field(
        {}, description="where messages go, by a name that rules use; planner and dispatchers need the same"
    )
    private_addresses: bool = Field(
        False,
        description="webhooks may be in private networks, or on this machine; never at a cloud's metadata service",
    )

    @model_validator(mode="after")
    def _check(self) -> Notify:
        for name in self.channels:
            if not is_name(name):
                raise ValueError(f"no rule can name the channel {shown(name)}; names are {RULE}")
        return self
