"""What tests do where this machine lacks something that they need."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest


def absent(why: str) -> NoReturn:
    """Skips the test, and says why; in CI, which installs all that tests need, it fails instead.

    Args:
        why: what is missing.
    """
    if os.environ.get("CI"):
        pytest.fail(why)
    pytest.skip(why)
