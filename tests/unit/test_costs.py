"""What tests cost counts with all processes that they start, also those that nobody waits for."""

import subprocess
import sys

import pytest

PROGRAM = """
import subprocess, sys
from tests.support.costs import Meter
from tests.support.waiting import eventually

meter, works = Meter(), "import time\\nwhile time.process_time() < 0.3: pass"
before, group = meter.used(), meter._group
if group is None:
    sys.exit("no control group can be made here")
subprocess.run(["sh", "-c", '"$0" -S -c "$1" & kill -9 $$', sys.executable, works])
eventually(lambda: meter.used() - before > 0.3, 60, "the orphan counts", meter.used)
eventually(lambda: len((group / "cgroup.procs").read_text().split()) == 1, 60, "it has ended")
meter.close()
print("removed" if not group.exists() else "left")
"""


@pytest.mark.slow
def test_a_process_whose_parent_was_killed_counts_and_the_group_is_removed():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120)
    if "no control group" in done.stderr:
        pytest.skip(done.stderr)
    assert done.stdout == "removed\n", done.stderr
