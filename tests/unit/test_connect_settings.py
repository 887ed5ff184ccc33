"""What may be said of a server of Spark Connect, and what children are told of it."""

import pytest
from pydantic import ValidationError

from scylla_spark.config.connect import Connect
from scylla_spark.executors.connect.sessions import Endpoint

_SALT = "0b9f6e0e-3f0c-4a3e-9d34-1f2f6b7d8e90"


@pytest.mark.parametrize("url", ["", "own", "sc://spark:15002", "sc://spark:15002/"])
def test_a_server_is_our_own_or_named_by_its_address(url):
    assert Connect(url=url).url == url


@pytest.mark.parametrize(
    "url", ["local", "http://spark", "sc://", "sc:///", "sc://spark/;token=x", "sc://spark:1/x", "sc://a;user_id=b"]
)
def test_whatever_else_is_no_address(url):
    with pytest.raises(ValidationError, match=r"connect\.url"):
        Connect(url=url)


@pytest.mark.parametrize("token", ["", "a;session_id=b", "a=b", "a\nb"])
def test_a_token_says_nothing_but_itself(token):
    with pytest.raises(ValidationError, match=r"connect\.token"):
        Connect(url="sc://spark", token=token)


def test_sessions_of_invocations_and_of_pools_have_names_of_their_own():
    one = Endpoint("sc://spark:15002/", "t t", _SALT, own=False)
    other = one._replace(salt=_SALT.replace("0b9f", "0b9e"))
    assert len({one.session_id(1), one.session_id(2), other.session_id(1)}) == 3
    assert one.session_id(1) == one.session_id(1)
    assert one.address(1) == f"sc://spark:15002/;token=t%20t;user_id=scylla-spark;session_id={one.session_id(1)}"
