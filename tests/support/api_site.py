"""The API in front of tables without brokers: what it sends is written down, and a planner of the tests obeys it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from datetime import date
from functools import partial
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal

from scylla_spark.api.app import application, guarded
from scylla_spark.api.follow.waits import came
from scylla_spark.api.tasks import actions
from scylla_spark.client.schedules.calendars import calendar_fields
from scylla_spark.client.schedules.handle import ScheduleHandle
from scylla_spark.client.tasks.handle import TaskHandle
from scylla_spark.clock import now_us
from scylla_spark.config.settings import Settings
from scylla_spark.core.plan.commands.plan_answer import Answer
from scylla_spark.core.records.command import Command
from scylla_spark.core.records.fact import Fact
from scylla_spark.errors import ArgumentError, ConflictError, NotFoundError, UnreachableError
from scylla_spark.io.delta.table_reader import TableReader
from scylla_spark.io.host.deployment_secret import known_desk_secret
from scylla_spark.io.kafka.command_sender import Place, Sender
from tests.support.planner_harness import PlannerHarness, key_of

_ERRORS = {"conflict": ConflictError, "not_found": NotFoundError, "argument": ArgumentError, "rejected": ArgumentError}


class SiteConnection:
    """What stands for `client.connection.Connection`: real tables, and no brokers.

    Attributes:
        sent: commands, in order.
        down: no broker acknowledges anything.
    """

    def __init__(self, path: str) -> None:
        self.settings = Settings(data_dir=path)
        self.readers = TableReader(self.settings.tables_path)
        self.rules = self.readers.rules()
        self.sent: list[Command] = []
        self.down = False
        self.plan = _Plan()
        self.sender = _Sender(self)
        self.log_reader = SimpleNamespace(
            watching=lambda key: nullcontext(), facts=lambda partition, key: [], commands=lambda partition, key: [],
            catch_up=self._caught_up, commands_of_lanes=self._commands_of_lanes,
        )  # fmt: skip

    @property
    def known_secret(self) -> str | None:
        return known_desk_secret(self.settings)

    @property
    def located(self) -> Settings:
        raise self._error()

    @property
    def of_deployment(self) -> Settings:
        raise self._error()

    def owner_address(self, partition: int) -> str:
        return ""

    def send(self, command: Command) -> Place:
        record = self.sender.record(command)
        if self.down:
            raise self._error()
        self.sender.judged.append(record)
        self.sent.append(command)
        return Place(record.partition, 2**60 + len(self.sent))

    def ends(self) -> dict[int, int]:
        raise self._error()

    def _caught_up(self, *_: object) -> None:
        if self.down:
            raise self._error()

    def _commands_of_lanes(self, partition: int, lanes: Any) -> list[Command]:
        self._caught_up()
        return [one for one in self.sent if one.key.ordering_id.encode() in lanes]

    def _unreachable(self, *_: object) -> None:
        raise self._error()

    def _error(self) -> UnreachableError:
        return UnreachableError("Kafka at nowhere did not answer.", hint="Check that the broker runs.")


class _Sender(Sender):
    """Judges as the real one, and writes down what it would send."""

    def __init__(self, connection: SiteConnection) -> None:
        super().__init__(lambda: connection.settings, lambda: connection.rules)
        self._connection = connection
        self.records: list[Any] = []
        self.judged: list[Any] = []  # also those of single tasks

    def begin(self, record: Any) -> Any:
        if self._connection.down:
            return SimpleNamespace(get=self._connection._unreachable, succeeded=lambda: False)
        self.records.append(record)
        self.judged.append(record)
        place = Place(record.partition, len(self.records))
        return SimpleNamespace(get=lambda timeout=None: place, succeeded=lambda: True, value=place)

    def finish(self, futures: list[Any]) -> dict[int, int]:
        for future in futures:
            future.get()
        return {}


class _Plan:
    """Asks a planner that runs here."""

    def __init__(self) -> None:
        self.planner = PlannerHarness(now_us())
        self.told: list[tuple[str, dict[str, Any]]] = []

    def state(self) -> Any:
        return self.planner.shadow

    def groups(self, mark: object) -> list[Any]:
        raise UnreachableError("Kafka did not answer.")

    def ask(self, kind: str, **fields: Any) -> Answer:
        self.planner.now = max(self.planner.now + 1, now_us())
        plain = {name: value for name, value in fields.items() if value is not None}
        code, message, hint, done = (self.planner.ask(kind, **plain) or self._answered())[:4]
        if code in _ERRORS:
            raise _ERRORS[code](message, hint=hint)
        return Answer(done, 0)

    def _answered(self) -> tuple[Any, ...]:
        """The answer, once a dispatcher has said of all that was taken back that it has begun."""
        keys = [key_of(one) for one in self.planner.cancelled]
        self.planner.ends(*(Fact(key, 0, "too_late", finished_us=self.planner.now) for key in keys))
        return list(self.planner.answers.values())[-1]

    def tell(self, kind: str, **fields: Any) -> None:
        self.told.append((kind, fields))


class Site:
    """The API over the tables of a folder.

    Args:
        path: of the tables.
        settings: of the API.
    """

    def __init__(self, path: str, **settings: Any) -> None:
        self.connection = SiteConnection(path)
        scheduler = SimpleNamespace(
            connection=self.connection,
            task=lambda key: TaskHandle(self.connection, key),
            schedule=lambda name, author="": ScheduleHandle(self.connection, name, author),
            put_calendar=self._put_calendar,
            close=lambda: None,
        )  # fmt: skip
        self.settings = Settings(data_dir=path, api=settings)
        self.app = application(self.settings, scheduler)  # type: ignore[arg-type]
        self.app.state.api.plan = SimpleNamespace(
            ask=lambda question: question(self.connection.plan.state()), close=lambda: None
        )
        self.app.state.api.told = SimpleNamespace(tell=self.connection.plan.tell, close=lambda: None)

    def _put_calendar(self, name: str, days: Mapping[date, str]) -> None:
        self.connection.plan.ask("calendar", **calendar_fields(name, days))

    @contextmanager
    def client(self) -> Iterator[Client]:
        """A client that talks to it without a network."""
        bounded = guarded(self.app, self.settings)
        with start_blocking_portal() as portal:
            transport = httpx.ASGITransport(bounded, raise_app_exceptions=False)
            yield Client(portal, httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1"))


def shorten_patience(patch: pytest.MonkeyPatch) -> None:
    """Whoever waits for a dispatcher's answer to a cancel, which nobody gives here, waits a thousandth of the time."""
    patch.setattr(actions, "came", lambda future, timeout_s: came(future, timeout_s / 1000))


class Client:
    """Asks, and waits for the answer."""

    def __init__(self, portal: BlockingPortal, inner: httpx.AsyncClient) -> None:
        self._portal = portal
        self._inner = inner
        self.cookies = inner.cookies

    def request(self, method: str, path: str, **more: Any) -> httpx.Response:
        return self._portal.call(partial(self._inner.request, method, path, **more))

    def __getattr__(self, method: str) -> Callable[..., httpx.Response]:
        return partial(self.request, method.upper())


def kind(answer: Any) -> str:
    """The type of a problem document."""
    assert answer.headers["content-type"] == "application/problem+json", (answer.status_code, answer.text)
    found: Mapping[str, Any] = answer.json()
    assert found["status"] == answer.status_code
    return str(found["type"])
