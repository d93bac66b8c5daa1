"""Tests of the Helm chart: lint, schemas of Kubernetes, and the same objects as the manifest."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from adacompute.gateway.settings.config import read_config
from adacompute.gateway.settings.settings import variables_in

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
        ("--set", "state.existingClaim=leases"),
        ("--set", "networkPolicy.enabled=false"),
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


def test_the_configuration_is_that_of_the_plain_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = tmp_path / "plain.toml"  # paths are relative to the file
    plain.write_bytes((DEPLOY / "gateway" / "gateway.toml").read_bytes())
    values = {"UPSTREAM_URL": "https://api.example.com/v1", "GATEWAY_TOKEN": "0123456789abcdef" * 4}
    for name in variables_in(plain):
        monkeypatch.setenv(name, values.get(name, "none"))
    path = tmp_path / "gateway.toml"
    path.write_text(render("edge")["ConfigMap", "edge"]["data"]["gateway.toml"], encoding="utf-8")
    store = "redis://:none@edge-redis:6379/0"
    assert read_config(path, {}) == replace(read_config(plain, {}), account_store=store)


def test_pods_and_redis_take_the_password_from_the_secret_that_is_named() -> None:
    chart = render("edge", "--set", "existingSecret=mine")
    gateway, redis = (
        chart[kind]["spec"]["template"]["spec"]["containers"][0]
        for kind in (("Deployment", "edge"), ("StatefulSet", "edge-redis"))
    )
    assert gateway["envFrom"] == [{"secretRef": {"name": "mine"}}]
    assert redis["env"][0]["valueFrom"]["secretKeyRef"] == {"name": "mine", "key": "REDIS_PASSWORD"}


@pytest.mark.parametrize(
    ("claim", "volume"),
    [("", {"emptyDir": {}}), ("leases", {"persistentVolumeClaim": {"claimName": "leases"}})],
)
def test_the_state_is_in_the_pod_or_in_a_claim(claim: str, volume: dict[str, Any]) -> None:
    chart = render("edge", "--set", f"state.existingClaim={claim}")
    volumes = chart["Deployment", "edge"]["spec"]["template"]["spec"]["volumes"]
    assert {"name": "state", **volume} in volumes


@pytest.mark.parametrize(
    ("options", "image"),
    [
        ("image.repository=here/it,image.tag=1", "here/it:1"),
        ("image.digest=sha256:ab", "adacompute@sha256:ab"),
    ],
)
def test_an_image_is_named_by_tag_or_digest(options: str, image: str) -> None:
    pod = render("edge", "--set", options)["Deployment", "edge"]["spec"]["template"]["spec"]
    assert pod["containers"][0]["image"] == image


def test_the_namespace_that_reads_metrics_can_be_named() -> None:
    chart = render("edge", "--set", "networkPolicy.monitoringNamespace=observe")
    (peer,) = chart["NetworkPolicy", "edge"]["spec"]["ingress"][1]["from"]
    labels = {"kubernetes.io/metadata.name": "observe"}
    assert peer == {"namespaceSelector": {"matchLabels": labels}}


def test_another_configuration_starts_new_pods() -> None:
    def checksum(*options: str) -> str:
        template = render("adacompute", *options)["Deployment", "adacompute"]["spec"]["template"]
        return str(template["metadata"]["annotations"]["checksum/config"])

    assert checksum() == checksum() != checksum("--set", "config=[serve]")
