"""Planning as a duty of a process: one planner is active, every other one waits until that has gone."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from kafka.errors import KafkaError

from scylla_spark.config.settings import Settings
from scylla_spark.core.plan.state.unwritten_changes import StateInDoubt
from scylla_spark.core.plan.suspect_inputs import Doubts
from scylla_spark.errors import ConfigError, SchedulerError
from scylla_spark.io.delta.passing_errors import is_passing
from scylla_spark.io.delta.table_reader import TableReader
from scylla_spark.io.kafka.sole_table_writer import SoleHolder
from scylla_spark.log import get_logger
from scylla_spark.services.metrics_server import MetricsServer
from scylla_spark.services.plan.metrics import PlanMetrics
from scylla_spark.services.plan.planner_clock import ClockIsWrong
from scylla_spark.services.plan.planning_loop import PlanTenure
from scylla_spark.services.service import Role

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = get_logger("plan")

_AGAIN_S: Final = 1.0
_CLOCK_AGAIN_S: Final = 3.0
_POLL_S: Final = 0.5


class PlanService:
    """The planner of a process.

    Args:
        settings: with the broker's address.
        server: shows metrics.
    """

    def __init__(self, settings: Settings, server: MetricsServer) -> None:
        self._settings = settings
        self._metrics = PlanMetrics()
        self._server = server
        self._stop = threading.Event()
        self._tenure: PlanTenure | None = None
        self._doubts = Doubts()
        self._waits = threading.Event()
        self._told_of_clock = False
        self._why: str | None = None  # planning has ended and begins again; None: it has begun
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="planner", daemon=True)

    def start(self) -> None:
        """Begins to plan, or to wait for the planner that does."""
        self._server.show(self._metrics.registry)
        self._thread.start()

    def attach(self, spark: SparkSession) -> None:
        """It needs no session."""

    def ready(self) -> bool:
        """Returns True if it plans, or another does and this one stands by."""
        return self.trouble() is None

    def trouble(self) -> str | None:
        """Returns a sentence that says why it neither plans nor stands by for the planner that does; None: it does one of them."""
        tenure = self._tenure
        if self._waits.is_set() or (tenure is not None and tenure.active):
            return None
        if self._why is not None:
            return f"Planning begins again: {self._why}"
        return "It reads the tables and its log."

    def alive(self) -> bool:
        """Returns True if it plans or waits.

        Raises:
            BaseException: what ended it.
        """
        if self._failure is not None:
            raise self._failure
        return self._thread.ident is None or self._thread.is_alive()

    def stop(self) -> None:
        """Ends planning; nothing is lost, the next planner goes on from the log."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(timeout=30)

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                try:
                    self._hold()
                except ConfigError:
                    raise
                except ClockIsWrong as error:
                    self._wait_for_clock(error)
                except StateInDoubt as doubt:
                    self._begin_again(doubt)
                except Exception as error:
                    if not (isinstance(error, SchedulerError | KafkaError) or is_passing(error)):
                        raise
                    self._why = str(error)
                    log.warning("planning begins again", why=self._why)
                    self._stop.wait(_AGAIN_S)
        except BaseException as error:
            self._failure = error
            log.exception("the planner ended")

    def _wait_for_clock(self, error: ClockIsWrong) -> None:
        """Says once that the clock is wrong; the next tenure finds out whether it still is."""
        if not self._told_of_clock:
            log.error("the clock is wrong: nothing is planned until it is right", why=str(error))
        self._told_of_clock, self._why = True, str(error)
        self._stop.wait(_CLOCK_AGAIN_S)

    def _begin_again(self, doubt: StateInDoubt) -> None:
        """Remembers what was being done, for the next tenure to set it aside."""
        self._metrics.met_defect()
        wait_s = self._doubts.note(doubt)
        self._why = f"a defect of scylla-spark, see the log. {doubt}"
        log.exception(
            "a defect of scylla-spark: planning begins again from its log, and sets aside what it was at",
            schedule=doubt.schedule,
            input=doubt.input,
            wait_s=wait_s,
        )
        self._stop.wait(wait_s)

    def _hold(self) -> None:
        """Waits for the right to plan, and plans until it is lost.

        Raises:
            NotFoundError: there are no tables yet.
            ConfigError: the settings say another partition count than the tables: the log would be looked for among those of tasks.
        """
        TableReader.of(self._settings).agreed_rules(self._settings.partitions)
        holder = SoleHolder(self._settings, "plan", self._settings.topics.schedules)
        try:
            while not holder.held(_POLL_S):
                if self._stop.is_set():
                    return
                self._waits.set()
            self._waits.clear()
            self._plan(holder)
        finally:
            self._waits.clear()
            holder.release()

    def _plan(self, holder: SoleHolder) -> None:
        tenure = PlanTenure(self._settings, holder, self._metrics, self._doubts)
        self._tenure = tenure
        try:
            tenure.run(self._stop)
        finally:
            self._tenure = None
            if tenure.active:  # its fence had shown that the clock was right
                self._told_of_clock = False
            self._metrics.is_active(False, 0)
            self._metrics.tokens({})
            tenure.close()


PLAN: Final = Role(PlanService, lambda settings: False, lambda metrics: metrics.plan_port)
