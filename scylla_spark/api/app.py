"""The application: all routes of the API, in front of one shared client of the deployment."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio.to_thread
from fastapi import FastAPI
from starlette.types import ASGIApp

from scylla_spark.api import problems
from scylla_spark.api.access import audit, tokens, whoami
from scylla_spark.api.access.access import Access
from scylla_spark.api.access.own_queues import check_queues
from scylla_spark.api.access.token_mirror import TokenView
from scylla_spark.api.context import Api
from scylla_spark.api.deployment import lateness, overview, queues, spark_workers, system
from scylla_spark.api.deployment.overview import Overviews
from scylla_spark.api.follow import stream
from scylla_spark.api.http import health
from scylla_spark.api.http.limits import Limits
from scylla_spark.api.leases import logs as lease_logs
from scylla_spark.api.leases import outputs as lease_outputs
from scylla_spark.api.leases import workers
from scylla_spark.api.openapi import described
from scylla_spark.api.schedules import actions as schedule_actions
from scylla_spark.api.schedules import backfills, events, fires, notifications
from scylla_spark.api.schedules import definitions as schedules
from scylla_spark.api.schedules import past as past_schedules
from scylla_spark.api.tasks import actions as task_actions
from scylla_spark.api.tasks import bulk_enqueue as task_bulk
from scylla_spark.api.tasks import handlers, lanes, rejected
from scylla_spark.api.tasks import lists as task_lists
from scylla_spark.api.tasks import logs as task_logs
from scylla_spark.api.tasks import outputs as task_outputs
from scylla_spark.api.tasks import single as tasks
from scylla_spark.client.scheduler import Scheduler
from scylla_spark.clock import now_us
from scylla_spark.config.settings import Settings
from scylla_spark.core.tasks.filter import fields_by_kind
from scylla_spark.dashboard.app import Dashboard
from scylla_spark.io.host.deployment_secret import desk_secret

_ROUTES = (
    audit,
    workers,
    task_lists,
    task_bulk,
    task_actions,
    task_logs,
    task_outputs,
    tasks,
    lanes,
    lateness,
    lease_logs,
    lease_outputs,
    notifications,
    queues,
    rejected,
    schedule_actions,
    backfills,
    schedules,
    fires,
    past_schedules,
    events,
    stream,
    handlers,
    spark_workers,
    system,
    tokens,
    overview,
    whoami,
    health,
)


def create_app(settings: Settings, scheduler: Scheduler | None = None) -> ASGIApp:
    """The API of a deployment.

    Args:
        settings: of the deployment, with the broker's address.
        scheduler: a client to ask through, which stays open; default: one of its own.
    """
    app = application(settings, scheduler)
    return guarded(app, settings)


def guarded(app: FastAPI, settings: Settings) -> ASGIApp:
    """The routes behind what bounds requests, and behind what lets only those in who may; the dashboard stands before the latter."""
    api: Api = app.state.api
    view = TokenView(lambda: api.plan.ask(lambda plan: dict(plan.tokens)))
    behind = Access(app, settings.api, view, api.audit.note)
    pages = Dashboard(
        behind,
        settings.api.public_url,
        desk_secret(settings),
        lambda code: api.login_codes.redeemed(code, now_us()),
        fields_by_kind(),
    )
    return Limits(pages, settings.api, api.metrics, settings.outputs.max_bytes, api.lease_servers.pending)


def application(settings: Settings, scheduler: Scheduler | None = None) -> FastAPI:
    """The routes alone, which answer nobody without `guarded` in front of them; see `create_app`."""
    api = Api(settings, scheduler or Scheduler(settings))

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        anyio.to_thread.current_default_thread_limiter().total_tokens = settings.api.threads
        api.pauses.start()
        api.tail.start()
        api.audit.start()
        yield
        api.pauses.stop()
        await api.audit.stop()
        api.lease_servers.close()
        await anyio.to_thread.run_sync(api.tail.stop)
        await anyio.to_thread.run_sync(api.plan.close)
        await anyio.to_thread.run_sync(api.told.close)
        if scheduler is None:
            await anyio.to_thread.run_sync(api.scheduler.close)

    app = FastAPI(
        title="scylla-spark",
        version="1",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
        description="Tasks, schedules and lanes of one deployment.",
    )
    app.state.api = api
    app.state.overviews = Overviews(api)
    app.state.check_queues = check_queues  # handed over, as routes cannot import what imports them
    app.openapi = lambda: described(app)  # type: ignore[method-assign]
    problems.register(app)
    for module in _ROUTES:
        app.router.routes += module.routes.routes  # plain routes: a path that takes another method can say which
    return app
