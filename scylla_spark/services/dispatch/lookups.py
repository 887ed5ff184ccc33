"""What the engine asks of the tables: which keys have ended, who bears a name, and the next tasks of a lane."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

from scylla_spark.core.engine.action import AskNames, Reload
from scylla_spark.core.engine.engine import Engine
from scylla_spark.core.tables.progress import Basis, Mark, Tenure
from scylla_spark.core.tasks.key import Name, TaskKey
from scylla_spark.core.tasks.stored_records import ScanRow
from scylla_spark.io.delta.passing_errors import is_passing
from scylla_spark.log import get_logger
from scylla_spark.services.dispatch.mailbox import Mailbox
from scylla_spark.services.dispatch.scanner import OpenTasks, pieces
from scylla_spark.services.dispatch.stepwise_work import Ask, Pause, Read, Runner, Steps

log = get_logger("dispatch")

AGAIN_S = 1.0
T = TypeVar("T")


class Lookups:
    """Reads and tells the engine; its methods are called in the engine's thread and return at once.

    Every answer names the tenure in which it was asked for and how far the tables were: the engine drops what is too old.

    Args:
        tables: what is read.
        mailbox: the engine's.
        engine: asks, and is told.
        runner: carries out the reading; a reload may take seconds, so look-ups and names stand in lines of their own.
    """

    def __init__(self, tables: OpenTasks, mailbox: Mailbox, engine: Engine, runner: Runner) -> None:
        self._tables = tables
        self._mailbox = mailbox
        self._engine = engine
        self._runner = runner
        self._reloads: deque[Reload] = deque()
        self._names: deque[AskNames] = deque()
        self._late_reloads = _Later(runner, self._reload_all)
        self._late_names = _Later(runner, self._ask_all_names)
        self._late_lookups = _Later(runner, self._look_up_all)

    def look_up(self, tenure: Tenure, keys: list[TaskKey]) -> None:
        """Which of these have ended; the engine gets `looked_up`."""
        self._look_up_all([(tenure, keys)])

    def _look_up_all(self, questions: Iterable[tuple[Tenure, list[TaskKey]]]) -> None:
        for tenure, keys in questions:
            self._runner.run("lookup", self._look_up(tenure, keys))

    def reload(self, item: Reload) -> None:
        """The next tasks of a lane; the engine gets `reloaded`."""
        self._reload_all([item])

    def _reload_all(self, items: Iterable[Reload]) -> None:
        self._reloads.extend(items)
        self._runner.run("reload", self._reload())

    def ask_names(self, item: AskNames) -> None:
        """Which open tasks bear these names; the engine gets `named`."""
        self._ask_all_names([item])

    def _ask_all_names(self, items: Iterable[AskNames]) -> None:
        self._names.extend(items)
        self._runner.run("names", self._ask_names())

    def _ask_names(self) -> Steps[None]:
        """Reads what was asked for by now, all names of a partition together."""
        wanted: dict[Tenure, list[AskNames]] = {}
        while self._names:
            item = self._names.popleft()
            wanted.setdefault(item.tenure, []).append(item)
        for tenure, items in wanted.items():
            if (yield self._is_held(tenure)):
                yield from _or_later(self._read_names(tenure, items), self._late_names, items)

    def _read_names(self, tenure: Tenure, items: list[AskNames]) -> Steps[None]:
        mark = yield from self._mark(tenure)
        ready = [item.names for item in items if item.covering < mark.tasks_offset]
        asked = [name for names in ready if names is not None for name in names]
        if asked:
            yield from self._tell_bearers(tenure, asked, mark)
        if None in ready:
            yield from self._tell_bearers(tenure, None, mark)
        # of the others the tables do not hold yet what was not kept
        self._late_names.add([item for item in items if item.covering >= mark.tasks_offset])

    def _tell_bearers(self, tenure: Tenure, names: list[Name] | None, mark: Mark) -> Steps[None]:
        found = yield from _until_it_works(lambda: self._tables.bearers(tenure.partition, names, mark))
        self._mailbox.post(lambda now: self._engine.named(tenure, names, found, mark.basis, now))

    def _is_held(self, tenure: Tenure) -> Ask:
        return Ask(lambda _now: self._engine.held(tenure) is not None)

    def _look_up(self, tenure: Tenure, keys: list[TaskKey]) -> Steps[None]:
        try:
            yield from self._read_ended(tenure, keys)
        except Exception as error:
            if (yield self._is_held(tenure)):
                _put_off(self._late_lookups, [(tenure, keys)], error)

    def _read_ended(self, tenure: Tenure, keys: list[TaskKey]) -> Steps[None]:
        basis = (yield from self._mark(tenure)).basis
        found = yield from _until_it_works(lambda: self._tables.known(keys))
        self._mailbox.post(lambda now: self._engine.looked_up(tenure, found, basis, now))

    def _reload(self) -> Steps[None]:
        """Reads what was asked for by now, all lanes of a partition together."""
        wanted: dict[Tenure, list[Reload]] = {}
        while self._reloads:
            item = self._reloads.popleft()
            wanted.setdefault(item.tenure, []).append(item)
        for tenure, items in wanted.items():
            if (yield self._is_held(tenure)):
                yield from _or_later(self._read_lanes(tenure, items), self._late_reloads, items)

    def _read_lanes(self, tenure: Tenure, items: list[Reload]) -> Steps[None]:
        mark = yield from self._mark(tenure)
        ready = {item.ordering_id: item for item in items if item.covering < mark.tasks_offset}
        if ready:
            yield from self._load(tenure, ready, mark)
        # of the others the tables do not hold yet what the lane let go of
        self._late_reloads.add([item for item in items if item.covering >= mark.tasks_offset])

    def _load(self, tenure: Tenure, ready: Mapping[str, Reload], mark: Mark) -> Steps[None]:
        lanes = {ordering_id: (item.after, item.most) for ordering_id, item in ready.items()}
        until = max(item.until_us for item in ready.values())
        found = yield from _until_it_works(lambda: self._tables.lanes(tenure.partition, lanes, until, mark))
        for ordering_id, (rows, more) in found.items():
            self._offer(tenure, ordering_id, rows, mark.basis, more=more)

    def _offer(self, tenure: Tenure, ordering_id: str, rows: Sequence[ScanRow], basis: Basis, *, more: bool) -> None:
        parts = list(pieces(rows)) or [rows]
        for number, part in enumerate(parts, 1):
            offer = partial(self._engine.reloaded, tenure, ordering_id, part, basis)
            self._mailbox.post(partial(offer, more=more, last=number == len(parts)))

    def _mark(self, tenure: Tenure) -> Steps[Mark]:
        progress: Mapping[int, Mark] = yield from _until_it_works(self._tables.marks)
        return progress.get(tenure.partition, Mark())


class _Later(Generic[T]):
    """Questions that are asked again a second later, all of them together, however many wait.

    Args:
        runner: has the time.
        ask: asks them again.
    """

    def __init__(self, runner: Runner, ask: Callable[[list[T]], None]) -> None:
        self._runner = runner
        self._ask = ask
        self._items: deque[T] = deque()
        self._is_set = False

    def add(self, items: Iterable[T]) -> None:
        """Takes some more."""
        self._items.extend(items)
        if self._items and not self._is_set:
            self._is_set = True
            try:
                self._runner.later(AGAIN_S, self._ask_all)
            except RuntimeError as error:  # no thread could be started; what comes next tries again
                self._is_set = False
                log.warning("questions wait longer", questions=len(self._items), error=repr(error))

    def _ask_all(self) -> None:
        self._is_set = False  # before they are taken: what is added from now on waits for a time of its own
        taken = []
        while self._items:
            taken.append(self._items.popleft())
        if taken:
            self._ask(taken)


def _or_later(reading: Steps[None], later: _Later[T], items: list[T]) -> Steps[None]:
    """Reads what was asked about one partition. Where that fails for ever those questions wait, and no other partition's do."""
    try:
        yield from reading
    except Exception as error:
        _put_off(later, items, error)


def _put_off(later: _Later[T], items: list[T], error: Exception) -> None:
    log.error("questions cannot be answered, and are asked again", questions=len(items), error=repr(error)[:300])
    later.add(items)


def _until_it_works(read: Callable[[], Any]) -> Steps[Any]:
    """Reads until storage answers; what asked waits meanwhile, and all that is asked behind it, which would fare no better."""
    while True:
        try:
            return (yield Read(read))
        except Exception as error:
            if not is_passing(error):
                raise
            log.warning("look-up failed, tried again", error=repr(error)[:300])
        yield Pause(AGAIN_S)
