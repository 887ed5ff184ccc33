"""What the services of a deployment know and nobody else: by it dispatchers trust the API, and messages of the planner."""

from __future__ import annotations

from typing import Final

from scylla_spark.config.settings import Settings
from scylla_spark.io.host.private_files import kept_secret, make_folder

_FILE: Final = "desk.secret"


def desk_secret(settings: Settings) -> str:
    """Returns what the services share: as set, or from a file in the data folder, which is made at the first call."""
    if settings.desk.secret is not None:
        return settings.desk.secret.get_secret_value()
    make_folder(settings.data_dir)
    return kept_secret(settings.data_dir / _FILE)


def known_desk_secret(settings: Settings) -> str | None:
    """Returns the same without making it; None: there is none yet, or this process may not read it."""
    if settings.desk.secret is not None:
        return settings.desk.secret.get_secret_value()
    try:
        return (settings.data_dir / _FILE).read_text().strip() or None
    except (OSError, ValueError):
        return None
