"""What a session is told that we make: our options, those of the settings, and what tables in a store need."""

import os
from dataclasses import dataclass, field

import pytest

from scylla_spark.config.settings import Settings
from scylla_spark.errors import ConfigError, SetupError, UnreachableError
from scylla_spark.io.host import jars, session
from scylla_spark.io.host.s3_options import is_s3, s3_options

MANAGER = "spark.sql.streaming.checkpointFileManagerClass"


@pytest.fixture(autouse=True)
def no_submit(monkeypatch, tmp_path):
    monkeypatch.setattr(session, "_submitted_by", 0)
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(jars, "ensure", lambda name, cache=None: {name: [tmp_path / f"{name}.jar"]})


def told(**sections):
    return session.options(Settings.load(**sections), services=True)


def test_options_of_the_settings_are_added_and_win():
    options = told(
        spark={
            "options": {
                "spark.driver.memory": "5g",
                "spark.jars": "/opt/gcs.jar",
                "spark.driver.extraJavaOptions": "-Da=b",
            }
        }
    )
    assert options["spark.driver.memory"] == "5g"
    assert [jar.rpartition("/")[2] for jar in options["spark.jars"].split(",")] == ["spark.jar", "gcs.jar"]
    assert options["spark.driver.extraJavaOptions"].startswith("-Xss16m")
    assert options["spark.driver.extraJavaOptions"].endswith(" -Da=b")


def test_what_our_tables_need_cannot_be_taken_away():
    with pytest.raises(ConfigError, match=r"cannot change spark\.sql\.session\.timeZone"):
        told(spark={"options": {"spark.sql.session.timeZone": "Europe/Berlin"}})


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("fs.s3a.endpoint", "begin with spark"),
        ("spark.hadoop.fs.s3a.secret.key", "on the command line"),
        ("spark.hadoop.fs.s3a.access.key", "on the command line"),
        ("spark.hadoop.fs.s3a.session.token", "on the command line"),
    ],
)
def test_what_is_no_option_or_would_be_seen_by_all_users_of_the_machine_is_refused(name, why):
    with pytest.raises(ConfigError, match=why) as refused:
        Settings.load(spark={"options": {name: "known-to-nobody"}})
    assert "known-to-nobody" not in str(refused.value)


@pytest.mark.parametrize("path", ["s3://lake/t", "s3a://lake/t"])
def test_tables_in_s3_bring_its_client_and_the_variables_of_aws(path, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9000")
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    options = told(tables={"path": path})
    assert options["spark.jars"].endswith("s3.jar")
    assert options["spark.hadoop.fs.s3a.endpoint"] == "http://127.0.0.1:9000"
    assert options["spark.hadoop.fs.s3a.connection.ssl.enabled"] == "false"
    assert options["spark.hadoop.fs.s3a.endpoint.region"] == "eu-central-1"


@pytest.mark.parametrize(
    ("master", "used"),
    [
        ("local", "local[2,4]"), ("local[2]", "local[4,4]"), ("local[8]", "local[11,4]"), ("local[2,1]", "local[2,1]"),
        ("local-cluster[2,1,1024]", "local-cluster[2,1,1024]"), ("spark://head:7077", "spark://head:7077"),
    ],
)  # fmt: skip
def test_a_local_master_tries_a_task_as_a_cluster_does_and_has_threads_for_spark_workers(master, used):
    chosen = session.options(Settings(_env_file=None, master=master, spark_workers={"max": 3}), services=True)
    assert chosen["spark.master"] == used
    assert chosen.get("spark.default.parallelism") == {"local": "1", "local[2]": "2", "local[8]": "8"}.get(master)
    of_a_client = session.options(Settings(_env_file=None, master="local[2]"), services=False)
    assert of_a_client["spark.master"] == "local[2,4]"


def test_the_plain_commit_log_of_checkpoints_is_for_folders_only():
    assert MANAGER in told()
    assert MANAGER in told(tables={"path": "file:///lake/t"})
    assert MANAGER not in told(tables={"path": "s3://lake/t"})
    assert MANAGER not in told(tables={"path": "abfss://lake@account.dfs.core.windows.net/t"})


def test_without_variables_aws_itself_is_asked():
    assert s3_options({}) == {"spark.hadoop.fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem"}


def test_tables_elsewhere_bring_no_client_of_s3(tmp_path):
    assert "s3.jar" not in told()["spark.jars"]
    assert not is_s3("/s3/tables")
    assert not is_s3("gs://lake/t")


def test_a_folder_is_known_by_path_and_by_uri():
    assert str(Settings.load(tables={"path": "file:///lake/t"}).tables_folder) == "/lake/t"
    assert str(Settings.load(tables={"path": "/lake/t"}).tables_folder) == "/lake/t"
    assert Settings.load(tables={"path": "s3://lake/t"}).tables_folder is None


@dataclass
class Application:
    """A Spark application with so many cores, whose own configuration sets some options; it is its own session and context."""

    defaultParallelism: int
    configured: dict[str, str] = field(default_factory=dict)
    changed: dict[str, object] = field(default_factory=dict)

    @property
    def sparkContext(self):
        return self

    @property
    def conf(self):
        return self

    @property
    def _conf(self):
        return self

    def contains(self, name):
        return name in self.configured

    def set(self, name, value):
        self.changed[name] = value


@pytest.mark.parametrize(("cores", "shuffle", "snapshot"), [(1, 2, 2), (6, 6, 6), (64, 64, 8), (1000, 200, 8)])
def test_a_batch_makes_as_many_tasks_as_the_cluster_has_cores(cores, shuffle, snapshot):
    application, stream = Application(cores), Application(cores)
    session.fit_to_cluster(application, stream)
    wanted = {"spark.sql.shuffle.partitions": shuffle, "spark.databricks.delta.snapshotPartitions": snapshot}
    assert application.changed == stream.changed == wanted


def test_the_number_of_tasks_that_the_user_has_configured_stays():
    application = Application(6, configured={"spark.sql.shuffle.partitions": "400"})
    session.fit_to_cluster(application)
    assert application.changed == {"spark.databricks.delta.snapshotPartitions": 6}


def test_a_jvm_that_does_not_start_is_one_error_and_is_tried_once(monkeypatch, tmp_path):
    from pyspark import SparkContext, java_gateway
    from pyspark.sql import SparkSession

    started = []

    def fails(conf, popen_kwargs):
        popen_kwargs["env"] = {"LC_ALL": "C", "SPARK_CONNECT_MODE": "0", "PYTHONWARNINGS": "error"}
        started.append(popen_kwargs["env"])
        raise RuntimeError("Java gateway process exited")

    monkeypatch.setattr(java_gateway, "launch_gateway", fails)
    monkeypatch.setattr(SparkContext, "_gateway", None)
    monkeypatch.setattr(SparkSession, "getActiveSession", staticmethod(lambda: None))  # other tests may have one
    settings = Settings.load(data_dir=tmp_path)
    session.launch_jvm(settings, services=True)
    with pytest.raises(UnreachableError, match=r"JVM did not start.*`scylla-spark doctor`"):
        session.open_session(settings, "test")
    # paths beyond ASCII; a host whose own name does not resolve; warnings of PySpark's workers
    assert started == [{"LC_ALL": "C.UTF-8", "SPARK_CONNECT_MODE": "0", "SPARK_LOCAL_HOSTNAME": "localhost"}]


def test_a_session_without_pyspark_is_refused_before_anything_starts(monkeypatch, tmp_path):
    monkeypatch.setattr(session, "find_spec", lambda name: None)
    with pytest.raises(SetupError, match=r"pip install 'scylla-spark\[spark\]'"):
        session.launch_jvm(Settings.load(data_dir=tmp_path), services=True)
