"""Where a machine lacks what tests need they are skipped, and in CI they fail: a suite that is skipped there has tested nothing."""

import shutil

import pytest

from tests.support.browser_site import chromium_path
from tests.support.container_site import container_site_or_skip


def containers():
    with container_site_or_skip():
        pass


@pytest.mark.parametrize(("asks", "what"), [(containers, "podman"), (chromium_path, "chromium")])
@pytest.mark.parametrize(("ci", "outcome"), [("true", pytest.fail.Exception), ("", pytest.skip.Exception)])
def test_without_a_program_tests_are_skipped_and_in_ci_they_fail(monkeypatch, asks, what, ci, outcome):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setenv("CI", ci)
    with pytest.raises(outcome, match=what):
        asks()
