"""Settings of the Spark sessions that we make ourselves; whoever brings a session, or uses spark-submit, has configured it."""

from __future__ import annotations

import re
from typing import Final

from pydantic import Field, field_validator

from scylla_spark.config.section import Section

_SECRET: Final = re.compile("secret|password|token|access[.]?key", re.IGNORECASE)


class Spark(Section):
    """Sessions of `up`, `run` and clients where none exists."""

    options: dict[str, str] = Field(
        {},
        description='Spark\'s own settings of sessions that we make, such as "spark.hadoop.fs.s3a.endpoint"; spark.jars are added to ours',
    )

    @field_validator("options")
    @classmethod
    def _check_options(cls, options: dict[str, str]) -> dict[str, str]:
        for name in options:
            if not name.startswith("spark."):
                raise ValueError(f"spark.options takes settings of Spark, which begin with spark., not {name!r}")
            if _SECRET.search(name):
                raise ValueError(
                    f"spark.options would show {name} on the command line of the JVM: leave it to the environment"
                    " (such as AWS_SECRET_ACCESS_KEY) or to a credential provider of Hadoop"
                )
        return options
