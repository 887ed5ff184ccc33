"""Without the extra `tables`, a reader of tables names it."""

import pytest

from scylla_spark.errors import SetupError
from scylla_spark.io.delta import open_table
from scylla_spark.io.delta.table_reader import TableReader


@pytest.mark.parametrize("missing", ["deltalake", "obstore", "polars", "pyarrow"])
def test_a_reader_of_tables_names_the_extra_that_is_missing(missing, monkeypatch):
    open_table.require_table_packages.cache_clear()
    monkeypatch.setattr(open_table, "find_spec", lambda name: None if name == missing else object())
    with pytest.raises(SetupError, match=f"{missing} is not installed") as caught:
        TableReader("/data/tables")
    assert caught.value.hint == "pip install 'scylla-spark[tables]'"
