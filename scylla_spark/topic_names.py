"""Names of Kafka topics, and which topics triggers may watch."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from scylla_spark.errors import ArgumentError

_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")


def check_topic_name(topic: str) -> None:
    """Checks that Kafka can have a topic of this name.

    Raises:
        ArgumentError: it cannot.
    """
    if not _NAME.fullmatch(topic) or topic in (".", ".."):
        raise ArgumentError(
            f"{topic[:100]!r} cannot be the name of a topic.",
            hint="A name has 1 to 249 of the characters A-Z a-z 0-9 . _ -, and is not . or .. itself.",
        )


class WatchableTopics(NamedTuple):
    """The topics that triggers may watch.

    Attributes:
        own: the deployment's own topics. A trigger on one would fire by the records of its own runs, without end.
        allowed: names, and prefixes that end with `*`; empty: any topic.
    """

    own: tuple[str, ...] = ()
    allowed: tuple[str, ...] = ()

    def check(self, topic: str) -> None:
        """Refuses a topic that triggers may not watch.

        Raises:
            ArgumentError: it is one of the deployment's own, an internal topic of Kafka, or not allowed.
        """
        if topic in self.own:
            raise ArgumentError(
                f"The topic {topic!r} is one of the deployment's own, in which each run of its schedule leaves records.",
                hint="Wait for the ends of tasks by `after` or `batch`.",
            )
        if topic.startswith("__"):
            raise ArgumentError(f"The topic {topic!r} is internal to Kafka.", hint="Watch a topic of your own.")
        if self.allowed and not any(_matches(topic, one) for one in self.allowed):
            raise ArgumentError(
                f"The topic {topic!r} is not one that triggers may watch.",
                hint="The setting plan.allowed_topics lists these topics. Use one of them.",
            )


def _matches(topic: str, allowed: str) -> bool:
    return topic.startswith(allowed[:-1]) if allowed.endswith("*") else topic == allowed
