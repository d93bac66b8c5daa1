"""Tests of the Helm chart: lint, schemas of Kubernetes, and the same objects as the manifest."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from adacompute.gateway.config import read_config

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
CHART = DEPLOY / "helm" / "adacompute"
HELM = Path(sys.executable).with_name("helm")
Objects = dict[tuple[str, str], dict[str, Any]]


def helm(*arguments: str) -> str:
    return subprocess.run([HELM, *arguments], check=True, capture_output=True, text=True).stdout


def by_name(text: str) -> Objects:
    objects = [one for one in yaml.safe_load_all(text) if one]
    return {(one["kind"], one["metadata"]["name"]): one for one in objects}


def render(release: str, *options: str) -> Objects:
    return by_name(helm("template", release, str(CHART), *options))


def test_it_has_no_lint() -> None:
    helm("lint", "--strict", str(CHART))


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--set", "redis.enabled=false,redis.url=redis://elsewhere:6379/0"),
        ("--set", "redis.networkPolicy=false,redis.storageClassName=fast"),
        ("--set", "extraVolumes[0].name=b,extraVolumes[0].emptyDir.medium=Memory"),
        ("--set", "extraVolumeMounts[0].name=b,extraVolumeMounts[0].mountPath=/bundles"),
        ("--set", "image.pullSecrets[0].name=registry,service.type=NodePort"),
    ],
)
def test_objects_fit_the_schemas_of_kubernetes(options: tuple[str, ...]) -> None:
    for one in render("adacompute", *options).values():
        kubernetes_validate.validate(one, kubernetes_validate.latest_version(), strict=True)


def normalise(one: dict[str, Any]) -> dict[str, Any]:
    """Return the specification of an object without what only the chart sets."""
    spec: dict[str, Any] = one["spec"]
    if one["kind"] == "Service":
        spec.setdefault("type", "ClusterIP")  # the default of Kubernetes
    if one["kind"] == "Deployment":
        del spec["template"]["metadata"]["annotations"]
        spec["template"]["spec"]["containers"][0].pop("imagePullPolicy", None)
    if one["kind"] == "StatefulSet":
        spec["serviceName"] = "redis"
    return spec


def test_objects_are_those_of_the_plain_manifest() -> None:
    plain = by_name((DEPLOY / "kubernetes.yaml").read_text(encoding="utf-8"))
    chart = render("adacompute")
    for (kind, name), one in plain.items():
        found = chart.pop((kind, "adacompute-redis" if name == "redis" else name))
        assert normalise(found) == normalise(one)
    assert list(chart) == [("ConfigMap", "adacompute")]


def test_the_configuration_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("UPSTREAM_URL", "UPSTREAM_KEY", "CLIENT_KEY_SHA256"):
        value = {"UPSTREAM_URL": "https://api.example.com/v1", "UPSTREAM_KEY": "none"}
        monkeypatch.setenv(name, value.get(name, "ab" * 32))
    path = tmp_path / "gateway.toml"
    path.write_text(render("edge")["ConfigMap", "edge"]["data"]["gateway.toml"], encoding="utf-8")
    assert read_config(path, {}).account_store == "redis://edge-redis:6379/0"


def test_another_configuration_starts_new_pods() -> None:
    def checksum(*options: str) -> str:
        template = render("adacompute", *options)["Deployment", "adacompute"]["spec"]["template"]
        return str(template["metadata"]["annotations"]["checksum/config"])

    assert checksum() == checksum() != checksum("--set", "config=[serve]")
