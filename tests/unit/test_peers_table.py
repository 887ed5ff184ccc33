"""The peers' figures from the records of their handlers, and the table of them."""

from __future__ import annotations

import pytest

from tests.benchmarks.peers import figures, table
from tests.benchmarks.peers.figures import RECORD, Absent, Latency, Rate, Start


def written(path, *starts):
    path.write_bytes(b"".join(RECORD.pack(*start) for start in starts))
    return path


def test_records_are_read_as_written_and_a_half_record_at_the_end_is_left_for_later(tmp_path):
    path = written(tmp_path / "records", (1, 0, 10, 20), (2, 0, 11, 21))
    path.write_bytes(path.read_bytes() + b"half")
    assert figures.started(path) == 2
    assert figures.starts(path, skip=1) == [Start(2, 0, 11, 21)]


def test_file_that_is_not_there_yet_has_no_records(tmp_path):
    assert (figures.started(tmp_path / "none"), figures.starts(tmp_path / "none")) == (0, [])


def test_order_is_judged_by_start_time_within_each_key():
    assert figures.disorder([Start(1, 0, 0, 5), Start(2, 0, 0, 6), Start(1, 1, 0, 7), Start(2, 1, 0, 8)]) == 0
    assert figures.disorder([Start(1, 1, 0, 7), Start(1, 0, 0, 5)]) == 0, "the file's order does not matter"
    assert figures.disorder([Start(1, 1, 0, 5), Start(1, 0, 0, 7)]) == 1
    assert figures.disorder([Start(1, 0, 0, 5), Start(1, 0, 0, 7)]) == 1, "the same task twice"


def test_rate_counts_from_the_first_start_to_the_end_that_the_store_gave():
    seen = [Start(0, number, 0, 1_000_000 + number) for number in range(100)]
    assert figures.rate(seen, 100, 3_000_000, ordered=False) == Rate(100, 50.0)


def test_rate_tells_lost_doubled_and_disordered_tasks():
    seen = [Start(0, 1, 0, 1_000_000), Start(0, 0, 0, 1_500_000), Start(0, 1, 0, 2_000_000)]
    assert figures.rate(seen, 3, 4_000_000, ordered=False) == Rate(3, 1.0, lost=1, violations=1)
    assert figures.rate(seen, 3, 4_000_000, ordered=True) == Rate(3, 1.0, lost=1, violations=2)
    assert figures.rate([], 3, 4_000_000, ordered=True) == Rate(0, 0.0, lost=3)


def test_latency_is_start_less_stamp_with_lost_and_early_tasks():
    seen = [Start(0, 0, 10_000, 12_000), Start(0, 1, 20_000, 21_000), Start(0, 2, 30_000, 29_500)]
    assert figures.latency(seen, 4) == Latency(3, 1.0, 2.0, lost=1, early=1)


def test_our_own_benchmarks_give_a_rate_or_a_latency():
    told = {"bench": "drain", "count": 5, "rate_per_s": 2.5, "lost": 1, "violations": 2}
    assert figures.own(told) == Rate(5, 2.5, lost=1, violations=2)
    told = {"bench": "lateness", "count": 5, "p50_ms": 0.5, "p99_ms": 9.0, "lost": 0, "early": 1}
    assert figures.own(told) == Latency(5, 0.5, 9.0, early=1)


@pytest.mark.parametrize(
    ("figure", "text"),
    [
        (Rate(1, 12_345.6), "12,346"),
        (Rate(1, 1_000, lost=1_200, violations=3), "1,000 (1,200 lost, 3 violations)"),
        (Latency(1, 0.44, 10.2), "0.4 / 10"),
        (Latency(1, 50, 99, early=2), "50 / 99 (2 early)"),
        (Absent("paid edition"), "paid edition"),
        (None, ""),
    ],
)
def test_cell_says_the_figure_and_every_fault(figure, text):
    assert table.cell(figure) == text


def test_table_has_a_line_for_each_peer_and_the_reason_of_a_skipped_one():
    lines = table.rows({"us": {"drain": Rate(1, 9_000), "enqueue": Rate(1, 70)}, "them": "no go (install it | try)"})
    assert [len(line) for line in lines] == [len(table.COLUMNS) + 1] * 3
    text = table.markdown(lines).splitlines()
    assert text[1] == "|" + "---|" * 7
    assert text[2] == "| us | 9,000 |  |  |  |  | 70 |"
    assert text[3].startswith("| them | skipped: no go (install it / try) |")
    assert "9,000" in table.plain(lines).splitlines()[1]


def test_sizes_are_told_of_rates_only():
    told = table.sizes({"drain": Rate(20_000, 9.0), "lateness": Latency(15, 1, 2), "drain_ordered": Absent("none")})
    assert told == " Tasks: drain 20,000."
    assert (table.sizes({"lateness": Latency(15, 1, 2)}), table.sizes("no go")) == ("", "")


def test_section_is_replaced_and_the_rest_of_the_page_stays(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"above\n{table.BEGIN}\nold\n{table.END}\nbelow\n")
    for text in ("new", "newer\n"):
        table.replace_section(page, text)
    assert page.read_text() == f"above\n{table.BEGIN}\nnewer\n{table.END}\nbelow\n"


@pytest.mark.parametrize(
    "text", ["no marks", f"{table.END}\n{table.BEGIN}", f"{table.BEGIN}\n{table.BEGIN}\n{table.END}"]
)
def test_page_without_both_marks_in_order_is_left_alone(tmp_path, text):
    page = tmp_path / "page.md"
    page.write_text(text)
    with pytest.raises(ValueError, match="once each"):
        table.replace_section(page, "new")
    assert page.read_text() == text
