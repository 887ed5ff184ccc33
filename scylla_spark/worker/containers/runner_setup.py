"""All of a runner: made ready before it leases anything, and cleared up however it ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from scylla_spark.worker.containers.container_slot import Yard
from scylla_spark.worker.containers.maker_identity import identity
from scylla_spark.worker.containers.options import Bounds, Files, Mark
from scylla_spark.worker.containers.podman import Podman
from scylla_spark.worker.containers.readiness import check_podman, fetch_images, probe, remove_leftovers
from scylla_spark.worker.containers.request import Offer
from scylla_spark.worker.containers.runner_folder import remove_left_folders, runner_folder
from scylla_spark.worker.containers.watchdog_handle import Guard


@contextmanager
def opened_yard(podman: Podman, offer: Offer, bounds: Bounds) -> Iterator[Yard]:
    """Makes sure that containers can run here, and removes at the end all that it has made.

    Args:
        podman: that runs them.
        offer: what is run.
        bounds: what each may take.

    Raises:
        SetupError: they cannot.
    """
    check_podman(podman)
    remove_leftovers(podman)
    remove_left_folders(podman)  # after the containers, which write there
    fetch_images(podman, offer.images)
    runner = identity()
    with runner_folder(podman, runner, in_memory=bounds.out > 0) as folder, _guarded(podman, runner, folder) as guard:
        for image in offer.images:
            probe(podman, image, bounds, Mark(runner, f"probe-{runner}"), _empty_files(folder))
        yield Yard(podman, offer, bounds, runner, folder, guard)


@contextmanager
def _guarded(podman: Podman, runner: str, folder: Path) -> Iterator[Guard]:
    """A watchdog that runs, and at the end removes what is left."""
    guard = Guard(podman, runner, str(folder))
    try:
        guard.check()
        yield guard
    finally:
        guard.close()


def _empty_files(folder: Path) -> Files:
    files = Files(str(folder / "task.json"), str(folder / "environment"), str(folder / "out"))
    for file in (files.task, files.environment):
        Path(file).touch()
    Path(files.out).mkdir(exist_ok=True)
    return files
