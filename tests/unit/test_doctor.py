"""Each check passes on what is needed, fails on what is not, and a failure always names its remedy."""

import os
import resource
import socket
from pathlib import Path

import pytest

from scylla_spark import doctor
from scylla_spark.config.settings import Settings
from scylla_spark.doctor import Check
from scylla_spark.errors import SetupError


def failed(check: Check) -> bool:
    assert check.ok or check.mend, f"{check} fails without naming a remedy"
    return not check.ok


@pytest.fixture
def fake_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Puts a java into JAVA_HOME that prints a version of our choice."""

    def install(version: str) -> None:
        java = tmp_path / "jdk" / "bin" / "java"
        java.parent.mkdir(parents=True)
        java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-01-01' >&2\n")
        java.chmod(0o755)
        monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))

    return install


@pytest.mark.parametrize(("version", "ok"), [((3, 10, 9), False), ((3, 11, 0), True), ((3, 13, 1), True)])
def test_python_older_than_3_11_fails(version, ok):
    assert failed(doctor.check_python(version)) is not ok


@pytest.mark.parametrize(("version", "ok"), [("1.8.0_412", False), ("11.0.2", False), ("17.0.15", True), ("21", True)])
def test_java_older_than_17_fails(fake_java, version, ok):
    fake_java(version)
    assert failed(doctor.check_java()) is not ok


def test_missing_java_fails_and_names_the_package_to_install(monkeypatch, tmp_path):
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    check = doctor.check_java()
    assert failed(check)
    assert "openjdk-17" in check.mend


def test_java_home_without_a_java_fails(tmp_path):
    assert failed(doctor.check_java_home(str(tmp_path)))


def test_unset_java_home_is_fine():
    assert not failed(doctor.check_java_home(None))


@pytest.mark.parametrize(("installed", "ok"), [("4.2.0", True), ("4.1.1", False), (None, False)])
def test_a_package_must_have_exactly_the_pinned_version(installed, ok):
    check = doctor.check_package("pyspark", "4.2.0", installed)
    assert failed(check) is not ok
    assert ok or ("pyspark==4.2.0" if installed else "scylla-spark[spark]") in check.mend


def test_the_pins_of_the_doctor_are_the_pins_of_the_lock_file():
    lock = (Path(__file__).parents[2] / "requirements.lock").read_text()
    for name, version in doctor.PINNED.items():
        assert f"\n{name}=={version} " in lock


def test_an_empty_jar_cache_fails_and_names_the_command(tmp_path):
    check = doctor.check_jars("spark", tmp_path)
    assert failed(check)
    assert "scylla_spark.io.host.prepare" in check.mend
    assert "missing" in check.detail


def test_a_data_folder_that_does_not_exist_yet_is_fine_and_is_not_made(tmp_path):
    wanted = tmp_path / "a" / "b"
    assert not failed(doctor.check_data_dir(wanted))
    assert not (tmp_path / "a").exists()


def test_a_data_folder_below_a_file_fails(tmp_path):
    (tmp_path / "file").write_text("")
    assert failed(doctor.check_data_dir(tmp_path / "file"))


def test_a_data_folder_that_cannot_be_written_fails():
    assert failed(doctor.check_data_dir(Path("/proc/data")))


@pytest.mark.parametrize(("level", "ok"), [(0, True), (1, False), (2, False)])
def test_a_python_that_leaves_out_assertions_fails(level, ok):
    check = doctor.check_optimized(level)
    assert failed(check) is not ok
    assert ok or check.mend == "unset PYTHONOPTIMIZE"


@pytest.mark.parametrize(
    ("kind", "soft", "mend"),
    [
        (resource.RLIMIT_NOFILE, 1024, ""),
        (resource.RLIMIT_NOFILE, 256, "ulimit -n 4096"),
        (resource.RLIMIT_AS, 3 * 1024**3, "ulimit -v unlimited"),
        (resource.RLIMIT_FSIZE, 1024**2, "ulimit -f unlimited"),
        (resource.RLIMIT_NPROC, 100, "ulimit -u 4096"),
    ],
)
def test_a_limit_that_is_too_low_fails(monkeypatch, kind, soft, mend):
    low = {kind: (soft, soft)}
    monkeypatch.setattr(resource, "getrlimit", lambda kind: low.get(kind, (resource.RLIM_INFINITY,) * 2))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    check = doctor.check_limits()
    assert failed(check) is bool(mend)
    assert check.mend.startswith(mend)


def test_what_serves_is_refused_with_the_first_check_that_fails(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(SetupError, match=r"^data folder: .*/file is a file\. choose a folder: --data DIR$"):
        doctor.require([tmp_path, tmp_path / "file"], java=False, spark=True)
    monkeypatch.setattr(doctor, "installed_version", lambda name: None)
    with pytest.raises(SetupError, match=r"^pyspark: not installed.* pip install 'scylla-spark\[spark\]'"):
        doctor.require([tmp_path, tmp_path / "file"], java=False, spark=True)
    doctor.require([tmp_path], java=False, spark=False)


def test_little_space_and_memory_do_not_refuse_what_serves(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "free_bytes", lambda folder: 1024**3)
    monkeypatch.setattr(doctor, "memory_bytes", lambda: 1024**3)
    short = doctor.require([tmp_path], java=False, spark=False)
    assert [check.name for check in short] == ["disk space", "memory"]


def test_less_than_two_gib_of_disk_fails(tmp_path):
    assert failed(doctor.check_disk(tmp_path, 2 * 1024**3 - 1))
    assert not failed(doctor.check_disk(tmp_path, 2 * 1024**3))


def test_too_little_memory_fails_and_an_unknown_amount_does_not():
    assert failed(doctor.check_memory(1024**3))
    assert not failed(doctor.check_memory(8 * 1024**3))
    assert not failed(doctor.check_memory(None))


def kafka_at(address, **kafka):
    return doctor.examine_kafka(Settings(_env_file=None, kafka={"bootstrap_servers": address} | kafka))


def test_a_kafka_that_does_not_listen_fails():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        (check,) = kafka_at(f"127.0.0.1:{unused.getsockname()[1]}")
    assert failed(check)
    assert check.detail.startswith("TCP: ")


@pytest.mark.parametrize(
    ("address", "step"),
    [("nowhere.invalid:9092", "DNS: "), ("nowhere", "address: "), ("kafka:port", "address: "), ("a..b:1", "DNS: ")],
)
def test_an_address_that_is_wrong_is_told_apart_from_a_broker_that_is_down(address, step):
    (check,) = kafka_at(address)
    assert failed(check)
    assert check.detail.startswith(step)


def test_a_missing_file_of_the_password_fails_and_is_named(tmp_path):
    access = {"auth": "scram", "username": "u", "password_file": tmp_path / "nowhere"}
    (check,) = kafka_at("127.0.0.1:1", **access)
    assert failed(check)
    assert "kafka.password_file" in check.detail


@pytest.mark.slow
def test_kafka_is_no_check_of_the_machine(tmp_path):
    assert not [check for check in doctor.examine(tmp_path) if "Kafka" in check.name]


def test_every_check_has_its_own_name(tmp_path):
    names = [check.name for check in doctor.examine(tmp_path / "new", cache=tmp_path)]
    assert len(names) == len(set(names))
    assert {"Python", "Java", "pyspark", "delta-spark", "spark jars", "broker jars", "disk space"} <= set(names)
