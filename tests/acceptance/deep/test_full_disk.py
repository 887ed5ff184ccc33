"""A disk that fills up under a whole deployment: it ends by itself, and its last line says why."""

from __future__ import annotations

import pytest

from scylla_spark.errors import ExitCode
from tests.acceptance.place import PATIENCE, Place
from tests.faults.site import fill, small_disk
from tests.support.waiting import eventually


def test_a_deployment_whose_disk_is_full_ends_and_says_so_and_goes_on_once_there_is_space(tmp_path):
    place = Place(tmp_path)
    try:
        with small_disk(place.data, 400) as small:
            up = place.up()
            up.ready()
            kept = place.client().enqueue("errand", {"mark": "kept"})
            kept.result(timeout=PATIENCE)
            place.close_clients()
            ballast = fill(small)
            eventually(lambda: not up.running, PATIENCE, "it ends by itself", up.told)
            assert up.ended() == ExitCode.OUTAGE
            assert up.stderr.read_text().splitlines()[-1].startswith(f"error: no space left on {place.data}")
            eventually(lambda: not place.left(), 10, "nothing is left", place.left)
            ballast.unlink()
            again = place.up()
            again.ready()
            assert place.client().task(kept.key).result(timeout=PATIENCE) == {"mark": "kept"}
            place.close_clients()
            assert again.stop() == ExitCode.OK
    except PermissionError as error:
        pytest.skip(str(error))
    finally:
        place.clear()
