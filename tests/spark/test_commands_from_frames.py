"""Frames to records: what is written is accepted, and means what the client would have sent."""

import json
import random
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from pyspark.sql import functions as F

from scylla_spark.clock import from_us, now_us, to_us
from scylla_spark.config.settings import Settings
from scylla_spark.core.records.command import CANCEL, Rejection, Rules, payload_text, validate
from scylla_spark.core.tasks.about import About
from scylla_spark.core.tasks.key import TaskKey, partition_of
from scylla_spark.core.tasks.task import MAX_PAYLOAD_BYTES
from scylla_spark.errors import ArgumentError
from scylla_spark.io.host.session import open_session
from scylla_spark.transforms.commands_from_frames import REASONS, Columns, cancel_records, enqueue_records
from scylla_spark.transforms.payload_json import normal
from tests.support.fine_and_wrong_names import FINE_NAMES, WRONG_NAMES

RULES = Rules(partitions=8)
NOW = to_us(datetime(2098, 1, 1, tzinfo=UTC))
LATER = datetime(2099, 1, 1, tzinfo=UTC)
HOSTILE = [
    "plain", "ünïcode 漢字 🎉", '"quoted"', "back\\slash", "new\nline", "tab\t", "nul\x00", "bell\x07", "del\x7f", "\u2028\u2029",
    "'; DROP TABLE--",
    '{"a":1}', "a,b", " lead", "é", "e\u0301", "\U0010ffff", "</script>", "%00", "${x}", "\ufeff", "/", "x" * 1024, "漢" * 1024,
]  # fmt: skip
TIMES = [
    LATER, LATER + timedelta(microseconds=1), LATER + timedelta(milliseconds=999), datetime(2261, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
    datetime(2098, 3, 30, 2, 30, tzinfo=ZoneInfo("Europe/Berlin")),  # a wall time that does not exist
    datetime(2098, 10, 26, 2, 30, tzinfo=ZoneInfo("Europe/Berlin")),
    datetime(2098, 10, 26, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin")),
    datetime(2099, 1, 1, 10, 59, 59, 999_000, tzinfo=UTC), datetime(2099, 1, 1, 11, tzinfo=UTC),
]  # fmt: skip


def judged(rows, rules=RULES, now=NOW):
    """What ingest would make of collected records."""
    return [
        validate(partition_of(row.ordering_id, rules.partitions), 0, now, bytes(row.key), bytes(row.value), rules)
        for row in rows
    ]


def both_ways(frame, columns):
    """The records of a frame that is checked, and then, in the same query, those of one that is not."""
    checked, sent = (enqueue_records(frame, columns, RULES, NOW, checked=checked) for checked in (True, False))
    return checked.union(sent).collect()


def texts(seed):
    rng = random.Random(seed)
    pool = "".join(HOSTILE[:-2]) + "".join(map(chr, range(1, 160)))
    return HOSTILE + ["".join(rng.choices(pool, k=rng.randint(1, 60))) for _ in range(200)]


@pytest.fixture
def session_zone(spark):
    """A session that thinks in a zone with clock changes."""
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    yield spark
    spark.conf.set("spark.sql.session.timeZone", "UTC")


def test_a_session_that_is_there_keeps_its_zone_beside_services(session_zone):
    settings = Settings(_env_file=None)
    assert open_session(settings, "client") is session_zone
    ours = open_session(settings, "services", services=True)
    assert ours.sparkContext is session_zone.sparkContext
    zones = [one.conf.get("spark.sql.session.timeZone") for one in (session_zone, ours)]
    assert zones == ["America/New_York", "UTC"]


def test_every_hostile_text_comes_back_as_it_was(spark):
    rows = [
        (lane, unique, {"text": unique, lane[:50]: "v"})
        for lane, unique in zip(texts(1), reversed(texts(2)), strict=True)
    ]
    frame = spark.createDataFrame(rows, "lane string, unique string, payload map<string, string>")
    columns = Columns("h", "lane", "unique", LATER, "payload", "q", 9)
    found = enqueue_records(frame, columns, RULES, NOW).collect()
    assert [row.reason for row in found] == [None] * len(rows)
    for (lane, unique, payload), command in zip(rows, judged(found), strict=True):
        assert command.key == TaskKey(to_us(LATER), lane, unique)
        assert (command.handler, command.queue, command.priority, command.enqueued_us, command.extra) == (
            "h",
            "q",
            9,
            NOW,
            None,
        )
        assert json.loads(command.payload) == payload


def test_every_instant_comes_back_whatever_the_session_zone(session_zone):
    frame = session_zone.createDataFrame(
        [(str(number), to_us(time)) for number, time in enumerate(TIMES)], "u string, us long"
    )
    columns = Columns("h", "u", "u", F.timestamp_micros("us"))
    found = enqueue_records(frame, columns, RULES, NOW).collect()
    assert [command.key.time_us for command in judged(found)] == [to_us(time) for time in TIMES]


def test_times_are_written_as_spark_would_format_them(session_zone):
    rng = random.Random(3)
    edges = [
        0,
        -1,
        1,
        999_999,
        to_us(datetime(2262, 1, 1, tzinfo=UTC)),
        -62_135_596_800_000_000,
        253_402_300_800_000_000,
        2**62,
    ]
    instants = edges + [rng.randrange(2**53) for _ in range(500)] + [None]
    frame = session_zone.createDataFrame([(str(n), us) for n, us in enumerate(instants)], "u string, us long")
    records = enqueue_records(frame, Columns("h", "u", "u", F.timestamp_micros("us")), RULES, NOW, checked=False)
    options = {"timeZone": "UTC", "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"}
    wanted = F.to_json(F.struct(F.col("scheduled_time").alias("scheduledTime")), options)
    found = records.select("value", wanted.alias("wanted")).collect()
    times = [json.loads(bytes(row.value)).get("scheduledTime") for row in found]
    assert times == [json.loads(row.wanted).get("scheduledTime") for row in found]


def test_a_json_text_becomes_the_object_that_the_client_would_send(spark):
    payloads = [
        "{}", '{"a": 1}', ' {"a" : [1, 2.5, null, true, {"b": "ü\\n"}]} ',
        '{"big": 12345678901234567890123456789}', '{"e": 1e5, "f": -0.0}',
        '{"a": 1, "a": 2}', '{"\\u00e9": "\\ud83c\\udf89"}', json.dumps({text: text for text in HOSTILE}), '{"NaN": "Infinity"}',
    ]  # fmt: skip
    frame = spark.createDataFrame([(str(number), text) for number, text in enumerate(payloads)], "u string, p string")
    found = enqueue_records(frame, Columns("h", "u", "u", LATER, "p"), RULES, NOW).collect()
    assert [row.reason for row in found] == [None] * len(payloads)
    commands = judged(found)
    assert [json.loads(command.payload) for command in commands] == [json.loads(text) for text in payloads]
    assert [command.payload for command in commands] == [payload_text(json.loads(text)) for text in payloads]


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "null", "1", "[]", '"text"', "{", "{} {}", "{},{}", '{}, "type": "cancel"',
        '{"a": NaN}', '{"a": Infinity}', '{"a": 1e999}',
        '{"a": "\\ud800"}', "{'a': 1}", '{"a": 1,}', "not json", '{"a": 01}', '{"a": "\n"}', '{"a": ' * 300 + "1" + "}" * 300,
        '{"a":"' + "x" * MAX_PAYLOAD_BYTES + '"}', '{"a": ' + "9" * 5000 + "}", "{}]", "]{}[",
    ],
)  # fmt: skip
def test_a_text_that_is_no_fit_object_is_refused_by_the_rule_and_by_ingest(text):
    assert normal(text) in REASONS
    record = (
        f'{{"orderingId":"o","scheduledTime":"2099-01-01T00:00:00Z","uniquenessKey":"u","taskData":{text}}}'.encode()
    )
    verdict = validate(partition_of("o", 8), 0, NOW, b"o", record, RULES)
    assert isinstance(verdict, Rejection) or verdict.kind == CANCEL or verdict.extra or text in ("{},{}",)


def test_depth_is_judged_as_it_will_stand_in_the_record():
    for depth in range(150, 260):
        text = '{"a":' * depth + "1" + "}" * depth
        record = f'{{"orderingId":"o","scheduledTime":"2099-01-01T00:00:00Z","uniquenessKey":"u","taskData":{text}}}'.encode()
        accepted = not isinstance(validate(partition_of("o", 8), 0, NOW, b"o", record, RULES), Rejection)
        assert (normal(text) == text) == accepted, depth


def test_what_passes_as_json_text_passes_ingest():
    rng = random.Random(5)
    pieces = [
        '{"a":',
        "}",
        "[",
        "]",
        "1",
        "1e308",
        "1e309",
        "-",
        ".5",
        '"x"',
        ",",
        "null",
        "NaN",
        "\\",
        '"',
        " ",
        "{}",
        "\n",
        "true",
        '"\\u12',
        "9" * 310,
    ]
    for _ in range(20_000):
        text = "".join(rng.choices(pieces, k=rng.randint(1, 8)))
        passed = normal(text)
        if passed not in REASONS:
            record = f'{{"orderingId":"o","scheduledTime":"2099-01-01T00:00:00Z","uniquenessKey":"u","taskData":{passed}}}'.encode()
            assert not isinstance(validate(partition_of("o", 8), 0, NOW, b"o", record, RULES), Rejection), text


def test_nested_structs_keep_their_nulls_and_instants_are_utc(session_zone):
    frame = session_zone.range(1).select(
        F.lit("u").alias("u"),
        F.struct(
            F.lit(1).alias("one"), F.lit(None).cast("string").alias("none"), F.timestamp_micros(F.lit(to_us(LATER) + 5)).alias("at"),
            F.array(F.struct(F.lit(2.5).alias("x"))).alias("list"), F.create_map(F.lit(1), F.lit(True)).alias("map"),
        ).alias("p"),
    )  # fmt: skip
    (command,) = judged(enqueue_records(frame, Columns("h", "u", "u", LATER, "p"), RULES, NOW).collect())
    assert json.loads(command.payload) == {
        "one": 1, "none": None, "at": "2099-01-01T00:00:00.000005Z", "list": [{"x": 2.5}], "map": {"1": True},
    }  # fmt: skip


REFUSED = [
    ("ordering_id_missing", {"o": None}), ("ordering_id_invalid", {"o": ""}), ("ordering_id_invalid", {"o": "x" * 1025}),
    ("uniqueness_key_missing", {"u": None}), ("uniqueness_key_invalid", {"u": ""}), ("scheduled_time_missing", {"t": None}),
    ("time_out_of_range", {"t": datetime(2262, 1, 1, tzinfo=UTC)}), ("too_late", {"t": from_us(NOW - 10_000_001)}),
    ("handler_invalid", {"h": "a b"}), ("handler_invalid", {"h": "a\n"}), ("handler_invalid", {"h": "x" * 201}),
    ("queue_invalid", {"q": None}), ("queue_invalid", {"q": ""}), ("priority_invalid", {"n": 256}), ("priority_invalid", {"n": -1}),
    ("priority_invalid", {"n": None}), ("payload_not_finite", {"p": {"x": float("nan"), "s": None}}),
    ("payload_not_finite", {"p": {"x": float("-inf"), "s": None}}), ("payload_too_large", {"p": {"x": 1.0, "s": "x" * MAX_PAYLOAD_BYTES}}),
    ("payload_too_large", {"p": {"x": 1.0, "s": "漢" * (MAX_PAYLOAD_BYTES // 3)}}),
]  # fmt: skip
FINE = [
    {}, {"h": None}, {"p": None}, {"o": "x" * 1024}, {"t": from_us(NOW - 10_000_000)}, {"n": 255}, {"h": "x" * 200}, {"q": "a.b:c@1/d-e_f"},
    {"p": {"x": 1e300, "s": "y" * (MAX_PAYLOAD_BYTES - 100)}},
]  # fmt: skip
SCHEMA = "o string, u string, t timestamp, p struct<x: double, s: string>, h string, q string, n int"
ROW = {"o": "o", "u": "u", "t": LATER, "p": {"x": 1.0, "s": "s"}, "h": "h", "q": "q", "n": 1}


def all_columns():
    return Columns(F.col("h"), "o", "u", "t", "p", F.col("q"), F.col("n"))


def test_each_reason_is_found_and_its_row_would_be_refused_by_ingest(spark):
    frame = spark.createDataFrame([ROW | change for _, change in REFUSED], SCHEMA)
    found = enqueue_records(frame, all_columns(), RULES, NOW).collect()
    assert [row.reason for row in found] == [reason for reason, _ in REFUSED]
    for row, (_, change) in zip(found, REFUSED, strict=True):
        # NaN would travel as text, a null setting would be left out, and a record without a key goes to a partition of chance
        if change.keys() - {"o"} and change not in ({"q": None}, {"n": None}) and row.reason != "payload_not_finite":
            assert isinstance(judged([row])[0], Rejection), row.reason


def test_what_lies_just_within_the_rules_passes_and_is_accepted(spark):
    frame = spark.createDataFrame([ROW | change for change in FINE], SCHEMA)
    found = enqueue_records(frame, all_columns(), RULES, NOW).collect()
    assert [row.reason for row in found] == [None] * len(FINE)
    assert not any(isinstance(verdict, Rejection) for verdict in judged(found))


@pytest.mark.parametrize(("grace_ms", "retention_ms"), [(10_000, 60_000), (60_000, 10_000), (0, 0)])
def test_times_in_columns_are_judged_by_the_rules_of_records(spark, grace_ms, retention_ms):
    rules = Rules(8, grace_ms, retention_ms)
    edges = {rules.late_before_us(NOW), rules.old_before_us(NOW)}
    times = sorted(edge + step for edge in edges for step in (-1, 0, 1))
    frame = spark.createDataFrame([(f"u{us}", from_us(us)) for us in times], "u string, t timestamp")
    found = enqueue_records(frame, Columns("h", "u", "u", "t"), rules, NOW).collect()
    verdicts = judged(found, rules)
    assert {row.reason for row in found if row.reason} == {v.reason for v in verdicts if isinstance(v, Rejection)}
    for row, verdict in zip(found, verdicts, strict=True):
        assert row.reason == (verdict.reason if isinstance(verdict, Rejection) else None)
        assert (row.reason is None) == (to_us(row.scheduled_time.astimezone(UTC)) >= rules.earliest_us(NOW))


def test_names_in_columns_follow_the_one_rule_of_names(spark):
    rows = [ROW | {part: name} for name in FINE_NAMES + WRONG_NAMES for part in ("h", "q")]
    found = enqueue_records(spark.createDataFrame(rows, SCHEMA), all_columns(), RULES, NOW).collect()
    wrong = [reason for _ in WRONG_NAMES for reason in ("handler_invalid", "queue_invalid")]
    assert [row.reason for row in found] == [None] * 2 * len(FINE_NAMES) + wrong


def test_numbers_that_grow_when_written_again_are_not_refused_later(spark):
    frame = spark.range(1).select(
        F.lit("u").alias("u"), F.struct(F.array_repeat(F.lit(1e15), 25_000).alias("x")).alias("p")
    )
    (row,) = enqueue_records(frame, Columns("h", "u", "u", LATER, "p"), RULES, NOW).collect()
    assert len(row.value) < MAX_PAYLOAD_BYTES
    assert row.reason == "payload_too_large"
    assert isinstance(judged([row])[0], Rejection)


def test_ids_that_are_not_utf8_are_refused(spark):
    frame = spark.range(1).select(F.unhex(F.lit("61FF")).cast("string").alias("o"), F.lit("u").alias("u"))
    (row,) = enqueue_records(frame, Columns("h", "o", "u", LATER), RULES, NOW).collect()
    assert row.reason == "ordering_id_invalid"


def test_both_spellings_of_column_names_are_found(spark):
    snake = spark.createDataFrame(
        [("o", "u", LATER, "{}")],
        "ordering_id string, uniqueness_key string, scheduled_time timestamp, task_data string",
    )
    camel = spark.createDataFrame(
        [("o", "u", LATER, "{}")], "orderingId string, uniquenessKey string, scheduledTime timestamp, taskData string"
    )
    crossed = {
        ("orderingId", "uniquenessKey", "scheduledTime", "taskData"): snake,
        ("ordering_id", "uniqueness_key", "scheduled_time", "task_data"): camel,
    }
    found = [enqueue_records(frame, Columns("h", *names), RULES, NOW) for names, frame in crossed.items()]
    (first, second) = found[0].union(found[1]).collect()
    assert (first.reason, first.value) == (None, second.value)
    assert judged([first])[0].key == TaskKey(to_us(LATER), "o", "u")


def test_odd_column_names_and_nested_fields_are_found(spark):
    frame = spark.createDataFrame([("o", ("u", 1))], "`a.b c``d` string, s struct<u: string, n: int>")
    (command,) = judged(enqueue_records(frame, Columns("h", "a.b c`d", "s.u", LATER), RULES, NOW).collect())
    assert command.key == TaskKey(to_us(LATER), "o", "u")


def test_without_ordering_id_and_time_the_key_and_the_moment_serve(spark):
    frame = spark.createDataFrame([(17,), (18,)], "id long")
    commands = judged(enqueue_records(frame, Columns(None, None, "id"), RULES, NOW).collect())
    assert [command.key for command in commands] == [TaskKey(NOW, "17", "17"), TaskKey(NOW, "18", "18")]
    assert [(command.handler, command.payload) for command in commands] == [(None, "{}")] * 2


def test_a_frame_may_say_after_what_time_its_tasks_expire(spark):
    frame = spark.createDataFrame([(17,), (18,)], "id long")
    rows = enqueue_records(frame, Columns("h", None, "id", expires="10m"), RULES, NOW).collect()
    assert [command.expires_ms for command in judged(rows)] == [600_000] * 2
    assert b'"version":2' in bytes(rows[0].value)
    (plain, _) = enqueue_records(frame, Columns("h", None, "id"), RULES, NOW).collect()
    assert b'"version":1' in bytes(plain.value)
    (cancel, _) = cancel_records(frame, Columns("h", None, "id"), NOW).collect()
    assert b'"version":1' in bytes(cancel.value)


def test_a_frame_may_ask_for_unique_names(spark):
    frame = spark.createDataFrame([(17, "10m"), (18, None)], "id long, wait string")
    for expires, wanted in ((None, [None, None]), ("10m", [600_000] * 2), (F.col("wait"), [600_000, None])):
        rows = both_ways(frame, Columns("h", None, "id", LATER, expires=expires, unique="open"))
        commands = judged(rows)
        assert [(command.unique, command.expires_ms) for command in commands] == [(True, ms) for ms in wanted] * 2
        assert [json.loads(bytes(row.value))["version"] for row in rows] == [3] * 4
    assert [
        command.unique for command in judged(enqueue_records(frame, Columns("h", None, "id"), RULES, NOW).collect())
    ] == [False] * 2


@pytest.mark.parametrize(
    ("kind", "values", "wanted"),
    [
        ("string", ["10m", " 1h30m ", "0.4s", None], [600_000, 5_400_000, 400, None]),
        ("int", [600, 1, 3_155_760_000 // 2, None], [600_000, 1_000, 1_577_880_000_000, None]),
        (
            "interval day to second",
            [timedelta(days=200, microseconds=1_500), timedelta(microseconds=2_500), timedelta(days=36_525), None],
            [17_280_000_002, 2, 3_155_760_000_000, None],
        ),
        ("interval minute", [timedelta(minutes=90)], [5_400_000]),
        ("void", [None], [None]),
    ],
)
def test_each_row_may_say_when_its_task_expires(session_zone, kind, values, wanted):
    frame = session_zone.createDataFrame(list(enumerate(values)), f"id long, wait {kind}")
    rows = both_ways(frame, Columns("h", None, "id", LATER, expires=F.col("wait")))
    assert [row.reason for row in rows] == [None] * 2 * len(values)
    assert [command.expires_ms for command in judged(rows)] == wanted * 2
    versions = [1 if ms is None else 2 for ms in wanted]
    assert [json.loads(bytes(row.value))["version"] for row in rows] == versions * 2


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("string", ["soon", "", "0s", "0.4ms", "-1s", "36526d", "\x00", "1m" * 51]),
        ("long", [0, -1, 2**63 - 1, -(2**63), 3_155_760_001]),
        (
            "interval day to second",
            [timedelta(0), timedelta(seconds=-1), timedelta(days=36_526), timedelta(microseconds=400)],
        ),
    ],
)
def test_what_is_no_time_to_expire_is_refused_here_and_by_readers(spark, kind, values):
    frame = spark.createDataFrame(list(enumerate(values)), f"id long, wait {kind}")
    columns = Columns("h", None, "id", LATER, expires=F.col("wait"))
    rows = both_ways(frame, columns)
    assert [row.reason for row in rows] == ["expires_invalid"] * len(values) + [None] * len(values)
    assert all(isinstance(verdict, Rejection) for verdict in judged(rows[len(values) :]))


def test_each_row_may_have_tags_of_its_own(spark):
    rows = [
        ["billing", "tenant:7"],
        ["a", "b", "a"],
        [],
        None,
        ["ünïcode 漢字 🎉", '"', "x" * 64],
        [f"t{n % 16}" for n in range(99)],
    ]
    frame = spark.createDataFrame(list(enumerate(rows)), "id long, labels array<string>")
    columns = Columns("h", None, "id", LATER, tags=F.col("labels"))
    wanted = [tuple(dict.fromkeys(row or [])) for row in rows]
    found = both_ways(frame, columns)
    assert [row.reason for row in found] == [None] * 2 * len(rows)
    assert [command.tags for command in judged(found)] == wanted * 2
    assert [b'"tags"' in bytes(row.value) for row in found] == [bool(tags) for tags in wanted] * 2


def test_what_may_be_no_tag_is_refused_here_and_by_readers(spark):
    rows = [[""], [" a"], ["x" * 65], ["new\nline"], ["a", None], [f"t{n}" for n in range(17)], ["\u202e"]]
    frame = spark.createDataFrame(list(enumerate(rows)), "id long, labels array<string>")
    columns = Columns("h", None, "id", LATER, tags=F.col("labels"))
    found = both_ways(frame, columns)
    assert [row.reason for row in found] == ["tags_invalid"] * len(rows) + [None] * len(rows)
    assert all(isinstance(verdict, Rejection) for verdict in judged(found[len(rows) :]))
    broken = F.when(F.col("id") < 9, F.array(F.expr("cast(X'ff41' as string)")))
    columns = Columns("h", None, "id", LATER, expires=F.expr("cast(X'ff41' as string)"), tags=broken)
    found = enqueue_records(frame, columns, RULES, NOW).collect()
    assert {row.reason for row in found} == {"expires_invalid"}
    found = enqueue_records(frame, columns._replace(expires=None), RULES, NOW).collect()
    assert {row.reason for row in found} == {"tags_invalid"}


def test_each_row_may_have_a_name_a_description_and_who_enqueued_it(spark):
    rows = [
        ("Invoices", "of May\npassword=hunter22", "ann"),
        (None, "x" * 2_000, None),
        ("漢" * 200, None, '"'),
        ("token: abcdef", None, "token: abcdef"),
        (None, None, None),
    ]
    texts = [(number, *row) for number, row in enumerate(rows)]
    frame = spark.createDataFrame(texts, "id long, name string, words string, author string")
    columns = Columns(
        "h", None, "id", LATER, name=F.col("name"), description=F.col("words"), enqueued_by=F.col("author")
    )
    found = both_ways(frame, columns)
    assert [row.reason for row in found] == [None] * 2 * len(rows)
    wanted = [About.masked(*row) if any(row) else None for row in rows]
    assert [command.about for command in judged(found)] == wanted * 2
    assert ["about" in json.loads(bytes(row.value)) for row in found] == [any(row) for row in rows] * 2
    assert not any(b"hunter22" in bytes(row.value) for row in found), "no secret is sent"


def test_a_name_of_all_rows_goes_with_a_description_of_each(spark):
    frame = spark.createDataFrame([(0, "of May"), (1, None)], "id long, words string")
    said = {"name": "password=hunter22", "description": F.col("words"), "enqueued_by": F.lit(None)}
    commands = judged(both_ways(frame, Columns("h", None, "id", LATER, **said)))
    assert [command.about for command in commands] == [About("password=***", "of May"), About("password=***")] * 2
    (literal, _) = enqueue_records(
        frame, Columns("h", None, "id", LATER, name="x", enqueued_by="ann"), RULES, NOW
    ).collect()
    assert judged([literal])[0].about == About("x", None, "ann")
    for wrong in ({"name": " x"}, {"name": 7}, {"name": "", "description": F.col("words")}):
        with pytest.raises(ArgumentError, match="name"):
            enqueue_records(frame, Columns("h", None, "id", LATER, **wrong), RULES, NOW)


def test_what_may_be_no_name_or_description_is_refused_here_and_by_readers(spark):
    labels = ["", " a", "x" * 201, "new\nline", "\u202e"]
    rows = [(None, text, None) for text in ("", "x" * 2_001)]
    rows += [(text, None, None) for text in labels] + [(None, None, text) for text in labels]
    reasons = ["description_invalid"] * 2 + ["name_invalid"] * len(labels) + ["enqueued_by_invalid"] * len(labels)
    texts = [(number, *row) for number, row in enumerate(rows)]
    frame = spark.createDataFrame(texts, "id long, name string, words string, author string")
    columns = Columns(
        "h", None, "id", LATER, name=F.col("name"), description=F.col("words"), enqueued_by=F.col("author")
    )
    found = both_ways(frame, columns)
    assert [row.reason for row in found] == reasons + [None] * len(rows)
    assert all(isinstance(verdict, Rejection) for verdict in judged(found[len(rows) :]))
    broken = columns._replace(name=F.expr("cast(X'ff41' as string)"))
    assert {row.reason for row in enqueue_records(frame.limit(1), broken, RULES, NOW).collect()} == {"name_invalid"}


def test_an_empty_frame_gives_no_records(spark):
    for schema in (SCHEMA, SCHEMA.replace("struct<x: double, s: string>", "string")):
        assert enqueue_records(spark.createDataFrame([], schema), all_columns(), RULES, NOW).collect() == []


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        (Columns("h", "nope", "u"), "no column 'nope'"),
        (Columns("h", "o", 5), "uniqueness_key is 5"),
        (Columns("h", "o", "u", "o"), "names no instant"),
        (Columns("h", "o", "u", "d"), "names no instant"),
        (Columns("h", "o", "u", "wall"), "names no instant"),
        (Columns("h", "o", "u", datetime(2099, 1, 1)), "no time zone"),  # noqa: DTZ001
        (Columns("h", "t", "u"), "ordering_id is of type"),
        (Columns("h", "o", "u", "t", "n"), "payload is of type"),
        (Columns("a b", "o", "u"), "handler"),
        (Columns("h", "o", "u", queue=""), "queue"),
        (Columns("h", "o", "u", priority=300), "priority"),
        (Columns("h", "o", "u", expires="soon"), "not a duration"),
        (Columns("h", "o", "u", expires=0), "expires"),
        (Columns("h", "o", "u", unique="ended"), "unique is 'ended'"),
    ],
)
def test_wrong_columns_are_refused_before_any_job(spark, columns, said):
    frame = spark.createDataFrame([ROW], SCHEMA).withColumns(
        {"d": F.to_date("t"), "wall": F.col("t").cast("timestamp_ntz")}
    )
    with pytest.raises(ArgumentError, match=said):
        enqueue_records(frame, columns, RULES, NOW)


def test_a_setting_in_a_column_of_a_wrong_type_is_refused(spark):
    frame = spark.createDataFrame([ROW], SCHEMA)
    with pytest.raises(ArgumentError, match="priority is of type string"):
        enqueue_records(frame, Columns("h", "o", "u", priority=F.col("o")), RULES, NOW)
    for wrong in ("o", "array(1)"):
        with pytest.raises(ArgumentError, match="tags is of type"):
            enqueue_records(frame, Columns("h", "o", "u", tags=F.expr(wrong)), RULES, NOW)
    with pytest.raises(ArgumentError, match="expires is of type double"):
        enqueue_records(frame, Columns("h", "o", "u", expires=F.lit(1.5)), RULES, NOW)


def test_a_streamed_record_has_no_stamp_and_a_bad_payload_stays_readable(spark):
    frame = spark.createDataFrame([("o", "u", 'oops "1"'), ("o", "v", '{"a":1}')], "o string, u string, p string")
    bad, good = enqueue_records(frame, Columns("h", "o", "u", LATER, "p"), RULES, 0, checked=False).collect()
    assert json.loads(bytes(bad.value))["taskData"] == 'oops "1"'
    assert isinstance(judged([bad])[0], Rejection)
    (command,) = judged([good])
    assert (command.payload, command.enqueued_us) == ('{"a":1}', NOW)


def test_a_payload_that_is_not_utf8_is_refused_here_and_travels_for_readers_to_refuse(spark):
    frame = spark.range(1).select(F.lit("u").alias("u"), F.expr("cast(X'7b2261223a22ff227d' as string)").alias("p"))
    columns = Columns("h", "u", "u", LATER, "p")
    (row,) = enqueue_records(frame, columns, RULES, NOW).collect()
    assert row.reason == "payload_not_an_object"
    (sent,) = enqueue_records(frame, columns, RULES, NOW, checked=False).collect()
    assert json.loads(bytes(sent.value))["taskData"] == '{"a":"\ufffd"}'
    assert isinstance(judged([sent])[0], Rejection)


def test_cancels_are_written_for_keys_of_any_time(spark):
    past = datetime(2001, 2, 3, 4, 5, 6, 789, tzinfo=UTC)
    frame = spark.createDataFrame(
        [('ö"1', "u", past), (None, "u", past), ("o", "u", None)], "o string, u string, t timestamp"
    )
    found = cancel_records(frame, Columns(None, "o", "u", "t"), now_us()).collect()
    assert [row.reason for row in found] == [None, "ordering_id_missing", "scheduled_time_missing"]
    (command,) = judged(found[:1])
    assert (command.kind, command.key) == (CANCEL, TaskKey(to_us(past), 'ö"1', "u"))
