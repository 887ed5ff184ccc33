"""Where tests run on several processes, those that share what is dear stay together."""

import pytest

from tests.support.xdist_folders import together


@pytest.mark.parametrize("folder", ["unit", "api", "tables"])
def test_where_files_share_nothing_each_goes_its_own_way(folder):
    assert together(f"tests/{folder}/test_a.py::test_a") != together(f"tests/{folder}/test_b.py::test_a")
    assert together(f"tests/{folder}/test_a.py::test_a") == together(f"tests/{folder}/test_a.py::test_b")


def test_a_folder_whose_tests_share_a_session_or_a_deployment_is_one_piece():
    assert together("tests/spark/test_due.py::test_a[x::y/z]") == together("tests/spark/test_near.py::test_b")
    assert together("tests/acceptance/test_api.py::test_a") != together("tests/spark/test_due.py::test_a")
