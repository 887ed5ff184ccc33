"""The compose file: settings that are ours, ports on loopback only, and no default password."""

from __future__ import annotations

import os
import re
from pathlib import Path

import yaml

from scylla_spark.config.settings import Settings
from scylla_spark.processes.bounded_stop import LIMIT_S
from scylla_spark.processes.roles import ROLES

FILE = Path(__file__).parents[2] / "deploy" / "docker" / "compose.yaml"
SERVICES = yaml.safe_load(FILE.read_text())["services"]
SPARK_STOP_S = 20


def test_containers_get_settings_that_are_ours(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for variable in [one for one in os.environ if one.startswith("SCYLLASPARK_")]:
        monkeypatch.delenv(variable)
    for role in ROLES:
        service = SERVICES[role]
        with monkeypatch.context() as changed:
            for variable, value in service["environment"].items():
                changed.setenv(variable, re.sub(r"\$\{.*\}", "x", value))
            settings = Settings.load()
        assert service["command"][:2] == ["run", role]
        assert settings.metrics.host == service["hostname"] == role
        drain_s = 2 * settings.dispatch.drain.total_seconds() if role in ("ingest", "dispatch") else 0
        assert int(service["stop_grace_period"].removesuffix("s")) >= LIMIT_S + SPARK_STOP_S + drain_s


def test_ports_are_on_loopback_and_no_secret_has_a_default():
    published = [port for service in SERVICES.values() for port in service.get("ports", ())]
    assert published
    assert [port for port in published if not port.startswith("127.0.0.1:")] == []
    for service in SERVICES.values():
        for name, value in service.get("environment", {}).items():
            if re.search("PASSWORD|SECRET|KEY|_USER$", name):
                assert re.fullmatch(r"\$\{\w+:\?set \w+ in \.env\}", value), name


def test_our_containers_cannot_write_their_root_nor_gain_rights():
    for role in ROLES:
        assert SERVICES[role]["read_only"] is True
        assert SERVICES[role]["cap_drop"] == ["ALL"]
        assert SERVICES[role]["security_opt"] == ["no-new-privileges:true"]
