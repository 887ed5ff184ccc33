"""The ports that the JVM of our own sessions opens: whoever does not know the secret of the run is not listened to."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap

import pytest

# a process of its own: the tests' own session is made otherwise
CODE = textwrap.dedent("""
    import json, os, socket, struct, sys
    from pathlib import Path
    from scylla_spark.config.settings import Settings
    from scylla_spark.io.host.session import open_session

    def said(port, raw):
        with socket.create_connection(("127.0.0.1", int(port)), timeout=10) as line:
            line.sendall(raw)
            return line.recv(4000).decode("latin-1")

    def call(body):  # a call that carries Java's serialised objects, to Spark's RPC or block manager
        body = struct.pack(">bqi", 3, 7, len(body)) + body
        return struct.pack(">q", 8 + len(body)) + body

    spark = open_session(Settings(_env_file=None, data_dir=sys.argv[1]), "ports")
    sc = spark.sparkContext
    env = sc._jsc.sc().env()
    jvm = str(sc._jvm.java.lang.ProcessHandle.current().pid())
    secret = env.securityManager().getSecretKey()
    seen = sc.parallelize([1], 1).map(lambda one: json.dumps(dict(os.environ))).collect()[0]
    batches = []
    query = spark.readStream.format("rate").load().writeStream.foreachBatch(lambda df, number: batches.append(number))
    query = query.trigger(once=True).start()
    query.awaitTermination(60)
    facts = {
        "python jobs": spark.range(10).mapInPandas(lambda frames: frames, "id long").count(),
        "foreachBatch": len(batches),
        "rpc": said(sc.getConf().get("spark.driver.port"), call(b"abcd")),
        "blocks": said(env.blockManager().blockManagerId().port(), call(b"abcd")),
        "gateway": said(sc._gateway.gateway_parameters.port, b"r\\nu\\njava.lang.System\\ne\\n"),
        "secret": len(secret),
        "tellers": [
            name for name, text in {
                "command line": Path(f"/proc/{jvm}/cmdline").read_text(),
                "environment of the JVM": Path(f"/proc/{jvm}/environ").read_text(),
                "environment of user code": seen,
                "our environment": json.dumps(dict(os.environ)),
                "settings of the session": str(sc.getConf().getAll()),
            }.items() if secret in text
        ],
    }
    spark.stop()
    print(json.dumps(facts))
""")


@pytest.fixture(scope="module")
def facts(tmp_path_factory):
    command = [sys.executable, "-c", CODE, str(tmp_path_factory.mktemp("data"))]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("port", ["rpc", "blocks"])
def test_a_stranger_is_asked_for_the_secret_before_any_object_is_read(facts, port):
    assert "SaslMessage" in facts[port]
    assert "RequestMessage" not in facts[port]


def test_a_stranger_may_not_use_the_gateway_of_python(facts):
    assert "Authentication error" in facts["gateway"]


def test_python_jobs_and_batches_still_work(facts):
    assert (facts["python jobs"], facts["foreachBatch"]) == (10, 1)


def test_the_secret_of_the_run_stands_nowhere_that_others_see(facts):
    assert facts["secret"] >= 32
    assert facts["tellers"] == []
