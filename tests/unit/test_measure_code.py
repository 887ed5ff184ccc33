"""The measure of the size of the code."""

from measure_code import count_tokens, measures


def test_comments_docstrings_line_ends_and_indents_do_not_count():
    assert count_tokens("def f(a):\n    return a + 1\n") == count_tokens(
        '"""Module."""\n\ndef f(a):  # comment\n    """Docstring."""\n\n    return (\n        a + 1\n    )\n'
    ) - len("()")


def test_core_and_tools_are_counted_apart_also_where_tools_were_part_of_the_package(tmp_path):
    for name in ("scylla_spark/core/a.py", "scylla_spark/bench/b.py", "tools/scylla_spark_tools/demo/c.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("traceparent = 1  # fmt: skip\n")
    (tmp_path / "scylla_spark/page.html").write_text("<p>two words")
    assert measures(tmp_path) == {
        "tokens": 9,
        "tokens_of_core": 3,
        "files_of_core": 1,
        "fmt_skip": 3,
        "files_with_traceparent": 3,
        "files_with_progress_note": 0,
        "words_of_data": 2,
    }
