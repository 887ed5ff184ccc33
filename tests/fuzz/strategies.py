"""Records of both topics as anybody might send them: valid ones, extremes of every field, structured mutations, and plain bytes."""

from __future__ import annotations

import json

from hypothesis import strategies as st

from scylla_spark.clock import iso
from scylla_spark.core.records.fact import Fact, Fence, encode_facts, encode_fence, encode_resign
from scylla_spark.core.tasks.attempt_note import WorkNote
from scylla_spark.core.tasks.key import LATEST_US, TaskKey
from scylla_spark.core.tasks.task import Failure

NOW = 1_790_000_000_000_000
DAY = 86_400_000_000
FENCE = Fence(3, "0198c0de")

# -- JSON as text, so that it can also be what no encoder of Python's would write ----------------------------------------

NUMBERS = [
    "0", "-0", "1", "-1", "1.0", "-0.0", "1e2", "255", "256", "2147483647", "2147483648", "9223372036854775807", "9223372036854775808",
    "-9223372036854775809", "1e308", "1e309", "1e999", "-1e999", "5e-324", "1e99999999999999999999", "9" * 400, "9" * 4300, "9" * 4301,
    "NaN", "Infinity", "-Infinity", "01", "+1", ".5", "0x10",
]  # fmt: skip
LIMITS = ["-1", "255", "256", "2147483647", "2147483648", "9223372036854775808"]
TEXTS = [
    '""', '"x"', '"\\u0000"', '"\\u001b[31m"', '"\\ud800"', '"\\udfff"', '"\\ud83d\\ude00"', '"😀"', '"é"', '"\\u202e"', '" "', '"\\n"',
    '"\\""', '"' + "x" * 1024 + '"', '"' + "x" * 1025 + '"', '"' + "😀" * 1024 + '"', '"' + "\\u0001" * 1024 + '"', '"a,b"', '"\ufeff"',
]  # fmt: skip
OTHERS = [
    "null", "true", "false", "[]", "{}", '{"a":1,"a":2}', '{"":{}}', "[" * 150 + "]" * 150, "[" * 300 + "]" * 300,
    '{"a":' * 190 + "1" + "}" * 190, "", "nul", "'x'", "[1,]", "// x",
]  # fmt: skip
INSTANTS = [
    0, 1, -1, NOW, NOW - 11_000_000, NOW + 30 * DAY, NOW - 20 * DAY, LATEST_US - 1, LATEST_US, 253_402_300_799_999_999, 2**63, 10**30,
]  # fmt: skip
TIMES = [
    '"9999-12-31T23:59:59-05:00"', '"0001-01-01T00:00:00+05:00"', '"10000-01-01T00:00:00Z"', '"2026-12-01T00:00:00"', '"2026-12-01"',
    '"2026-12-01t00:00:00z"', '"2026-12-01T00:00:00.123456789Z"', '"2026-12-01T23:59:60Z"', '"2026-12-01T00:00:00+23:59"', '"1790000005"',
    '"2026-12-01 00:00:00+00:00"', '"2300-01-01T00:00:00Z"', '"1677-09-21T00:00:00Z"', '"-0001-01-01T00:00:00Z"',
]  # fmt: skip
DURATIONS = [
    '"30s"',
    '"1h30m"',
    '"0s"',
    '"36525d"',
    '"36526d"',
    '"1e5s"',
    '"' + "1s" * 60 + '"',
    "3155760000",
    "0.0004",
    '"٣s"',
]

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
).map(lambda value: json.dumps(value, ensure_ascii=False))
junk = st.sampled_from(NUMBERS) | st.sampled_from(TEXTS) | st.sampled_from(OTHERS) | values
objects = st.dictionaries(st.text(max_size=6), st.integers() | st.text(max_size=8), max_size=3).map(json.dumps)
near = st.integers(NOW - 9_000_000, NOW + 400 * DAY) | st.sampled_from([NOW, NOW + 1, LATEST_US - 1])
times = near.map(iso).map(json.dumps)
names = st.text(min_size=1, max_size=12)
texts = names.map(lambda text: json.dumps(text, ensure_ascii=False))
plain_bytes = st.none() | st.binary(max_size=60) | junk.map(lambda text: text.encode("utf-8", "replace"))


def as_json(fields):
    """A JSON object of fields whose values are JSON texts."""
    return "{" + ",".join(f"{json.dumps(name)}:{text}" for name, text in fields) + "}"


def weighted(*choices):
    """One of several strategies, each as often as its weight says."""
    return st.sampled_from([strategy for weight, strategy in choices for _ in range(weight)]).flatmap(lambda one: one)


@st.composite
def some(draw, required, optional):
    """An object of the required fields and about half of the others."""
    there = [draw(st.booleans()) for _ in optional]
    chosen = {name: text for (name, text), wanted in zip(optional.items(), there, strict=True) if wanted}
    return {name: draw(text) for name, text in (required | chosen).items()}


@st.composite
def changed(draw, fields, extremes, changes=3):
    """A valid object in which up to so many fields are at an extreme, nonsense, left out or doubled; most often only one.

    Args:
        draw: of Hypothesis.
        fields: strategy for name → JSON text of a valid object.
        extremes: name → JSON texts at or beyond the limits of a field.
        changes: most changes.
    """
    pairs = list(draw(fields).items())
    for _ in range(draw(st.sampled_from([0, 0, 1, 1, 1, 1, changes]))):
        place = draw(st.integers(0, len(pairs) - 1))
        name = pairs[place][0]
        change = draw(st.sampled_from(["extreme"] * 6 + ["junk", "drop", "double"]))
        text = draw(st.sampled_from(extremes[name])) if change == "extreme" and name in extremes else draw(junk)
        pairs[place : place + 1] = {"drop": [], "double": [pairs[place], (name, text)]}.get(change, [(name, text)])
        if not pairs:
            break
    return as_json(pairs)


@st.composite
def damaged(draw, texts):
    """The bytes of a text; seldom with some of them changed, cut off or added."""
    value = draw(texts).encode("utf-8", "replace")
    damage = draw(st.sampled_from([""] * 12 + ["flip", "cut", "bom", "more"]))
    at = draw(st.integers(0, len(value) - 1)) if damage in ("flip", "cut") else 0
    return {
        "flip": value[:at] + b"\xc3" + value[at + 1 :],
        "cut": value[:at],
        "bom": b"\xef\xbb\xbf" + value,
        "more": value + b"}",
    }.get(damage, value)


# -- records of `tasks` -------------------------------------------------------------------------------------------------

lasting = st.sampled_from(DURATIONS[:4])
retries = changed(
    some({"maxRetries": st.sampled_from(["null", "0", "5"])}, {"base": lasting, "cap": lasting}),
    {"maxRetries": LIMITS, "base": DURATIONS, "cap": DURATIONS},
    1,
)
REQUIRED_FIELDS = {
    "orderingId": texts,
    "scheduledTime": times,
    "uniquenessKey": texts,
    "taskData": objects,
}
OPTIONAL_FIELDS = {
    "version": st.just("1"),
    "type": st.sampled_from(['"enqueue"', '"cancel"']),
    "handler": st.sampled_from(['"work"', "null", '"a.b:c/d@e-f"']),
    "queue": st.sampled_from(['"mail"', '"default"']),
    "priority": st.integers(0, 255).map(str),
    "timeout": lasting,
    "retry": retries,
    "enqueuedAt": st.just(json.dumps(iso(NOW))),
    "requestId": texts,
    "traceId": texts | objects,
    "\u0000": texts,
}
WILD_TIMES = TIMES + [json.dumps(iso(at)) for at in INSTANTS if at < 10**18]
TASK_EXTREMES = {
    "orderingId": TEXTS, "uniquenessKey": TEXTS, "requestId": TEXTS, "handler": TEXTS, "queue": TEXTS, "scheduledTime": WILD_TIMES,
    "enqueuedAt": WILD_TIMES, "version": NUMBERS, "priority": LIMITS, "timeout": DURATIONS + NUMBERS,
    "taskData": [f'{{"x":{text}}}' for text in NUMBERS + TEXTS + OTHERS], "traceId": NUMBERS + TEXTS + OTHERS,
}  # fmt: skip
task_records = weighted((9, damaged(changed(some(REQUIRED_FIELDS, OPTIONAL_FIELDS), TASK_EXTREMES))), (1, plain_bytes))


# -- records of `outcomes` ----------------------------------------------------------------------------------------------

WORK_NAMES = ["mail", "team/x@2", "h" * 200]
counts = st.integers(0, 3) | st.sampled_from([2**31 - 1])
moments = st.just(0) | near
keys = st.builds(
    TaskKey, near, names | st.sampled_from(["\x01" * 1024, "😀" * 1024]), names | st.sampled_from(["é" * 1024])
)
failures = st.builds(Failure, names, st.text(max_size=30), st.text(max_size=30))
notes = st.builds(
    WorkNote,
    st.none() | st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=256),
    st.none() | st.text("0123456789abcdef", min_size=1, max_size=64),
    st.sampled_from([0, 1, 10_000, LATEST_US // 1000]),
    moments,
    st.sampled_from([0, 1, LATEST_US - 1]),
    st.none() | st.floats(0, 1),
    st.none() | st.sampled_from(['{"row":1}', '"' + "\x01" * 60_000 + '"']),
    st.none() | st.sampled_from(["{}", '{"é":1}']),
    st.none() | st.sampled_from(["process", "sandbox"]),
    st.none() | st.sampled_from(['[{"name":"é"}]']),
    st.none() | st.sampled_from(["page 3 of 7", "é😀" * 100]),
)
ends = st.builds(
    Fact,
    keys,
    counts,
    st.sampled_from(["succeeded", "failed", "aborted", "cancelled", "started", "too_late"]),
    moments,
    moments,
    moments,
    counts,
    st.none(),
    st.none() | st.sampled_from(['{"ok":true}', '"\\u0000é😀"', '"' + "x" * 65_000 + '"']),
    st.none() | failures,
    st.none() | names,
    st.none() | notes,
    st.none() | st.sampled_from(WORK_NAMES),
    st.none() | st.sampled_from(WORK_NAMES),
    st.none() | st.sampled_from([("night",), ("a", "é" * 64), tuple(map(str, range(16)))]),
)
waits = st.builds(
    lambda fact, outcome, next_us: fact._replace(outcome=outcome, next_us=next_us),
    ends,
    st.sampled_from(["failed", "timed_out", "yielded"]),
    near,
)
facts = ends | waits
wild_text = st.sampled_from(["\x01", "😀", "\ud800", "\\", '"', "é", "x"]).flatmap(
    lambda letter: st.sampled_from([0, 1, 200, 16_384, 200_000]).map(lambda count: letter * count)
)
wild_numbers = st.integers(-(2**70), 2**70)
wild_notes = st.builds(
    WorkNote,
    wild_text,
    wild_text,
    wild_numbers,
    wild_numbers,
    wild_numbers,
    st.floats(),
    wild_text,
    wild_text,
    wild_text,
    wild_text,
    wild_text,
)
wild_facts = st.builds(
    lambda fact, failure, result, note, queue: fact._replace(failure=failure, result=result, work=note, queue=queue),
    facts,
    st.none() | st.builds(Failure, wild_text, wild_text, wild_text),
    st.none() | wild_text,
    st.none() | wild_notes,
    wild_text,
)
COLUMNS = {
    "time_us": f"[{NOW}]", "ordering_id": '["a"]', "uniqueness_key": '["b"]', "attempt": "[1]", "outcome": '["failed"]',
    "started_us": f"[{NOW}]", "finished_us": f"[{NOW}]", "planned_us": f"[{NOW}]", "used": "[1]", "next_us": f"[{NOW}]",
    "result": "[null]", "failure": '[{"kind":"E","message":"m","stack":"s"}]', "request_id": '["r"]', "colour": '["blue"]',
    "work": '[{"worker":"w","lease":"a","lease_ms":1,"progress":0.5}]', "queue": '["mail"]', "handler": "[null]",
    "tags": '[["night","eu"]]',
}  # fmt: skip
COUNTS = ["-1", "2147483647", "2147483648"]
MOMENTS = [*map(str, INSTANTS), "1.5", "null"]
CELLS = {
    **dict.fromkeys(("attempt", "used"), COUNTS),
    **dict.fromkeys(("time_us", "started_us", "finished_us", "planned_us", "next_us"), MOMENTS),
    **dict.fromkeys(("ordering_id", "uniqueness_key", "request_id", "result", "outcome", "failure"), TEXTS),
    "tags": ["[]", "null", '[" a"]', '[""]', '["\\ud800"]', "[" + ",".join(f'"{number}"' for number in range(17)) + "]", '"a"'],
}  # fmt: skip
COLUMN_EXTREMES = {name: [f"[{cell}]" for cell in cells] for name, cells in CELLS.items()} | {
    "used": ["[]", "[1,2]", "[2147483648]"]
}
ROW_1 = [str(NOW), '"a"', '"b"', "1", '"failed"', str(NOW), "0", "0", "1", "null", "null", '["E","m","s"]', '"r"']
groups = changed(st.fixed_dictionaries({name: st.just(text) for name, text in COLUMNS.items()}), COLUMN_EXTREMES, 2)
groups_1 = st.tuples(
    *(st.integers(0, 39).flatmap(lambda dice, cell=cell: junk if dice == 0 else st.just(cell)) for cell in ROW_1)
).map(lambda cells: "[[" + ",".join(cells) + "]]")


def enveloped(version, content):
    """Strategy for a record of that version with some content beside its envelope, changed in up to two places."""
    fields = {
        "v": st.just(version),
        "epoch": st.sampled_from(["3", "3", "3", "4", "1"]),
        "nonce": st.just('"0198c0de"'),
    }
    extremes = {
        "v": NUMBERS,
        "epoch": NUMBERS,
        "nonce": TEXTS,
        "kind": ['"facts"', '"fence"', '"lease"', *TEXTS],
        "address": TEXTS,
    }
    return changed(st.fixed_dictionaries(fields | content), extremes, 2)


foreign_outcomes = damaged(
    weighted(
        (12, enveloped("2", {"kind": st.just('"facts"'), "facts": groups})),
        (4, enveloped("1", {"facts": groups_1})),
        (1, enveloped("2", {"kind": st.just('"fence"'), "address": st.just('"http://x"'), "at_us": st.just(str(NOW))})),
        (1, enveloped("2", {"kind": st.sampled_from(['"resign"', '"lease"'])})),
        (1, enveloped("3", {"kind": st.sampled_from(['"facts"', '"fence"', '"resign"']), "facts": st.just('"?"')})),
        (1, enveloped("1", {"fence": st.just('{"address":"http://x","at":5}')})),
        (1, enveloped("1", {"resign": st.just("true")})),
    )
)
own_outcomes = (
    st.lists(facts, min_size=1, max_size=4).map(lambda group: encode_facts(FENCE, group)[0])
    | st.integers(1, 5).map(lambda epoch: encode_fence(Fence(epoch, "0198c0de"), "http://x", NOW))
    | st.just(encode_resign(FENCE))
)
outcome_records = weighted((7, foreign_outcomes), (2, own_outcomes), (1, plain_bytes))
