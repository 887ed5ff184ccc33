"""The campaign's report: one row per case, sums below, put between the marks of the document and nowhere else."""

from scylla_spark.failpoint import KILL, POINTS
from tests.faults import cases, run
from tests.faults.site import second_breaches

DONE = {
    "case": "shared", "seed": 3, "faults": ["kill a", "freeze b"], "acknowledged": 700, "lost": 0, "after_completion": 0, "order": 0,
    "reruns": 2, "late_p50_ms": 1.6, "late_p99_ms": 8_400.0, "seconds": 93,
}  # fmt: skip
SKIPPED = {"case": "tables-disk-full", "seed": 3, "skipped": "not root"}


def test_the_table_has_a_row_per_case_and_their_sums():
    rows = run.table([DONE, SKIPPED, DONE | {"lost": 1}]).splitlines()
    assert rows[2] == "| shared | 3 | 2 | 700 | 0 | 0 | 0 | 2 | 2 ms / 8.4 s | 93 |"
    assert "skipped: not root" in rows[3]
    assert rows[-1] == "| **all** |  | 4 | 1400 | 1 | 0 | 0 | 4 |  | 186 |"
    assert len({row.count("|") for row in rows}) == 1


def test_the_report_renews_only_what_stands_between_the_marks(tmp_path):
    file = tmp_path / "report.md"
    file.write_text(f"before\n{run.BEGIN}\nold\n{run.END}\nafter\n")
    for _ in range(2):
        run.report(file, [DONE])
    text = file.read_text()
    assert text.startswith(f"before\n{run.BEGIN}\n| case |")
    assert text.endswith(f"{run.END}\nafter\n")
    assert "old" not in text
    assert text.count("shared") == 1


class Recorder:
    """A site that only notes what cases would do to it."""

    def __init__(self):
        self.met = set()

    def begin(self):
        pass

    def begin_plan(self):
        pass

    def notify(self, _planner):
        pass

    def end_plan(self):
        pass

    def meets(self, _name, point, mode, *_more):
        self.met.add((point, mode))


def test_every_fail_point_kills_in_some_case_or_has_a_reason_why_not():
    site = Recorder()
    for name, case in cases.CASES.items():
        if name.endswith("-killed") and name not in ("broker-killed", "children-killed"):
            case.play(site)
    assert site.met == {(point, KILL) for point in POINTS.keys() - cases.NOT_MET.keys()}


def test_a_campaign_plays_one_mode_of_each_family_and_six_seeds_play_all():
    for seed in range(6):
        names = set(cases.campaign(seed))
        for modes in cases.MODES:
            assert [set(mode) <= names for mode in modes].count(True) == 1
    assert {name for seed in range(6) for name in cases.campaign(seed)} == cases.CASES.keys()


def test_seconds_are_launched_once_or_told_of():
    def row(second, verdict, until=None):
        return {
            "schedule": "tick",
            "planned_at": second * 10**6,
            "verdict": verdict,
            "until_at": until and until * 10**6,
        }

    assert second_breaches([row(1, "launched"), row(2, "missed", 3), row(4, "launched")], "tick") == []
    assert "never [2]" in second_breaches([row(1, "launched"), row(3, "launched")], "tick")[0]
    assert "twice [1]" in second_breaches([row(1, "launched"), row(1, "launched")], "tick")[0]
    assert second_breaches([], "tick")
