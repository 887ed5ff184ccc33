"""Three faults of the campaign (`make faults`), one after the other on one deployment: ingest dies between two writes, dispatch between a
send and its answer, and dispatch freezes between a decision and its execution.
"""

import json

from tests.faults.cases import SHORT
from tests.faults.run import play


def test_faults_between_two_writes_break_no_promise(tmp_path):
    result = play("short", SHORT, seed=1, folder=tmp_path)
    assert result["ok"], json.dumps(result, indent=1)
    assert len(result["faults"]) >= 3
    assert result["acknowledged"] > 100
