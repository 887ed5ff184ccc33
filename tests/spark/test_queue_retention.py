"""Queues that keep their history for a shorter time: what their tasks carried goes, what tells that they have ended stays."""

import pytest

from scylla_spark import failpoint
from scylla_spark.core.records.fact import Fence, encode_fence
from scylla_spark.core.tasks.key import partition_of
from scylla_spark.core.tasks.output import outputs_place
from scylla_spark.io.host.output_files import OutputFiles
from scylla_spark.schemas import ATTEMPTS, COMPLETIONS, QUEUES, TASKS
from tests.spark.batches import HOUR, NOW, PARTITIONS, done, facts, key_of, raw, rows, task
from tests.support.delta_tables import append
from tests.support.delta_tables import fact as fact_row

LANE, PLACE = "a", partition_of("a", PARTITIONS)
DAY = 24 * HOUR


def define(ingest, revision, definition, name="mail"):
    row = dict.fromkeys(QUEUES.names) | {
        "name": name,
        "revision": revision,
        "definition": definition,
        "plan_offset": revision,
    }
    append(ingest.tables.path, QUEUES, [row])


def history(ingest, dues, queue="mail", number=0):
    """Tasks of a queue that have run, with results and attempts; each is named after its time."""
    stamps = [NOW + (due - 60) * 1_000_000 for due in dues]
    records = [
        task(LANE, str(due), 1_000 * number + n, due=due, stamp=stamp, queue=queue)
        for n, (due, stamp) in enumerate(zip(dues, stamps, strict=True))
    ]
    newest = task(LANE, f"now-{number}", 1_000 * number + 900)
    ingest.write_tasks(raw(ingest.spark, [*records, newest], [*stamps, NOW]), number)
    ends = facts(Fence(1, "n"), *(done(key_of(LANE, str(due), due))._replace(result='{"to":"x"}') for due in dues))
    values = [encode_fence(Fence(1, "n"), "", NOW), ends]
    ingest.write_outcomes(
        raw(ingest.spark, [(PLACE, number * 2 + n, None, value) for n, value in enumerate(values)]), number
    )
    append(ingest.tables.path, ATTEMPTS, [fact_row(key_of(LANE, str(due), due), 1, "started") for due in dues])


def names(ingest, table):
    return {row[0] for row in rows(ingest, table, "uniqueness_key") if not row[0].startswith("now")}


def results(ingest):
    return dict(rows(ingest, COMPLETIONS, "uniqueness_key", "result"))


def test_what_a_queue_keeps_no_longer_goes_and_its_keys_stay_ended(ingest):
    old, young, foreign = str(-5 * DAY), str(-2 * DAY), str(-5 * DAY - 7)
    define(ingest, 2, '{"name":"mail","retention":"3d"}')
    define(ingest, 1, '{"name":"mail","retention":"1h"}')
    history(ingest, [-5 * DAY, -2 * DAY])
    history(ingest, [-5 * DAY - 7], "other", 1)
    files = OutputFiles(ingest.settings.outputs_path)
    for unique in (old, foreign):
        files.write(outputs_place(key_of(LANE, unique, int(unique)), 1, PARTITIONS), "a.txt", b"abc", 3)
    ingest.maintenance.purge_all(NOW)
    assert names(ingest, TASKS) == names(ingest, ATTEMPTS) == {young, foreign}
    assert results(ingest) == {old: None, young: '{"to":"x"}', foreign: '{"to":"x"}'}
    left = [path.name for path in files.root.glob("*/*/*/*/*")]
    assert len(left) == 1, "only the file of the other queue is left"
    stamp = NOW - 5 * DAY * 1_000_000
    late = task(LANE, "late", 5_000, due=-5 * DAY + 1, queue="mail", stamp=stamp)
    ingest.write_tasks(raw(ingest.spark, [late], stamp), 30)
    assert "late" in names(ingest, TASKS)
    ingest.maintenance.purger.purge(NOW)
    assert "late" in names(ingest, TASKS), "an hour that was opened again is nobody's history"


def test_a_queue_that_keeps_as_much_as_others_or_cannot_be_read_keeps_all(ingest):
    more = {"plain": "", "long": ',"retention":"30d"', "odd": ',"rate":"nonsense"', "mail": ',"retention":"3d"'}
    for number, (name, fields) in enumerate(more.items()):
        define(ingest, 1, f'{{"name":"{name}"{fields}}}', name)
        history(ingest, [-5 * DAY - number], name, number)
    ingest.maintenance.purge_all(NOW)
    kept = {str(-5 * DAY - number) for number, name in enumerate(more) if name != "mail"}
    assert names(ingest, TASKS) == names(ingest, ATTEMPTS) == kept


def test_after_a_crash_in_its_midst_it_goes_on(ingest, monkeypatch):
    define(ingest, 1, '{"name":"mail","retention":"3d"}')
    history(ingest, [-5 * DAY, -5 * DAY - 5])

    def die(name):
        if name == "ingest.purge.queue":
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(failpoint, "reach", die)
        with pytest.raises(KeyboardInterrupt):
            ingest.maintenance.purge_all(NOW)
    assert names(ingest, ATTEMPTS) == set()
    assert len(names(ingest, TASKS)) == 2
    ingest.maintenance.purge_all(NOW)
    assert names(ingest, TASKS) == set()
    assert set(results(ingest).values()) == {None}
