"""The settings of a world that is given none: the defaults, wherever the test runs."""

from __future__ import annotations

from typing import Any

from pydantic_settings import BaseSettings, PydanticBaseSettingsSource

from scylla_spark.config.settings import Settings


class DefaultSettings(Settings):
    """All settings with their defaults, whatever environment and files say."""

    @classmethod
    def settings_customise_sources(
        cls, settings_cls: type[BaseSettings], init_settings: PydanticBaseSettingsSource, *_: Any, **__: Any
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Only what is given counts."""
        return (init_settings,)
