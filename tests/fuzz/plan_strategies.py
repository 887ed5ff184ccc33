"""Records of the topic `schedules` and of the planner's log as anybody might send them."""

from __future__ import annotations

import json

from hypothesis import strategies as st

from scylla_spark.core.plan.state import plan_log
from scylla_spark.core.plan.state.plan_log import Group, Partly
from scylla_spark.core.records.fact import Fence
from tests.fuzz import strategies as our
from tests.fuzz.strategies import DURATIONS, INSTANTS, LIMITS, NUMBERS, OTHERS, TEXTS, TIMES, changed, some, weighted

QUEUES = ["mail", "gpu", "team/x@2"]
PLANNED = ["a", "b", "team/job@2", "down"]
EVENTS = ["orders", "prices", "schedule.late", "\x01" * 1024, '"' * 1024, "😀" * 256]

planned = st.sampled_from(PLANNED).map(json.dumps)
happens = st.sampled_from([*EVENTS[:3], *EVENTS[:3], *EVENTS]).map(json.dumps)
lasting = st.sampled_from(['"1s"', '"1s"', '"90s"', '"2h"', "5", *DURATIONS])
counts = st.sampled_from(["1", "1", "2", "9007199254740991", *LIMITS])
scalars = st.sampled_from(['"x"', "1", "true", "1.5", "1e15", *NUMBERS, *TEXTS])


def brief(strategy):
    """The same strategy, of which Hypothesis does not print all that it is made of."""
    return st.none().flatmap(lambda _: strategy)


def kind(name, required=None, optional=None):
    """Strategy for a JSON object of that kind, now and then with a field at an extreme."""
    fields = some({"kind": st.just(json.dumps(name))} | (required or {}), optional or {})
    extremes = dict.fromkeys([*(required or {}), *(optional or {})], NUMBERS + TEXTS + DURATIONS + TIMES + OTHERS)
    return brief(weighted((12, fields.map(lambda one: our.as_json(one.items()))), (1, changed(fields, extremes, 2))))


def listed(strategy, most=3):
    return st.lists(strategy, max_size=most).map(lambda texts: f"[{','.join(texts)}]")


BOUNDS = {
    "tz": st.sampled_from(['"UTC"', '"Europe/Berlin"', '"America/St_Johns"', '"Mars"']), "jitter": lasting,
    "startAt": our.times | st.sampled_from(our.WILD_TIMES), "endAt": our.times | st.sampled_from(our.WILD_TIMES),
    "calendar": st.sampled_from(['"de"', '"none"']), "onHoliday": st.sampled_from(['"skip"', '"next"', '"previous"']),
    "blackout": listed(st.tuples(our.times, our.times).map(lambda two: f"[{','.join(two)}]")),
}  # fmt: skip
BOUNDED = {name: text for name, text in BOUNDS.items() if name != "onHoliday"}
crons = st.sampled_from(
    ["* * * * *", "*/5 * * * * *", "0 2 29 2 *", "@daily", "0 0 30 2 *", "0 1-23/2 * * MON#1", "x" * 1001, "L"]
)
rules = st.sampled_from(
    [
        "FREQ=MINUTELY",
        "FREQ=DAILY;COUNT=3",
        "FREQ=MONTHLY;BYDAY=-1FR",
        "FREQ=YEARLY;BYMONTHDAY=31;BYMONTH=2",
        "FREQ=SECONDLY",
        ";",
    ]
)
starts = st.sampled_from(
    ['"2026-02-28T23:00:00"', '"2026-01-31"', '"0001-01-01T00:00:00"', '"9999-12-31T23:59:59"', '"x"']
)
scalar_fields = st.dictionaries(st.sampled_from(["day", "n", "x"]), scalars, max_size=2).map(
    lambda one: our.as_json(one.items())
)
data_leaves = brief(
    st.one_of(
        kind("event", {"name": happens}, {"where": scalar_fields}),
        kind(
            "partitions",
            {"dataset": st.sampled_from(['"d"', '"e"'])},
            {"atLeast": counts, "rows": counts, "bytes": counts},
        ),
        kind(
            "table",
            {"table": st.sampled_from(['"/t"', '"main.sales"'])},
            {"minRows": counts, "settle": lasting, "per": st.just('"day"')},
        ),
    )
)
triggers = brief(
    st.recursive(
        st.one_of(
            data_leaves,
            data_leaves,
            kind("every", {"period": lasting}, BOUNDED | {"phase": lasting, "count": counts}),
            kind(
                "cron",
                {"expression": crons.map(json.dumps)},
                BOUNDS | {"gap": st.just('"skip"'), "fold": st.just('"both"')},
            ),
            kind("at", {"times": listed(our.times, 5)}, BOUNDED),
            kind("rrule", {"rule": rules.map(json.dumps), "start": starts}, BOUNDED),
            kind(
                "after",
                {"work": planned | st.just('"work"')},
                {"on": listed(st.sampled_from(['"succeeded"', '"failed"']))},
            ),
            kind("absent", {"of": data_leaves | kind("after", {"work": planned}), "within": lasting}),
        ),
        lambda inner: kind("all", {"of": listed(inner)}) | kind("any", {"of": listed(inner)}, {"atLeast": counts}),
        max_leaves=4,
    )
)
PLACES = [
    "{{ planned }}", "{{ event }}", "{{ event.x.y }}", '{{ event.n | default("none") }}', '{{ planned | add("36525d") | date("%Y") }}',
    "{{ partitions.count }}", "{{ upstream.result }}", "{{ table.to_version }}", '{{ planned | date("%H:%M", "Asia/Kolkata") }}',
    "{{ " + "event." + "x" * 5_000 + " }}", "{{ planned" + ' | add("36525d")' * 90 + ' | date("%F", "Asia/Tokyo") }}', "{{ }}", "{{",
    '{{ event.n | default("\\ud800") }}', "{{ generation }} {{ revision }} {{ schedule }} {{ started }}",
]  # fmt: skip
payloads = st.dictionaries(
    st.text(max_size=4), st.sampled_from(PLACES) | st.integers() | st.text(max_size=9), max_size=3
).map(json.dumps)
constraints = brief(
    st.one_of(
        kind("concurrency", {"most": counts}, {"otherwise": st.just('"wait"')}),
        kind("delay", {"delay": lasting}),
        kind("last_run", {"within": lasting}, {"otherwise": st.just('"wait"')}),
        kind(
            "time_range",
            {"begin": st.just('"22:00"'), "end": st.sampled_from(['"02:00"', '"24:00"', '"99:99"'])},
            {"tz": BOUNDS["tz"]},
        ),
        kind("rate", {"most": counts, "per": lasting}, {"otherwise": st.just('"abort"')}),
    )
)
OPTIONAL = {
    "payload": payloads, "queue": st.just('"mail"'), "priority": st.sampled_from(LIMITS), "lane": st.sampled_from(['"lane"', *TEXTS]),
    "timeout": lasting, "expires": lasting, "retry": our.retries, "constraints": listed(constraints, 2), "maxRunning": counts,
    "overlap": st.sampled_from(['"skip"', '"buffer_one"', '"buffer_all"', '"cancel_other"', '"allow_all"']),
    "catchUp": st.sampled_from(['"latest"', '"all"', '"none"']), "catchUpWindow": lasting, "pauseAfterFailures": counts,
    "lateAfter": lasting, "endWithin": lasting, "expectEvery": lasting, "jobTimeout": lasting,
    "onJobTimeout": st.sampled_from(['"cancel"', '"run"']), "onPause": st.sampled_from(['"drop"', '"keep"', '"backlog"']),
    "paused": st.sampled_from(["true", "false"]), "note": st.sampled_from(TEXTS), "owner": st.sampled_from(['"us"', *TEXTS]),
    "tags": listed(st.sampled_from(['"t"', *TEXTS])),
}  # fmt: skip
# each definition has few of the optional fields, or hardly one would be valid
FEW = st.sets(st.sampled_from(sorted(OPTIONAL)), max_size=4)
definitions = brief(
    FEW.flatmap(
        lambda names: changed(
            st.fixed_dictionaries(
                {
                    "name": planned,
                    "handler": st.sampled_from(['"work"', '"other"', '"' + "h" * 200 + '"']),
                    "trigger": triggers,
                }
                | {name: OPTIONAL[name] for name in names}
            ),
            dict.fromkeys(OPTIONAL, NUMBERS + TEXTS + DURATIONS + OTHERS)
            | {"name": TEXTS, "handler": TEXTS, "trigger": OTHERS},
            1,
        )
    )
)
wild_values = st.sampled_from(
    ["1", '"x"', *NUMBERS, *TEXTS, *OTHERS, "[" * 45 + "]" * 45, "[" * 190 + "]" * 190, '"' + "x" * 20_000 + '"']
)
wild_fields = st.dictionaries(st.sampled_from(["day", "n", "x", "name"]), wild_values, max_size=3).map(
    lambda one: our.as_json(one.items())
)
partitions = some({}, {"values": wild_fields, "count": counts, "rows": counts, "bytes": counts}).map(
    lambda one: our.as_json(one.items())
)
names = listed(planned, 3)
instants = st.sampled_from([str(at) for at in INSTANTS])
days = listed(st.sampled_from(['"2026-03-01"', '"2026-02-30"', '"0000-00-00"', '"9999-12-31"', '"0001-01-01"']))
notes = st.sampled_from(
    ['{"2026-03-01":"Founding day"}', '{"2026-02-30":"no"}', '{"2026-03-01":1}', '{"today":"x"}', "[]", '"x"']
)
queue_names = st.sampled_from(QUEUES).map(json.dumps)
of_queue = {
    "mode": st.sampled_from(['"push"', '"pull"']), "order": st.sampled_from(['"durable"', '"replay"']),
    "concurrency": counts | st.just("null"), "rate": st.sampled_from(["0.5", "2", "1e-6", "1e9", "null", *NUMBERS]),
    "paused": st.sampled_from(["true", "false"]), "groupConcurrency": counts, "groupSeparator": st.sampled_from(['":"', *TEXTS]),
    "weights": st.dictionaries(st.text(max_size=3), st.integers(0, 1001), max_size=2).map(json.dumps),
    "ageing": st.sampled_from(["true", "false"]), "lease": lasting, "maxRun": lasting,
    "maxRetries": st.sampled_from(["null", *LIMITS]), "retryBase": lasting, "retryCap": lasting,
    "onException": st.sampled_from(['"retry"', '"fail"']), "onFalse": st.sampled_from(['"succeed"', '"redeliver"']),
    "keyReuse": st.sampled_from(['"never"', '"when_done"']), "retention": lasting, "defaultHandler": st.sampled_from(['"work"', *TEXTS]),
    "description": st.sampled_from(TEXTS), "isolation": st.sampled_from(['"handler"', '"sandbox"', *TEXTS]),
}  # fmt: skip
queue_definitions = brief(
    st.sets(st.sampled_from(sorted(of_queue)), max_size=4).flatmap(
        lambda chosen: changed(
            st.fixed_dictionaries({"name": queue_names} | {name: of_queue[name] for name in chosen}),
            dict.fromkeys(of_queue, NUMBERS + TEXTS + DURATIONS + OTHERS) | {"name": TEXTS},
            1,
        )
    )
)
RULE_NAMES = ["broken", "alive", "team/all@2"]
rule_names = st.sampled_from(RULE_NAMES).map(json.dumps)
occasions = st.sampled_from(
    [
        '"failed"',
        '"succeeded"',
        '"expired"',
        '"missed"',
        '"skipped"',
        '"paused"',
        '"late"',
        '"overdue"',
        '"silent"',
        '"absent"',
        '"alive"',
        '"never"',
    ]
)
patterns = listed(st.sampled_from(['"*"', '"work"', '"mail*"', '"a"', '"t"', *TEXTS]), 2)
of_rule = {
    "queues": patterns, "handlers": patterns, "schedules": patterns, "tags": patterns, "digest": lasting | st.just('"0s"'),
    "within": lasting, "every": lasting, "paused": st.sampled_from(["true", "false"]), "description": st.sampled_from(TEXTS),
}  # fmt: skip
rule_definitions = brief(
    st.sets(st.sampled_from(sorted(of_rule)), max_size=3).flatmap(
        lambda chosen: changed(
            st.fixed_dictionaries(
                {
                    "name": rule_names,
                    "when": listed(occasions),
                    "channel": st.sampled_from(['"ops"', '"mine"', '"none"']),
                }
                | {name: of_rule[name] for name in chosen}
            ),
            dict.fromkeys(of_rule, NUMBERS + TEXTS + DURATIONS + OTHERS)
            | {"name": TEXTS, "when": OTHERS, "channel": TEXTS},
            1,
        )
    )
)
put_options = {
    "patch": st.sampled_from(["true", "false"]), "unset": listed(st.sampled_from(['"rate"', '"name"', *TEXTS])),
    "expect": st.dictionaries(st.sampled_from(QUEUES), st.integers(-1, 5), max_size=2).map(json.dumps),
}  # fmt: skip
SELECTED = {
    "names": names,
    "tag": st.just('"t"'),
    "changedFrom": instants,
    "changedUntil": instants,
    "note": st.sampled_from(TEXTS),
}


def command(type_, required, optional=None):
    fields = some({"type": st.just(json.dumps(type_))} | required, {
        "id": st.sampled_from(['"me"', *TEXTS]), "version": st.just("1"), "author": st.sampled_from(['"you"', *TEXTS])
    } | (optional or {}))  # fmt: skip
    return brief(
        weighted(
            (8, fields.map(lambda one: our.as_json(one.items()))),
            (1, changed(fields, dict.fromkeys([*required, *(optional or {}), "id"], NUMBERS + TEXTS + OTHERS), 2)),
        )
    )


version_ranges = brief(
    some(
        {name: st.sampled_from(NUMBERS) for name in ("fromVersion", "toVersion", "rows", "commits", "bytes")},
        {"at": instants, "part": st.sampled_from(TEXTS), "x": st.just("1")},
    ).map(lambda one: our.as_json(one.items()))
)
commands = our.damaged(
    brief(
        weighted(
            (
                6,
                command(
                    "put",
                    {"schedules": listed(definitions, 2)},
                    {"ifAbsent": st.just("true"), "prune": st.just('"us"')},
                ),
            ),
            (4, command("event", {"name": happens}, {"fields": wild_fields})),
            (2, command("partitions", {"name": st.just('"d"'), "partitions": listed(partitions)})),
            (1, command("delete", {"names": names}, SELECTED)),
            (1, command("pause", {"names": names}, SELECTED | {"until": instants})),
            (1, command("resume", {"names": names}, SELECTED)),
            (1, command("run", {"name": planned}, {"payload": wild_fields})),
            (
                1,
                command(
                    "backfill",
                    {"name": planned, "begin": instants, "end": instants},
                    {"maxRunning": st.sampled_from(NUMBERS)},
                ),
            ),
            (
                1,
                command(
                    "backfill",
                    {"name": planned, "versions": listed(version_ranges)},
                    {"tableId": st.sampled_from(TEXTS)},
                ),
            ),
            (1, command("pause_backfill", {"name": planned, "backfill": st.sampled_from(NUMBERS)})),
            (1, command("calendar", {"name": st.just('"de"'), "days": days}, {"notes": notes})),
            (2, command("put_queue", {"queues": listed(queue_definitions, 2)}, put_options)),
            (1, command("delete_queue", {"names": listed(queue_names, 2)}, put_options)),
            (2, command("put_rule", {"rules": listed(rule_definitions, 2)}, put_options)),
            (1, command("delete_rule", {"names": listed(rule_names, 2)}, put_options)),
            (1, command("test_rule", {"name": rule_names})),
        )
    )
)
command_records = weighted((12, commands), (1, our.plain_bytes))

changes = st.lists(
    st.lists(
        st.sampled_from(
            [
                "put",
                "set",
                "fire",
                "end",
                "job",
                "drop",
                "entry",
                "send",
                "unsent",
                "table",
                "seen",
                "queue",
                "queue_entry",
                "queue_revision",
                "notification_rule",
                "notification_rule_entry",
                "notification_revision",
                "notification_seen",
                "incident",
                "incident_recurs",
                "incident_recovered",
                "incident_resolved",
                "a",
                "refuse",
                "answer",
                "backfill",
                "backfill_stands",
            ]
        )
        | st.none()
        | st.integers(-1, 2**40)
        | st.text(max_size=5)
        | st.dictionaries(
            st.sampled_from(["generation", "verdict", "keys", "paused", "backfill", "left", "running", "x"]),
            st.none() | st.integers() | st.text(max_size=4),
        ),
        max_size=6,
    ),
    max_size=3,
)
groups = st.builds(
    Group, st.builds(Fence, st.integers(0, 9), our.names), st.integers(0, 9), st.integers(0, 2**50), st.none() | st.integers(0, 9),
    st.dictionaries(st.integers(0, 3), st.tuples(st.integers(0, 9), st.integers(0, 9), our.names), max_size=2),
    st.none() | st.builds(Partly, st.integers(-1, 3), st.integers(0, 9), st.integers(0, 9), our.names), st.integers(0, 9),
    st.integers(-1, 9), changes, st.booleans(),
)  # fmt: skip


def fields_of(group):
    """The fields of a record, with changes that no planner could have written."""
    return json.loads(plan_log.encode(group._replace(changes=()))) | {"changes": group.changes}


log_records = our.damaged(brief(
    weighted(
        (4, groups.map(fields_of).map(json.dumps)),
        (4, changed(groups.map(fields_of).map(
            lambda found: {name: json.dumps(value) for name, value in found.items()}), {})),
    )
))  # fmt: skip

# -- what is mostly obeyed ----------------------------------------------------------------------------------------------

FINE_TRIGGERS = [
    {"kind": "event", "name": "orders"}, {"kind": "event", "name": "orders", "where": {"n": 1}}, {"kind": "event", "name": "\x01" * 1024},
    {"kind": "event", "name": "schedule.late"}, {"kind": "partitions", "dataset": "d", "atLeast": 2}, {"kind": "every", "period": "1s"},
    {"kind": "cron", "expression": "* * * * * *", "jitter": "2s"}, {"kind": "cron", "expression": "0 0 * * *", "calendar": "de"},
    {"kind": "after", "work": "a", "on": ["succeeded", "failed"]}, {"kind": "after", "work": "other", "on": ["cancelled"]},
    {"kind": "absent", "of": {"kind": "event", "name": "prices"}, "within": "1s"}, {"kind": "table", "table": "/t", "per": "day"},
    {"kind": "rrule", "rule": "FREQ=MINUTELY", "start": "1970-01-01T00:00:00"},
    {"kind": "at", "times": ["2026-03-01T00:00:01Z", "2261-12-31T23:59:59Z"]},
    {"kind": "any", "of": [{"kind": "event", "name": "orders"}] * 900},
    {"kind": "all", "of": [*[{"kind": "event", "name": "orders"}] * 900, {"kind": "event", "name": "prices"}]},
    {"kind": "any", "atLeast": 2, "of": [{"kind": "every", "period": "1s"}, {"kind": "event", "name": "prices"}]},
]  # fmt: skip
FINE = {
    "overlap": ["skip", "buffer_one", "buffer_all", "cancel_other", "allow_all"], "maxRunning": [1, 2, 1_000_000],
    "lateAfter": ["1s"], "endWithin": ["1s"], "expectEvery": ["1s"], "expires": ["1ms", "2s"], "jobTimeout": ["1s", "36525d"],
    "onJobTimeout": ["cancel", "run"], "onPause": ["drop", "keep", "backlog"],
    "catchUp": ["all", "none"], "pauseAfterFailures": [1], "owner": ["us"], "tags": [["t"], ["😀" * 1024] * 100],
    "note": ["\x01" * 1024], "lane": ["\x02" * 1024],
    "constraints": [
        [{"kind": "delay", "delay": "1s"}], [{"kind": "concurrency", "most": 1, "otherwise": "wait"}],
        [{"kind": "rate", "most": 1, "per": "2s"}],
        [{"kind": "last_run", "within": "1s", "otherwise": "wait"}], [{"kind": "time_range", "begin": "00:00", "end": "24:00"}],
    ],
    "payload": [
        {"e": "{{ event }}"}, {"e": ["{{ event }}"] * 900}, {"r": ["{{ upstream.result }}"] * 9_000}, {"x": '"' * 60_000},
        {"p": "{{ planned }}"},
        {"d": '{{ event.n | default("\\ud800") }}'}, {"y": "{{ planned" + ' | add("36525d")' * 90 + ' | date("%F", "Asia/Tokyo") }}'},
        {"m": "{{ event." + "x" * 9_000 + " }}"}, {"z": "x" * 250_000},
    ],
}  # fmt: skip
FINE_QUEUES = [
    {"name": "mail", "concurrency": 2**31 - 1}, {"name": "mail", "rate": 1e9}, {"name": "gpu", "mode": "pull", "lease": 0},
    {"name": "gpu", "rate": 1e-6, "weights": {"\x01" * 1024: 1000}}, {"name": "team/x@2", "description": "\x01" * 1024},
    {"name": "team/x@2", "description": "😀" * 1024, "maxRetries": None, "retention": "36525d"},
]  # fmt: skip
EVERYTHING = [
    "failed",
    "succeeded",
    "expired",
    "cancelled",
    "duplicate",
    "missed",
    "skipped",
    "paused",
    "late",
    "overdue",
    "silent",
]
FINE_RULES = [
    {"name": "broken", "when": EVERYTHING, "channel": "ops", "digest": "0s", "description": "\x01" * 1_024},
    {"name": "broken", "when": EVERYTHING, "channel": "mine", "digest": "1s", "queues": ["*"]},
    {"name": "broken", "when": ["alive"], "every": "1s", "channel": "ops"},
    {"name": "alive", "when": ["absent", "failed"], "within": "1s", "channel": "ops", "digest": "0s"},
    {"name": "team/all@2", "when": ["failed", "paused"], "channel": "ops", "schedules": ["*"], "tags": ["😀" * 1_024]},
]  # fmt: skip
VERSIONS = {
    "fromVersion": -1, "toVersion": 2**53 - 1, "rows": 2**53 - 1, "commits": 1, "bytes": 0, "at": 0, "part": "\x01" * 1_024,
}  # fmt: skip
FINE_BACKFILLS = [
    {"begin": 1_772_323_196_000_000, "end": 1_772_323_200_000_000, "maxRunning": 2, "author": "\x01" * 1_024},
    {"begin": 1_772_323_140_000_000, "end": 1_772_323_200_000_000, "order": "newest", "priority": 255},
    {"tableId": "\x01" * 1_024, "versions": [VERSIONS] * 40, "maxRunning": 100},
    {"tableId": "id", "versions": [VERSIONS | {"at": 2**52, "part": ""}]},
]
CHOSEN = [{"names": ["a"]}, {"tag": "t"}, {"changedFrom": 0}]
FINE_VALUES = [
    {},
    {"n": 1},
    {"n": 1e15},
    {"n": True},
    {"deep": json.loads("[" * 48 + "]" * 48)},
    {"long": "\\" * 4_000},
    {"n": 10**400},
]
fine_options = st.sets(st.sampled_from(sorted(FINE)), max_size=3).flatmap(
    lambda chosen: st.fixed_dictionaries({name: st.sampled_from(FINE[name]) for name in sorted(chosen)})
)
fine_definitions = brief(st.builds(
    lambda name, handler, trigger, more: {"name": name, "handler": handler, "trigger": trigger} | more,
    st.sampled_from(PLANNED), st.sampled_from(["work", "other"]), st.sampled_from(FINE_TRIGGERS), fine_options,
))  # fmt: skip


def audit_entry(text):
    texts = dict.fromkeys(("token", "name", "operation", "method", "path", "client"), text)
    return {"atUs": 1_767_225_600_000_000, "status": 403, **texts}


fine_commands = brief(weighted(
    (5, fine_definitions.map(lambda one: {"type": "put", "schedules": [one]})),
    (3, st.sampled_from(FINE_VALUES).map(lambda fields: {"type": "event", "name": "orders", "fields": fields})),
    (1, st.sampled_from(["prices", "\x01" * 1024]).map(lambda name: {"type": "event", "name": name})),
    (1, st.sampled_from(FINE_VALUES[:3]).map(
        lambda values: {"type": "partitions", "name": "d", "partitions": [{"values": values, "count": 2**53 - 1}] * 3})),
    (2, st.tuples(st.sampled_from(["pause", "resume", "delete"]), st.sampled_from(CHOSEN)).map(
        lambda two: {"type": two[0], "author": "\x01" * 1024} | two[1])),
    (1, st.sampled_from(PLANNED).map(lambda name: {"type": "run", "name": name})),
    (1, st.tuples(st.sampled_from(PLANNED), st.sampled_from(FINE_BACKFILLS)).map(
        lambda two: {"type": "backfill", "name": two[0]} | two[1])),
    (1, st.tuples(st.sampled_from(["pause", "resume", "cancel"]), st.sampled_from(PLANNED), st.integers(1, 6)).map(
        lambda three: {"type": f"{three[0]}_backfill", "name": three[1], "backfill": three[2]})),
    (1, st.just({"type": "calendar", "name": "de", "days": ["2026-03-01", "9999-12-31"]})),
    (1, st.sampled_from(["Founding day", "\x01" * 1024]).map(
        lambda note: {"type": "calendar", "name": "de", "days": ["2026-03-01"], "notes": {"2026-03-01": note}})),
    (2, st.sampled_from(FINE_QUEUES).map(lambda one: {"type": "put_queue", "queues": [one], "patch": "rate" in one})),
    (1, st.sampled_from(QUEUES).map(lambda name: {"type": "delete_queue", "names": [name]})),
    (2, st.sampled_from(FINE_RULES).map(lambda one: {"type": "put_rule", "rules": [one]})),
    (1, st.sampled_from(RULE_NAMES).map(lambda name: {"type": "delete_rule", "names": [name]})),
    (1, st.sampled_from(RULE_NAMES).map(lambda name: {"type": "test_rule", "name": name})),
    (1, st.sampled_from(["x", "\x01" * 300]).map(lambda text: {"type": "audit", "entries": [audit_entry(text)] * 50})),
))  # fmt: skip
stories = st.lists(
    weighted((6, fine_commands.map(lambda one: json.dumps({"id": "me", **one}).encode())), (1, brief(command_records))),
    min_size=10,
    max_size=10,
)
