"""With broker.auth only a user who may read the data folder may send; clients of the folder need to do nothing for it."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from kafka.errors import KafkaError

from tests.acceptance.place import Foreign


def test_with_broker_auth_clients_of_the_folder_work_and_strangers_do_not_come_in(crash_site):
    process = crash_site.running()
    secret = (crash_site.data / "kafka" / "client.secret").read_text().strip()

    handle = crash_site.client().enqueue("errand", {"n": 1}, ordering_id="own")
    told = crash_site.call("task", "enqueue", "errand", "--ordering-id", "cli")
    assert told.returncode == 0, told.stderr
    assert len(crash_site.completed([handle.key])) == 1
    waited = crash_site.call("task", "wait", told.stdout.strip(), "--timeout", "60s")
    assert waited.returncode == 0, waited.stderr

    doctor = crash_site.call("doctor", "kafka")
    assert doctor.returncode == 0, doctor.stdout + doctor.stderr
    assert "SASL_PLAINTEXT, scram as scylla-spark" in doctor.stdout
    with pytest.raises(KafkaError):
        Foreign(crash_site.kafka, bootstrap_timeout_ms=2_000)
    stranger = crash_site.call("--set", f"kafka.bootstrap_servers={crash_site.kafka}", "doctor", "kafka")
    assert stranger.returncode == 1
    assert "kafka.auth" in stranger.stderr

    assert secret not in told.stderr + doctor.stdout + process.told()
    for line in crash_site.left():
        pid = Path("/proc") / line.split()[0]
        assert secret.encode() not in (pid / "cmdline").read_bytes() + (pid / "environ").read_bytes(), line
    open_to_others = [
        path
        for path in (crash_site.data, crash_site.data / "kafka", crash_site.data / "up.json")
        if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO)
    ]
    assert open_to_others == []
