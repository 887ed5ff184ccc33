"""Quick JSON writes what the slow one does."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scylla_spark.core.records import fast_json

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters()), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.slow
@given(st.dictionaries(st.text(st.characters()), VALUES, max_size=4))
def test_texts_are_those_of_json(value):
    assert fast_json.text(value) == json.dumps(value, separators=(",", ":"), ensure_ascii=False)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_a_number_that_is_not_finite_is_refused(number):
    with pytest.raises(ValueError, match="not JSON compliant"):
        fast_json.text({"a": [number]})


def test_what_is_too_deep_is_an_error_and_no_crash():
    value: dict[str, object] = {}
    for _ in range(100_000):
        value = {"a": value}
    with pytest.raises(RecursionError):
        fast_json.text(value)
