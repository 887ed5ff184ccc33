"""Where tests run on several processes, those that share what is dear stay together."""

from tests.support.side_by_side import together


def test_a_folder_whose_tests_share_a_session_or_a_deployment_is_one_piece_and_of_unit_tests_a_file_is():
    assert together("tests/spark/test_due.py::test_a[x::y/z]") == together("tests/spark/test_near.py::test_b")
    assert together("tests/acceptance/test_api.py::test_a") != together("tests/spark/test_due.py::test_a")
    assert together("tests/unit/test_key.py::test_a") != together("tests/unit/test_lane.py::test_a")
