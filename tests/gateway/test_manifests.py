"""The files in deploy/ fit the gateway, and each other: Redis, secrets, volumes and times.

The Helm chart needs helm to be rendered: integrations/helm checks that it makes the same objects.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("starlette", reason="the extra 'serve' is not installed")

from adacompute.gateway.settings.config import Config, read_config
from adacompute.gateway.settings.settings import variables_in
from adacompute.spending.redis_register import RedisRegister
from adacompute.spending.registers import RegisterError
from test_support.redis_server import find_redis, serve_redis

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
GATEWAY = DEPLOY / "gateway" / "gateway.toml"
CHART = DEPLOY / "helm" / "adacompute"
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
OBJECTS = {
    (one["kind"], one["metadata"]["name"]): one["spec"]
    for one in yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())
}
PODS = {name: spec["template"]["spec"] for (_, name), spec in OBJECTS.items() if "template" in spec}
PASSWORD = "0123456789abcdef"  # noqa: S105 - of a server that ends with the test
STORE_OPTIONS = {
    "appendonly": "yes",
    "appendfsync": "always",
    "save": "",
    "maxmemory-policy": "noeviction",
}
SPARE_S = 5


@pytest.fixture
def config(monkeypatch: pytest.MonkeyPatch) -> Config:
    values = {"UPSTREAM_URL": "http://127.0.0.1:9/v1", "GATEWAY_TOKEN": "0123456789abcdef" * 4}
    for name in variables_in(GATEWAY):
        monkeypatch.setenv(name, values.get(name, PASSWORD))
    return read_config(GATEWAY, {})


def redis_options() -> Iterator[dict[str, str]]:
    """Yield the options of Redis in each file, as they are written there."""
    text = (CHART / "templates" / "redis.yaml").read_text()
    (chart,) = re.findall(r"^ +args: (.*)$", text, re.MULTILINE)
    plain = PODS["redis"]["containers"][0]["args"]
    for command in (COMPOSE["redis"]["command"], plain, yaml.safe_load(chart)):
        assert command[0] == "redis-server"
        yield dict(zip((name[2:] for name in command[1::2]), command[2::2], strict=True))


def test_redis_is_durable_and_has_a_password_everywhere() -> None:
    found = list(redis_options())
    passwords = [one.pop("requirepass") for one in found]
    assert found == [STORE_OPTIONS] * 3
    assert passwords == ["${REDIS_PASSWORD}", "$(REDISCLI_AUTH)", "$(REDISCLI_AUTH)"]
    assert COMPOSE["redis"]["environment"]["REDISCLI_AUTH"].startswith("${REDIS_PASSWORD:?")
    (variable,) = PODS["redis"]["containers"][0]["env"]
    assert variable["name"] == "REDISCLI_AUTH"
    source = {"name": "adacompute", "key": "REDIS_PASSWORD"}
    assert variable["valueFrom"] == {"secretKeyRef": source}


@pytest.mark.skipif(find_redis() is None, reason="redis-server is not installed")
def test_the_gateway_reaches_redis_with_the_password_only(config: Config) -> None:
    async def read(url: str) -> object:
        register = RedisRegister(url)
        try:
            return (await register.read("k")).value
        finally:
            await register.close()

    options = {**next(redis_options()), "requirepass": PASSWORD}
    assert config.account_store is not None
    with serve_redis(options) as server:
        url = config.account_store.replace("redis:6379", f"127.0.0.1:{server.port}")
        assert asyncio.run(read(url)) is None
        with pytest.raises(RegisterError, match="authenticat"):
            asyncio.run(read(server.url))


def test_the_data_of_redis_is_kept() -> None:
    assert COMPOSE["redis"]["volumes"] == ["accounts:/data"]
    assert PODS["redis"]["containers"][0]["volumeMounts"] == [
        {"name": "data", "mountPath": "/data"}
    ]
    (claim,) = OBJECTS["StatefulSet", "redis"]["volumeClaimTemplates"]
    assert claim["metadata"]["name"] == "data"


def test_a_stop_has_time_to_drain_and_to_give_back_leases(config: Config) -> None:
    needed_s = config.shutdown_delay_s + config.drain_s + SPARE_S
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    periods = {
        int(COMPOSE["gateway"]["stop_grace_period"].removesuffix("s")),
        PODS["adacompute"]["terminationGracePeriodSeconds"],
        values["terminationGracePeriodSeconds"],
    }
    assert len(periods) == 1
    assert periods.pop() >= needed_s
    probe = PODS["adacompute"]["containers"][0]["readinessProbe"]
    assert config.shutdown_delay_s == probe["periodSeconds"] * probe["failureThreshold"]


def test_every_variable_of_the_configuration_is_given() -> None:
    variables = variables_in(GATEWAY)
    assert set(COMPOSE["gateway"]["environment"]) == variables
    for file in (DEPLOY / "kubernetes.yaml", CHART / "values.yaml"):
        assert set(re.findall(r"--from-literal=(\w+)", file.read_text())) == variables


def test_gateways_are_on_different_nodes_and_stop_one_at_a_time() -> None:
    labels: dict[str, Any] = OBJECTS["Deployment", "adacompute"]["template"]["metadata"]["labels"]
    budget = OBJECTS["PodDisruptionBudget", "adacompute"]
    assert budget == {"maxUnavailable": 1, "selector": {"matchLabels": labels}}
    for pod in PODS.values():
        rules = pod["affinity"]["podAntiAffinity"]
        (rule,) = rules["preferredDuringSchedulingIgnoredDuringExecution"]
        term = rule["podAffinityTerm"]
        assert term["topologyKey"] == "kubernetes.io/hostname"
        assert term["labelSelector"] == {"matchLabels": labels}


def test_prometheus_loads_the_alerts() -> None:
    settings = yaml.safe_load((DEPLOY / "prometheus.yaml").read_text())
    assert settings["rule_files"] == ["alerts.yaml"]
    mounted = "./alerts.yaml:/etc/prometheus/alerts.yaml:ro"
    assert mounted in COMPOSE["prometheus"]["volumes"]


@pytest.mark.parametrize("name", PODS)
def test_a_pod_may_do_little(name: str) -> None:
    pod = PODS[name]
    assert pod["automountServiceAccountToken"] is False
    rights = pod["securityContext"]
    assert rights["runAsNonRoot"]
    assert rights["runAsUser"] > 0
    assert rights["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in pod["containers"]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }


@pytest.mark.parametrize("name", COMPOSE)
def test_a_container_may_do_little(name: str) -> None:
    service = COMPOSE[name]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service.get("read_only", False) is (name != "grafana")


def test_the_admin_port_is_for_monitoring_and_redis_for_gateways() -> None:
    policy = OBJECTS["NetworkPolicy", "adacompute"]
    clients, admin = policy["ingress"]
    assert clients == {"ports": [{"port": "http"}]}
    assert admin["ports"] == [{"port": "admin"}]
    (peer,) = admin["from"]
    assert list(peer) == ["namespaceSelector"]
    networks = {name: set(one["networks"]) for name, one in COMPOSE.items()}
    assert {name for name in networks if "accounts" in networks[name]} == {"gateway", "redis"}
    assert all(":8001" not in port for one in COMPOSE.values() for port in one.get("ports", []))
