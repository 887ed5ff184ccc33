"""`scylla-spark ui` and `scylla-spark top` against the API on a real port."""

from __future__ import annotations

import io
import json
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from rich.console import Console

from scylla_spark.cli import one_command as cli
from scylla_spark.cli.commands.top import NOTHING, screen, span
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.schemas import TASKS
from tests.support.api_site import Site
from tests.support.dashboard_site import form_token, token_of
from tests.support.delta_tables import append, at, make, task
from tests.support.served_site import served

HOSTILE = "\x1b[2J\u202eevil"
OVERVIEW = {
    "at": "2026-01-31T09:00:00Z",
    "states": dict.fromkeys(
        (
            "scheduled",
            "ready",
            "running",
            "retry_wait",
            "succeeded",
            "failed",
            "aborted",
            "cancelled",
            "expired",
            "duplicate",
        ),
        1234,
    ),
    "queues": [{"name": HOSTILE, "states": {"ready": 5}}],
    "lately": {"started": 60, "ended": 59, "failed": 1, "p50_ms": 2.4, "p99_ms": 1500.0},
    "overdue": {"count": 7, "oldest": None, "late_ms": 245_000.0, "drain_s": 3.0},
    "banners": [{"kind": "broker_away", "text": "Kafka does not answer.", "hint": "See."}],
}


@pytest.fixture
def site(tmp_path):
    make(f"{tmp_path}/tables")
    append(f"{tmp_path}/tables", TASKS, [task(TaskKey(at(10), "a", "k"), 1, queue="mail")])
    return Site(str(tmp_path))


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)  # no stray settings file

    def call(*arguments):
        code = cli.run([*arguments])
        out, err = capsys.readouterr()
        return code, out, err

    return call


def drawn(overview, trouble: str = "") -> str:
    console = Console(file=io.StringIO(), width=160, no_color=True)
    console.print(screen(overview, trouble))
    return console.file.getvalue()


def test_ui_prints_a_plain_link_where_no_token_is_needed(run, site):
    with served(site) as url:
        assert run("ui", "--print", "--url", url)[:2] == (0, f"{url}/ui/now\n")


@pytest.mark.slow
def test_ui_gives_a_link_that_logs_in_once_where_tokens_are_needed(run, site, tmp_path):
    (tmp_path / "token").write_text(token_of(site, "read"))
    with served(site) as url:
        code, out, _ = run("ui", "--print", "--url", url, "--token-file", str(tmp_path / "token"))
        link = next(
            line for line in out.splitlines() if line.startswith("http")
        )  # the server of this process logs there, too
        assert (code, "ss_" in link) == (0, False), "the token itself stands in no address"
        with httpx.Client(trust_env=False) as browser:
            for status in (303, 401):  # it logs in once
                page = browser.get(link)
                fields = {
                    "form_token": form_token(page, "/ui/login"),
                    "code": parse_qs(urlsplit(link).query)["code"][0],
                }
                assert browser.post(f"{url}/ui/login", data=fields, headers={"Origin": url}).status_code == status
                assert browser.get(f"{url}/ui/now").status_code == 200


def test_ui_opens_the_browser(run, site, monkeypatch):
    opened = []
    monkeypatch.setattr("webbrowser.open", lambda link: opened.append(link) or True)
    with served(site) as url:
        code, out, err = run("ui", "--url", url)
        assert (code, out, opened) == (0, "", [f"{url}/ui/now"])
    assert "open in the browser" in err


def test_ui_without_the_token_that_is_needed_says_what_to_do(run, site):
    token_of(site, "read")
    with served(site) as url:
        code, out, err = run("ui", "--print", "--url", url)
    assert (code != 0, out) == (True, "")
    assert "--token-file" in err


def test_whoever_names_no_address_is_asked_for_one(run):
    code, _, err = run("top")
    assert code == 2
    assert "--url" in err


def test_an_api_that_is_not_there_is_unreachable(run):
    code, _, err = run("top", "--once", "--url", "http://127.0.0.1:9")
    assert code == 5
    assert "127.0.0.1:9" in err


@pytest.mark.slow
def test_top_shows_its_numbers_once_where_no_terminal_reads(run, site):
    with served(site) as url:
        code, out, err = run("top", "--url", url)
        assert code == 0
        assert "mail" in out
        assert "start lateness" in err
        assert json.loads(run("top", "--url", url, "-o", "json")[1])["states"]["scheduled"] == 1


def test_the_picture_has_everything_and_obeys_no_name(run):
    text = drawn(OVERVIEW)
    for part in (
        "Kafka does not answer.",
        "p50 2 ms, p99 1.5 s",
        "7 overdue, the oldest 4 min 5 s, drained in 3.0 s",
        "1,234",
    ):
        assert part in text
    assert "\x1b[2J" not in text
    assert "\u202e" not in text


def test_numbers_that_grow_old_say_so():
    assert "These numbers are of 2026-01-31T09:00:00Z: gone" in drawn(OVERVIEW, "gone")


def test_a_refresh_that_is_too_quick_is_refused(run):
    assert run("top", "--every", "10ms", "--url", "http://127.0.0.1:9")[0] == 2


SPANS = {
    None: NOTHING, -5: "0 ms", 999: "999 ms", 59_999: "60.0 s", 60_000: "1 min 0 s", 3_700_000: "1 h 1 min", 90_000_000: "1 d 1 h",
}  # fmt: skip


@pytest.mark.parametrize(("ms", "text"), SPANS.items())
def test_spans_are_written_in_the_units_that_matter(ms, text):
    assert span(ms) == text
