"""The rendered Helm chart: settings that are ours, pods without rights, secrets by reference, and time enough for a drain."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from scylla_spark.config.settings import Settings
from scylla_spark.processes.bounded_stop import LIMIT_S

ROOT = Path(__file__).parents[2]
HELM = ROOT / "deploy" / "helm"
CHART = HELM / "scylla-spark"
RENDERED = {"default": (), "all-options": ("-f", str(HELM / "all-options.yaml"))}
NEWEST_SCHEMAS = 3
UV = str(Path(sys.executable).with_name("uv"))
SPARK_STOP_S = 20


def objects(name, kinds=()):
    found = [one for one in yaml.safe_load_all((HELM / "rendered" / f"{name}.yaml").read_text()) if one]
    return [one for one in found if not kinds or one["kind"] in kinds]


def workloads(name):
    """Role → pod."""
    found = objects(name, ("Deployment", "StatefulSet"))
    return {one["metadata"]["labels"]["app.kubernetes.io/component"]: one["spec"]["template"]["spec"] for one in found}


def variables(pod):
    (container,) = pod["containers"]
    return {one["name"]: one.get("value", "10.0.0.7") for one in container.get("env", ())}


@pytest.mark.parametrize("name", RENDERED)
def test_pods_get_settings_that_are_ours(name, tmp_path, monkeypatch):
    (file,) = objects(name, ("ConfigMap",))
    (tmp_path / "scyllaspark.toml").write_text(file["data"]["scyllaspark.toml"])
    pods = workloads(name)
    for role in ("ingest", "dispatch", "plan", "api"):
        with monkeypatch.context() as changed:
            changed.chdir(tmp_path)
            for variable in [one for one in os.environ if one.startswith("SCYLLASPARK_")]:
                changed.delenv(variable)
            for variable, value in variables(pods[role]).items():
                changed.setenv(variable, value.replace("$(POD_IP)", "10.0.0.7"))
            if name == "all-options":
                changed.delenv("SCYLLASPARK_KAFKA__PASSWORD")  # its settings file has no login
            settings = Settings.load(tmp_path / "scyllaspark.toml")
        port = "port" if role == "dispatch" else f"{role}_port"
        assert getattr(settings.metrics, port) == 9000
        assert settings.desk.secret is not None
        if role in ("ingest", "dispatch"):
            longest_s = LIMIT_S + SPARK_STOP_S + 2 * settings.dispatch.drain.total_seconds()
            assert pods[role]["terminationGracePeriodSeconds"] >= longest_s
        if role == "dispatch":
            assert settings.dispatch.instance_id
            assert settings.desk.host == "10.0.0.7"
        if role == "api":
            assert (settings.api.tokens, settings.api.port) == ("always", 8080)
            assert "scylla-api" in settings.api.allowed_hosts


@pytest.mark.parametrize("name", RENDERED)
def test_pods_have_no_rights_and_secrets_are_references(name):
    assert objects(name, ("Secret",)) == []
    for role, pod in workloads(name).items():
        (container,) = pod["containers"]
        allowed = container["securityContext"]
        assert pod["securityContext"]["runAsNonRoot"], role
        assert (allowed["readOnlyRootFilesystem"], allowed["allowPrivilegeEscalation"]) == (True, False)
        assert allowed["capabilities"] == {"drop": ["ALL"]}
        assert pod["automountServiceAccountToken"] is False
        secret = [one for one in container.get("env", ()) if "SECRET" in one["name"] or "PASSWORD" in one["name"]]
        assert all("secretKeyRef" in one["valueFrom"] for one in secret)


def test_one_pod_writes_and_dispatchers_keep_their_names():
    found = objects("default", ("Deployment", "StatefulSet"))
    kinds = {one["metadata"]["name"]: one for one in found}
    ingest = kinds["scylla-ingest"]["spec"]
    assert (ingest["replicas"], ingest["strategy"]) == (1, {"type": "Recreate"})
    assert kinds["scylla-dispatch"]["kind"] == "StatefulSet"


def test_the_page_has_the_values_of_now():
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        import helm_values

        assert helm_values.PAGE.read_text() == helm_values.page(), "run: make format"
    finally:
        sys.path.remove(str(ROOT / "tools"))


# -- with tools that are fetched ---------------------------------------------------------------------------------------


def ran(*words, **more):
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False, **more)


@pytest.fixture(scope="module")
def helm(tmp_path_factory):
    if found := shutil.which("helm"):
        return found
    folder = tmp_path_factory.mktemp("helm")
    built = ran("go", "install", "helm.sh/helm/v3/cmd/helm@v3.19.0", env=os.environ | {"GOBIN": str(folder)})
    if built.returncode:
        pytest.skip(f"helm cannot be built here: {built.stderr[-300:]}")
    return folder / "helm"


@pytest.mark.deep
@pytest.mark.parametrize("name", RENDERED)
def test_the_stored_output_is_what_the_chart_gives(helm, name):
    done = ran(helm, "template", "scylla", CHART, "--kube-version", "1.34.0", *RENDERED[name])
    assert done.returncode == 0, done.stderr
    assert done.stdout == (HELM / "rendered" / f"{name}.yaml").read_text()


@pytest.mark.deep
def test_objects_are_valid_for_the_newest_schemas_of_kubernetes(tmp_path):
    environment = os.environ | {"VIRTUAL_ENV": str(tmp_path / "env")}
    assert ran(UV, "venv", "--python", sys.executable, tmp_path / "env").returncode == 0
    installed = ran(UV, "pip", "install", "kubernetes-validate", env=environment)
    if installed.returncode:
        pytest.skip(f"kubernetes-validate cannot be installed here: {installed.stderr[-300:]}")
    program = f"""
import os, sys, yaml, kubernetes_validate as validate
folder = os.path.join(os.path.dirname(validate.__file__), "kubernetes-json-schema")
known = sorted({{tuple(map(int, name[1:].partition("-")[0].split("."))) for name in os.listdir(folder) if name[0] == "v"}})
for file in sys.argv[1:]:
    for one in yaml.safe_load_all(open(file)):
        if one and not one["apiVersion"].startswith(("keda.sh", "monitoring.coreos.com")):
            for version in known[-{NEWEST_SCHEMAS}:]:
                validate.validate(one, ".".join(map(str, version)), strict=True)
"""
    files = [HELM / "rendered" / f"{name}.yaml" for name in RENDERED]
    done = ran(tmp_path / "env" / "bin" / "python", "-c", program, *files)
    assert done.returncode == 0, done.stderr
