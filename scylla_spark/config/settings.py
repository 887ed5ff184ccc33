"""Settings: every default once, durations typed, unknown keys refused.

Precedence: arguments (command-line flags) > environment (`SCYLLASPARK_KAFKA__BOOTSTRAP_SERVERS=…`) > `.env` >
`scyllaspark.toml` (or the file given) > the defaults below.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    Field,
    IPvAnyNetwork,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_settings import (
    BaseSettings,
    DotEnvSettingsSource,
    EnvSettingsSource,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    TomlConfigSettingsSource,
)

from scylla_spark.config.assignments import quoted
from scylla_spark.config.connect import Connect
from scylla_spark.config.home_folder import FilePath, ModuleOrFile, OptionalFolder, PlaceOfTables, PlaceOfWatched
from scylla_spark.config.kafka import Kafka
from scylla_spark.config.notify import Notify
from scylla_spark.config.section import Duration, Section
from scylla_spark.config.spark import Spark
from scylla_spark.config.spark_workers import SparkWorkers
from scylla_spark.defaults import (
    API_PORT,
    GRACE,
    LONGEST_RUN_S,
    MAX_CHILDREN,
    MIN_CHILDREN,
    MOST_RETRIES,
    RETENTION,
    RETRIES,
    RETRY_BASE,
    RETRY_CAP,
    STORE_TIMEOUT,
)
from scylla_spark.definitions.queue import Queue
from scylla_spark.duration import duration
from scylla_spark.errors import ConfigError
from scylla_spark.name import RULE, is_name

DEFAULT_FILE = Path("scyllaspark.toml")
_OTHER_VARIABLES = {
    "JARS_DIR",
    "IVY_SETTINGS",
    "SUBMIT_ARGS",
    "FAILPOINTS",
    "LISTENING",
    "URL",
}  # jar cache, spark-submit.sh, fail points, commands


def _start_values(value: object) -> object:
    """The table of queues with the name in each; values of the environment are texts."""
    if not isinstance(value, Mapping):
        return value
    return {name: _start_value(name, item) if isinstance(item, Mapping) else item for name, item in value.items()}


def _start_value(name: object, given: Mapping[str, Any]) -> dict[str, Any]:
    read = {
        field: Queue.value_of(field, item) if isinstance(item, str) and field in Queue.model_fields else item
        for field, item in given.items()
    }
    if read.get("name", name) != name:
        raise ValueError(f"the queue {name!r} has another name: leave out `name`")
    return read | {"name": name}


_Topic = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,249}$")]
_LEAST_SESSION: Final = timedelta(
    seconds=6
)  # membership is confirmed every two seconds, and holds until three before its end
_LEAST_PAUSE: Final = timedelta(milliseconds=50)
_LEAST_KEPT: Final = timedelta(days=1)
_LEAST_STORE_TIMEOUT: Final = timedelta(milliseconds=100)


class Topics(Section):
    """Topic names; `outcomes` has one partition more than `tasks`, for the planner."""

    tasks: _Topic = "tasks"
    outcomes: _Topic = "outcomes"
    schedules: _Topic = "schedules"
    logs: _Topic = "logs"
    replication: int = Field(1, ge=1, description="replication factor of topics made by `init`; 3 in production")
    retention: Duration = Field(duration("7d"), description="Kafka's retention; must exceed the longest lag of ingest")

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all topics of the deployment."""
        return self.tasks, self.outcomes, self.schedules, self.logs


class Tables(Section):
    """Where the Delta tables are."""

    path: PlaceOfTables = Field("", description="folder or URI of the tables; empty: <data_dir>/tables")
    store_timeout: Duration = Field(
        duration(STORE_TIMEOUT),
        ge=_LEAST_STORE_TIMEOUT,
        description="time limit of each request to an object store, for our tables and for those that triggers watch",
    )


class Ingest(Section):
    """Kafka to Delta."""

    trigger: Duration = Field(
        duration("10s"),
        description="pause between micro-batches; lateness does not depend on it; from 5s on few records wait for three",
    )
    max_records: int = Field(400_000, ge=1, description="most records of one micro-batch")
    max_bytes: int = Field(
        256 * 1024 * 1024,
        ge=1,
        description="most bytes of records that are judged and merged at once; a larger batch takes several turns",
    )
    grace: Duration = Field(
        duration(GRACE), description="how far in the past a scheduled time may lie when it is enqueued"
    )
    retention: Duration = Field(
        duration(RETENTION), description="older tasks are refused and history older than this is purged"
    )
    near: Duration = Field(
        duration("2h"),
        description="tasks due later wait in `deferred` until their time is near; more than twice dispatch.look_ahead",
    )
    close_after: Duration = Field(
        duration("2h"), description="how old an hour must be before it is closed, once all its tasks have ended"
    )
    exclusion: Literal["auto", "lock", "group"] = Field(
        "auto",
        description="what keeps a second ingest from the tables: a lock file, a consumer group (on shared storage), or by their path",
    )
    available_now: bool = Field(
        default=False,
        description="write what the topics hold when it starts, then end; for a job that runs every so often (`run ingest`)",
    )
    default_handler: str | None = Field(
        None, description="handler of records that name none; unset: they wait for a lease"
    )


class History(Section):
    """How long rows are kept that no task depends on. Rows of a run whose hour may hold open tasks stay in any case."""

    fires: Duration | None = Field(
        None, ge=_LEAST_KEPT, description="rows of `fires`; left out: as long as ingest.retention"
    )
    jobs: Duration | None = Field(
        None, ge=_LEAST_KEPT, description="rows of `jobs`; left out: as long as ingest.retention"
    )
    rejected: Duration | None = Field(
        None, ge=_LEAST_KEPT, description="rows of `rejected`; left out: as long as ingest.retention"
    )
    audit: Duration | None = Field(None, ge=_LEAST_KEPT, description="rows of `audit`; left out: without end")


class Dispatch(Section):
    """When and where tasks run."""

    group_id: str = Field(
        "scylla-spark-dispatch", min_length=1, description="consumer group whose assignment is the ownership"
    )
    instance_id: str | None = Field(
        None, description="static member name; a restarted instance takes its partitions back at once"
    )
    session_timeout: Duration = Field(
        duration("10s"),
        ge=_LEAST_SESSION,
        description="a dispatcher silent for this long loses its partitions; three seconds before that it starts nothing",
    )
    look_ahead: Duration = Field(duration("5m"), description="how far ahead of now tasks are held in memory")
    lane_depth: int = Field(200, ge=1, description="tasks of one lane loaded at a time")
    scan_budget: int = Field(200_000, ge=1, description="most tasks of one queue that a scan loads")
    max_loaded: int = Field(
        1_000_000,
        ge=1,
        description="kilobytes of tasks in memory above which what cannot start is left to the tables, and new ones wait in Kafka",
    )
    max_in_flight: int = Field(1_000, ge=1, description="released and unfinished tasks per partition")
    scan: Literal["spark", "reader"] = Field(
        "spark",
        description="what reads due tasks where there are many: Spark, or a reader without a JVM, with which dispatch starts in seconds",
    )
    runs_on: Literal["auto", "local", "spark"] = Field(
        "auto",
        description="where handlers run that do not say so: beside the dispatcher, or in Spark workers; auto: in Spark workers if the "
        "master is a cluster and dispatchers have Spark workers",
    )
    trigger: Duration = Field(
        duration("5s"), description="pause between look-ahead scans; a taken partition is scanned at once"
    )
    drain: Duration = Field(duration("10s"), description="how long running tasks may finish at shutdown or rebalance")
    min_children: int = Field(MIN_CHILDREN, ge=1, description="child processes of the local pool kept warm")
    max_children: int = Field(MAX_CHILDREN, ge=1, description="most child processes of the local pool")
    pass_environment: tuple[str, ...] = Field(
        (),
        description='environment variables that handlers get beside the usual ones: names or patterns such as "AWS_*"; never '
        "SCYLLASPARK_*",
    )
    sandbox_paths: tuple[FilePath, ...] = Field(
        (),
        description="files and folders that sandboxed handlers can read beside the system, Python and what they import",
    )
    timeout: Duration = Field(
        duration("5m"), gt=timedelta(), description="longest run of an attempt, unless handler or task say otherwise"
    )
    longest_run: Duration = Field(
        duration(LONGEST_RUN_S), description="how far a handler can extend the time of an attempt, from its start"
    )
    max_retries: int | None = Field(
        RETRIES,
        ge=0,
        le=MOST_RETRIES,
        description="attempts after the first; none in TOML: leave out, JSON null: for ever",
    )
    retry_base: Duration = Field(
        duration(RETRY_BASE), description="wait before the second attempt (doubles per attempt)"
    )
    retry_cap: Duration = Field(duration(RETRY_CAP), description="longest wait before an attempt")
    least_wait: Duration = Field(
        duration("100ms"),
        description="shortest wait between two attempts of a task, for every policy and handler",
    )
    stall: Duration = Field(
        duration("10s"),
        description="release stops while the oldest unrecorded outcome is older than this; Kafka needs 9 s to notice a dead broker",
    )


class Plan(Section):
    """When schedules fire."""

    ahead: Duration = Field(
        duration("10s"),
        description="how early a run is handed over that nothing can block any more; it still starts at its time",
    )
    poll: Duration = Field(
        duration("500ms"), ge=_LEAST_PAUSE, description="pause between two looks at a watched table or topic"
    )
    tables: dict[str, PlaceOfWatched] = Field(
        {}, description="folder or URI of watched tables that triggers call by a name"
    )
    allowed_places: tuple[PlaceOfWatched, ...] = Field(
        (),
        description="folders and URIs under which tables must be that triggers call by their place; empty: anywhere",
    )
    allowed_topics: tuple[str, ...] = Field(
        (), description="topics that triggers may watch, by name, or by a prefix that ends with `*`; empty: any"
    )


class Api(Section):
    """The HTTP API, in a process of its own."""

    host: str = Field("127.0.0.1", description="address to listen on")
    port: int | None = Field(
        None,
        ge=0,
        le=65535,
        description=f"empty: the port it had before, else {API_PORT}, else a free one (printed at start); 0: any free port",
    )
    trusted_network: bool = Field(
        False, description="clients of another address than loopback come through a proxy with TLS and a login"
    )
    tokens: Literal["when_defined", "always"] = Field(
        "when_defined",
        description="who needs a token: everybody once one is stored, or also before "
        "(then other addresses than loopback are fine, with an https public_url)",
    )
    token_rate: float = Field(
        100, gt=0, allow_inf_nan=False, description="requests per second of one token, in each process of the API"
    )
    token_burst: int = Field(200, ge=1, description="and how many at once after a pause")
    allowed_hosts: tuple[str, ...] = Field(
        (),
        description="more names by which it may be asked (Host header), besides addresses, localhost and this machine's name",
    )
    public_url: str | None = Field(
        None,
        description="where people reach it, such as https://tasks.example.com (so TLS is there); messages then hold links to tasks",
    )
    max_body: int = Field(
        1024 * 1024,
        ge=1024,
        description="most bytes of a request; of a bulk, which is read as it comes, of one line or batch",
    )
    max_bulk: int = Field(256 * 1024 * 1024, ge=1024, description="most bytes of a bulk")
    max_connections: int = Field(
        1024, ge=1, description="connections at once; for further ones the longest idle ones are closed"
    )
    max_per_address: int = Field(
        768,
        ge=1,
        description="connections of one client address at once, or requests of one that comes through a trusted proxy",
    )
    trusted_proxies: tuple[IPvAnyNetwork, ...] = Field(
        (),
        description="addresses or networks of proxies whose `Forwarded` or `X-Forwarded-For` names the client; of others they mean nothing",
    )
    max_requests: int = Field(
        256,
        ge=1,
        description="requests at work at once, besides those that only wait, keep leases or ask whether the server lives",
    )
    max_waiting: int = Field(
        512,
        ge=1,
        description="requests that wait at once: idle workers, streams, results; fewer than connections leave room for others",
    )
    threads: int = Field(
        16, ge=1, description="requests that ask Kafka or the tables at once; others wait for their turn"
    )


class Desk(Section):
    """Where dispatchers take the calls of workers from the API. Keep it in a private network: it is not encrypted."""

    host: str = Field("127.0.0.1", description="address to listen on, which processes of the API reach")
    port: int = Field(0, ge=0, le=65535, description="0: any free port")
    secret: SecretStr | None = Field(
        None,
        description="what dispatchers, planner and API know; missing: kept in a file of the data folder, so set it for several machines",
    )


class Metrics(Section):
    """Prometheus metrics, and read-only state of a dispatcher, over HTTP."""

    host: str = "127.0.0.1"
    port: int = Field(
        0, ge=0, le=65535, description="of `up`, and of a dispatcher; 0: any free port (printed at start)"
    )
    ingest_port: int = Field(
        0, ge=0, le=65535, description="the same for an ingest in a process without dispatch; it serves metrics only"
    )
    plan_port: int = Field(0, ge=0, le=65535, description="the same for a planner in a process of its own")
    api_port: int = Field(
        0,
        ge=0,
        le=65535,
        description="the same for what starts the API in a process of its own; the API serves its metrics itself",
    )
    allowed_hosts: tuple[str, ...] = Field(
        (), description="more names by which it may be asked (Host header), besides its address and localhost"
    )
    payload_labels: tuple[str, ...] = Field(
        (), description="top-level payload keys that become labels of start-delay metrics"
    )
    tags: tuple[Annotated[str, Field(min_length=1, max_length=64)], ...] = Field(
        (),
        max_length=50,
        description='tags by which attempts are counted besides, such as ["billing", "team:*"]; a * at the end stands for any rest',
    )

    @field_validator("tags")
    @classmethod
    def _check_tags(cls, tags: tuple[str, ...]) -> tuple[str, ...]:
        wrong = [tag for tag in tags if not tag.isprintable() or tag != tag.strip()]
        if wrong:
            raise ValueError(f"metrics.tags holds what no task can have as a tag: {wrong[0]!r}")
        return tags


class Broker(Section):
    """The embedded broker of one machine."""

    auth: bool = Field(
        False,
        description="whether its clients must know the secret kept in its folder; off: every user of this machine may send and read",
    )


class Log(Section):
    """What the processes log about themselves."""

    format: Literal["auto", "plain", "json"] = Field(
        "auto", description="json: one object per line; plain: for people; auto: plain on a terminal, else json"
    )
    level: Literal["debug", "info", "warning", "error"] = "info"
    file: FilePath | None = Field(None, description="default: standard error")


class Logs(Section):
    """What handlers print and log, kept by attempt."""

    enabled: bool = Field(True, description="whether it is kept; off: it is thrown away")
    line: int = Field(8 * 1024, ge=80, le=16 * 1024, description="most bytes of a line; more is cut")
    head: int = Field(
        256 * 1024,
        ge=4 * 1024,
        le=64 * 1024 * 1024,
        description="first bytes of an attempt that are kept, as they come",
    )
    tail: int = Field(
        768 * 1024,
        ge=128 * 1024,
        le=64 * 1024 * 1024,
        description="last bytes of an attempt that are kept beyond that, once it has ended",
    )
    buffer: int = Field(
        16 * 1024 * 1024,
        ge=1024 * 1024,
        description="most bytes of lines that wait for Kafka; more are dropped and counted",
    )
    trigger: Duration = Field(
        duration("30s"),
        ge=_LEAST_PAUSE,
        description="pause between two looks of ingest at the topic; who follows lines does not depend on it",
    )


class Outputs(Section):
    """Files that attempts leave behind (`ctx.output`)."""

    path: OptionalFolder = Field(
        "", description="folder, the same for dispatchers, ingest and API; empty: <data_dir>/outputs"
    )
    max_bytes: int = Field(256 * 1024 * 1024, ge=1, description="most bytes of one attempt's files together")


class Otel(Section):
    """OpenTelemetry: where spans go, and which are made, its own environment variables say (OTEL_…)."""

    enabled: bool = Field(
        False,
        description="whether each attempt is a span; handlers see the variables OTEL_* then. Needs the extra `otel`",
    )


class Settings(BaseSettings):
    """All settings of one deployment."""

    model_config = SettingsConfigDict(
        env_prefix="SCYLLASPARK_",
        env_nested_delimiter="__",
        env_file=".env",
        env_parse_none_str="null",
        hide_input_in_errors=True,
        dotenv_filtering="match_prefix",  # a `.env` is shared with other programs
        extra="forbid",
        frozen=True,
        validate_default=True,
    )

    data_dir: FilePath = Field(
        Path("scyllaspark-data"), description="tables, checkpoints, broker and logs of a one-machine deployment"
    )
    handlers: tuple[ModuleOrFile, ...] = Field(
        (), description="modules (dotted names or .py files) whose @handler functions may run"
    )
    partitions: int = Field(
        8, ge=1, le=512, description="partitions of the `tasks` topic; fixed for the life of a deployment"
    )
    master: str = Field("local[2]", description="Spark master where no session exists")
    spark: Spark = Spark()
    kafka: Kafka = Kafka()
    broker: Broker = Broker()
    topics: Topics = Topics()
    tables: Tables = Tables()
    ingest: Ingest = Ingest()
    history: History = History()
    dispatch: Dispatch = Dispatch()
    spark_workers: SparkWorkers = SparkWorkers()
    connect: Connect = Connect()
    queues: Annotated[
        dict[str, Annotated[Queue, BeforeValidator(Queue.of_settings)]], BeforeValidator(_start_values)
    ] = Field(
        {},
        description="start values by queue name; as a variable of the environment in small letters, or all of them as JSON",
    )
    plan: Plan = Plan()
    notify: Notify = Notify()
    api: Api = Api()
    desk: Desk = Desk()
    metrics: Metrics = Metrics()
    log: Log = Log()
    logs: Logs = Logs()
    outputs: Outputs = Outputs()
    otel: Otel = Otel()

    @model_validator(mode="after")
    def _check(self) -> Settings:
        if self.dispatch.max_children < self.dispatch.min_children:
            raise ValueError("dispatch.max_children is smaller than dispatch.min_children")
        if self.ingest.retention <= self.ingest.grace:
            raise ValueError("ingest.retention must be longer than ingest.grace: what is older is refused")
        topics = [self.topics.tasks, self.topics.outcomes, self.topics.schedules, self.topics.logs]
        if len(set(topics)) < len(topics):
            raise ValueError("topics: two of tasks, outcomes, schedules and logs have one name")
        if self.ingest.near <= 2 * self.dispatch.look_ahead:
            raise ValueError("ingest.near must be more than twice dispatch.look_ahead")
        if self.ingest.default_handler is not None and not is_name(self.ingest.default_handler):
            raise ValueError(f"ingest.default_handler is not the name of a handler; names are {RULE}")
        return self

    @property
    def has_spark_workers(self) -> bool:
        """Returns True if dispatchers may start Spark workers; without a Spark session they cannot."""
        return self.spark_workers.max > 0 and self.dispatch.scan == "spark"

    @property
    def tables_path(self) -> str:
        """Folder or URI under which the tables lie."""
        return self.tables.path or str(self.data_dir.absolute() / "tables")

    @property
    def tables_folder(self) -> Path | None:
        """Returns where the tables lie on a file system of this machine; None: they lie in a store that only URIs name."""
        return None if "://" in self.tables_path else Path(self.tables_path)

    @property
    def outputs_path(self) -> Path:
        """Folder of the files that attempts leave behind."""
        return Path(self.outputs.path or self.data_dir / "outputs").absolute()

    @property
    def checkpoints_path(self) -> str:
        """Folder or URI of the checkpoints of the streaming queries."""
        base = self.tables.path.rstrip("/") if self.tables.path else str(self.data_dir.absolute())
        return f"{base}/checkpoints" if not self.tables.path else f"{base}/_checkpoints"

    @classmethod
    def load(cls, file: Path | None = None, **overrides: Any) -> Settings:
        """Reads all sources.

        Args:
            file: TOML file; default `scyllaspark.toml` in the working directory, if it is there.
            **overrides: values that win over every source; nested sections as dicts.

        Raises:
            ConfigError: a file is missing or not TOML, a key is unknown, or a value has the wrong type or range.
        """
        if file is not None and not file.is_file():
            raise ConfigError(f"There is no settings file {file}.", hint="Check --config.")
        _refuse_unknown_variables(cls)
        made = _made(cls, file or DEFAULT_FILE, overrides)
        if isinstance(made, ConfigError):
            raise made
        return made


def _made(cls: type[Settings], file: Path, overrides: dict[str, Any]) -> Settings | ConfigError:
    """The settings, or the error; returned, because an error that is raised here would carry pydantic's, with all values, along."""
    try:
        return _with_file(cls, file)(**overrides)
    except ValidationError as error:
        return ConfigError(
            _explain(error, origins(file, overrides)), hint="`scylla-spark config show` lists every setting."
        )
    except SettingsError as error:
        return ConfigError(f"{error}.", hint="Lists and tables are written as JSON in environment variables.")
    except (ValueError, OSError) as error:
        return ConfigError(f"{file}: {error}.", hint="The file must be valid TOML, in UTF-8.")


def origins(file: Path | None, overrides: Mapping[str, Any]) -> dict[str, str]:
    """Returns where each setting that is not a default comes from: dotted name → flag, environment, .env or file name."""
    path = file or DEFAULT_FILE
    sources: list[tuple[str, PydanticBaseSettingsSource]] = [
        (str(path), TomlConfigSettingsSource(Settings, path)),
        (".env", DotEnvSettingsSource(Settings)),
        ("environment", EnvSettingsSource(Settings)),
        ("flag", InitSettingsSource(Settings, dict(overrides))),
    ]
    return {key: name for name, source in sources for key in _dotted(source())}


def flatten(settings: Settings) -> dict[str, Any]:
    """Dotted name → value, secrets masked."""
    return _dotted(settings.model_dump(mode="json", exclude={"queues": {"__all__": {"name"}}}))


def _refuse_unknown_variables(cls: type[Settings]) -> None:
    known = {name.upper() for name in cls.model_fields} | _OTHER_VARIABLES
    for variable in os.environ:
        name = variable.upper().removeprefix("SCYLLASPARK_")
        if name != variable.upper() and name.split("__")[0] not in known:
            raise ConfigError(
                f"Settings are not valid: there is no setting {name.lower()} (environment variable {variable}).",
                hint="`scylla-spark config show` lists every setting.",
            )


def _with_file(cls: type[Settings], file: Path) -> type[Settings]:
    class FromFile(cls):  # type: ignore[misc, valid-type]
        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,
            file_secret_settings: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            return (init_settings, env_settings, dotenv_settings, TomlConfigSettingsSource(settings_cls, file))

    FromFile.__name__ = "Settings"
    return FromFile


def _dotted(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, BaseModel):
            value = value.model_dump()
        if isinstance(value, Mapping):
            flat |= _dotted(value, f"{prefix}{quoted(key)}.")
        else:
            flat[prefix + quoted(key)] = value
    return flat


_SOURCES: Final = {"environment": "the environment"}


def _explain(error: ValidationError, given: Mapping[str, str]) -> str:
    """The message of an error.

    Args:
        error: of the model.
        given: dotted name of a setting that is not a default → where it is from.
    """
    lines = []
    for item in error.errors(include_url=False, include_context=False):
        name = ".".join(map(quoted, map(str, item["loc"]))) or "settings"
        sources = (source for key, source in given.items() if f"{key}.".startswith(f"{name}."))
        place = next((f" (in {_SOURCES.get(source, source)})" for source in sources if source != "flag"), "")
        unknown = item["type"] == "extra_forbidden"
        lines.append(
            f"{name}{place}: {_no_such(item['loc']) if unknown else item['msg'] + _given(item['loc'], item['input'])}"
        )
    return "Settings are not valid: " + "; ".join(lines) + "."


def _no_such(place: tuple[int | str, ...]) -> str:
    *sections, name = place
    section = _section(Settings, sections)
    near = difflib.get_close_matches(str(name), section.model_fields, 1) if section else []
    return "there is no such setting" + (f" (did you mean {near[0]}?)" if near else "")


def _section(section: type[BaseModel], place: Sequence[int | str]) -> type[BaseModel] | None:
    """The model at a place; None: there is none."""
    if not place:
        return section
    if place[0] == "queues" and section is Settings:
        return _section(Queue, place[2:]) if len(place) > 1 else None
    field = section.model_fields.get(str(place[0]))
    if field is None or not (isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)):
        return None
    return _section(field.annotation, place[1:])


def _given(place: tuple[int | str, ...], value: object) -> str:
    """Returns what was given, where that cannot be a secret: one plain value of a setting that exists and is not secret itself.

    A section, a table or a misspelt name may hold a password, so they are only named.
    """
    plain = isinstance(value, str | int | float | bool | None) and _is_public(Settings, place)
    return f" (got {value!r})" if plain else ""


def _is_public(section: type[BaseModel], place: tuple[int | str, ...]) -> bool:
    found = _section(section, place[:-1]) if place else None
    field = found.model_fields.get(str(place[-1])) if found else None
    return field is not None and "Secret" not in str(field.annotation) and _section(section, place) is None
