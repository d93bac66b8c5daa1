"""What cannot work is refused before anything listens, in one sentence that names the entry."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from adacompute.core.errors import AdaComputeError, ConfigError
from adacompute.core.types import make_levels
from adacompute.gateway.requests.access import is_loopback
from adacompute.gateway.settings.config import make_config, read_config
from adacompute.gateway.voting.model_loading import describe_verdict, load_models
from adacompute.gateway.voting.virtual_model import VirtualModel
from adacompute.models.probe import MAX_CALLS, MAX_COMPLETION_TOKENS, MAX_PROMPT_TOKENS
from adacompute.policies.bundles.bundle import Bundle, FrontierPoint, save_bundle
from adacompute.policies.price_schedule import PriceSchedule
from adacompute.policies.rule_policy import RulePolicy
from adacompute.policies.uniform import FixedRule
from test_support.gateways import free_port
from test_support.scripted import ScriptedReply, ScriptedServer

GOOD = 'base_url = "http://127.0.0.1:1/v1"'
MODEL = '[serve.models.m]\nbundle = "two"\nbudget = 2\nmodel = "real"\ngrader = "numeric"\n'
KEY = "sk-0123456789abcdef-of-a-test"


def write(place: Path, *lines: str) -> Path:
    path = place / "gateway.toml"
    path.write_text("\n".join(["[serve]", *lines]) + "\n")
    return path


def contains_words(message: str, words: str) -> bool:
    """Whether a message contains these words in this order."""
    return re.search(".*".join(map(re.escape, words.split())), message) is not None


WRONG = {
    "unknown": ([GOOD, "portt = 1"], "serve 'portt' base_url decision_log"),
    "unknown-in-model": ([GOOD, MODEL, "budge = 1"], "models.m 'budge'"),
    "bad-decision-log": ([GOOD, 'decision_log = "text"'], "decision_log none answers texts 'text'"),
    "text-for-port": ([GOOD, 'port = "8000"'], "serve.port int '8000'"),
    "yes-for-port": ([GOOD, "port = true"], "serve.port int True"),
    "far-port": ([GOOD, "port = 70000"], "port 65535 70000"),
    "fraction": ([GOOD, "workers = 1.5"], "serve.workers int 1.5"),
    "number-for-flag": ([GOOD, "forward_key = 1"], "serve.forward_key bool 1"),
    "list-for-host": ([GOOD, "host = []"], "serve.host str []"),
    "date": ([GOOD, "drain_s = 2026-01-01"], "serve.drain_s float"),
    "zero": ([GOOD, "drain_s = 0"], "drain_s above 0 0.0"),
    "endless": ([GOOD, "max_body_mb = inf"], "max_body_mb above 0 inf"),
    "no-number": ([GOOD, "drain_s = nan"], "drain_s above 0 nan"),
    "no-delay": ([GOOD, "shutdown_delay_s = -1"], "shutdown_delay_s 0 -1"),
    "negative": ([GOOD, "workers = -1"], "workers above 0 -1"),
    "no-url": ([], "serve 'base_url'"),
    "bad-url": (['base_url = "ftp://x"'], "http://host:port/v1"),
    "key-in-url": (['base_url = "http://a:secret@b/v1"'], "credentials"),
    "no-policy": ([GOOD, "[serve.models.m]", "budget = 2"], "models.m 'bundle'"),
    "no-both": ([GOOD, "[serve.models.m]"], "models.m 'bundle' 'budget'"),
    "no-budget": ([GOOD, MODEL.replace("budget = 2", "")], "models.m 'budget'"),
    "bad-budget": ([GOOD, MODEL.replace("= 2", "= -2")], "models.m budget above 0 -2"),
    "text-budget": ([GOOD, MODEL.replace("= 2", '= "2"')], "models.m.budget float"),
    "bad-today-share": ([GOOD, MODEL, "today_share = 2"], "models.m today_share 0 1 2"),
    "bad-rounds": ([GOOD, MODEL, "max_rounds = 0"], "models.m max_rounds above 0"),
    "no-table": ([GOOD, "models = 3"], "models table 3"),
    "no-model": ([GOOD, "[serve.models]", "m = 3"], "models.m table 3"),
    "one-token": ([GOOD, 'bearer_tokens = "sk-plain-1"'], "bearer_tokens list"),
    "no-days": ([GOOD, "keep_days = 0"], "keep_days above 0"),
    "file-for-redis": ([GOOD, 'account_store = "x.sqlite"'], "account_store Redis state_directory"),
    "name": ([GOOD, MODEL.replace("models.m", 'models."a b"')], "spaces quotes 'a b'"),
    "short-token": ([GOOD, 'bearer_tokens = ["sk-plain-1"]'], "bearer_tokens 20"),
    "three-tokens": ([GOOD, f"bearer_tokens = {[KEY] * 3}"], "bearer_tokens 2"),
    "number-token": ([GOOD, "bearer_tokens = [123456789]"], "bearer_tokens list"),
    "token-upstream": (
        [GOOD, "forward_key = true", f'bearer_tokens = ["{KEY}"]'],
        "forward_key bearer_tokens",
    ),
    "short-admin-key": ([GOOD, 'admin_key = "sk-plain-1"'], "admin_key 20"),
    "public": ([GOOD, 'host = "0.0.0.0"'], "host 0.0.0.0 bearer_tokens"),
    "public-6": ([GOOD, 'host = "::"'], "host :: bearer_tokens"),
    "public-name": ([GOOD, 'host = "example.org"'], "host example.org bearer_tokens"),
    "no-host": ([GOOD, 'host = ""'], "host bearer_tokens"),
    "variable": ([GOOD, 'upstream_api_key = "${NOT_SET_9}"'], "NOT_SET_9"),
    "key-type": ([GOOD, "upstream_api_key = 123456789"], "serve.upstream_api_key str int"),
    "key-lines": ([GOOD, 'upstream_api_key = "sk-1\\nX: sk-plain-1"'], "upstream_api_key header"),
}
"""Lines of a file, and words that the error must contain in this order."""


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_setting_is_an_error_that_names_it(name: str, tmp_path: Path) -> None:
    lines, why = WRONG[name]
    path = write(tmp_path, *lines)
    with pytest.raises(ConfigError) as refused:
        read_config(path, {})
    said = str(refused.value)
    assert contains_words(said, why)
    assert said.startswith(f"{path}: ")
    assert said.isprintable()
    assert not any(secret in said for secret in ("secret", "sk-plain-1", "123456789"))


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "has no table [serve]"),
        (b"serve = 3", "has no table [serve]"),
        (b"[serve", "cannot be read as TOML"),
        (b"\xff", "cannot be read as TOML"),
    ],
)
def test_a_file_that_is_not_a_configuration_is_an_error(
    content: bytes, why: str, tmp_path: Path
) -> None:
    path = tmp_path / "gateway.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as refused:
        read_config(path, {})
    assert str(path) in str(refused.value)
    assert why in str(refused.value)


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.toml cannot be read"):
        read_config(tmp_path / "none.toml", {})


def test_environment_variables_are_expanded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_9", "sk-9")
    path = write(
        tmp_path,
        GOOD,
        'upstream_api_key = "${SECRET_9}"',
        'state_directory = "${SECRET_9}"',
    )
    config = read_config(path, {})
    assert config.upstream_api_key == "sk-9"
    assert config.state == tmp_path / "sk-9"
    assert "sk-9" not in repr(config).replace(str(config.state), "")


def test_the_command_line_takes_precedence_over_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD, "port = 1", "max-body-mb = 2")
    config = read_config(path, {"port": 2})
    assert (config.port, config.max_body_mb) == (2, 2.0)


def test_relative_paths_start_at_the_file(tmp_path: Path) -> None:
    config = read_config(write(tmp_path, GOOD, MODEL), {})
    assert config.models["m"].bundle == str(tmp_path / "two")


def test_a_public_gateway_needs_a_token() -> None:
    config = {"base_url": "http://127.0.0.1:1/v1", "host": "0.0.0.0"}  # noqa: S104 - the point
    with pytest.raises(ConfigError):
        make_config(config)
    assert make_config({**config, "bearer_tokens": [KEY]}).bearer_tokens == (KEY,)


@pytest.mark.parametrize(
    ("host", "inside"),
    [
        *(("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("localhost", True)),
        *(("0.0.0.0", False), ("10.0.0.1", False), ("localhost.evil", False)),  # noqa: S104
    ],
)
def test_loopback_addresses_are_recognised(host: str, inside: bool) -> None:  # noqa: FBT001 - a parameter
    assert is_loopback(host) is inside


# Through the command, as it is used.

pytest.importorskip("uvicorn", reason="needs the extra 'serve'")


def check(path: Path, *options: str, **environment: str) -> Any:
    command = [sys.executable, "-m", "adacompute", "serve", "--config", str(path), *options]
    known = {name: text for name, text in os.environ.items() if not name.startswith("OPENAI_")}
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**known, **environment},
    )


def test_check_reports_the_models_and_starts_nothing(
    policies: Path, upstream: ScriptedServer
) -> None:
    port = free_port()
    upstream.answer(ScriptedReply(200, [], [b"{}"]))
    key = 'upstream_api_key = "sk-secret-9"'
    model = MODEL.replace("budget = 2", "budget = 3")
    path = write(policies, f'base_url = "{upstream.base_url}"', f"port = {port}", key, model)
    done = check(path, "--check", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    told = json.loads(done.stdout)
    assert told["listen"] == f"127.0.0.1:{port}"
    (shown,) = told["models"]
    assert (shown["name"], shown["budget"], shown["min_budget"]) == ("m", 3.0, 2.0)
    assert "sk-secret-9" not in done.stdout
    assert [(one.method, one.target) for one in upstream.received] == [("GET", "/v1/models")]
    assert told["upstreams"] == [{"upstream": None, "base_url": upstream.base_url, "problem": None}]
    with socket.socket() as plug:
        assert plug.connect_ex(("127.0.0.1", port)) != 0


def test_check_lists_limits_directories_and_what_the_probe_costs(policies: Path) -> None:
    (policies / "prices.toml").write_text("[models.real]\ninput = 1.0\noutput = 2.0\n")
    path = write(
        policies,
        GOOD,
        'max_output_tokens = 50\naccount_store = "redis://:secret-7@127.0.0.1:9/0"',
        f'state_directory = "state"\ntoken_prices = "prices.toml"\nbearer_tokens = ["{KEY}"]',
        f"{MODEL}max_samples = 8\n",
    )
    cache = {"XDG_CACHE_HOME": str(policies / "empty")}
    told = json.loads(check(path, "--check", "--json", **cache).stdout)
    assert told["needs_token"] is True
    assert told["limits"]["max_output_tokens"] == 50
    assert told["models"][0]["limits"] == {"max_samples": 8}
    found = {one["name"]: (one["directory"], one["is_writable"]) for one in told["directories"]}
    assert found["state"] == (str(policies.resolve() / "state"), True)
    probe = told["probe"]
    assert (probe["models"], probe["max_calls"]) == (["real"], MAX_CALLS)
    assert probe["max_cost"] == pytest.approx((MAX_PROMPT_TOKENS + 2 * MAX_COMPLETION_TOKENS) / 1e6)
    shown = check(path, "--check", **cache).stdout
    for name in ("needed", "max_output_tokens", str(MAX_CALLS), "real"):
        assert name in shown
    assert "secret-7" not in shown + json.dumps(told)
    assert KEY not in shown + json.dumps(told)
    silent = write(policies, GOOD, "probe = false", MODEL)
    assert json.loads(check(silent, "--check", "--json").stdout)["probe"]["max_calls"] == 0


LOADED = {
    "missing": (MODEL.replace('"two"', '"none"'), "none"),
    "budget": (MODEL.replace("budget = 2", "budget = 0.5"), "budget 0.5 2"),
    "grader": (MODEL.replace("numeric", "nonsense"), "nonsense"),
    "no-model": (MODEL.replace('model = "real"', ""), "two model"),
    "no-grader": (MODEL.replace('grader = "numeric"', ""), "two grader"),
    "token_prices": (f'{MODEL}token_prices = "none.toml"', "none.toml"),
}


@pytest.mark.parametrize("name", LOADED)
def test_a_model_that_cannot_be_served_is_an_error_that_names_it(name: str, policies: Path) -> None:
    from adacompute.gateway.voting.model_loading import load_models

    model, why = LOADED[name]
    config = read_config(write(policies, GOOD, model), {})
    with pytest.raises(AdaComputeError) as refused:
        load_models(config)
    assert contains_words(str(refused.value), why)
    assert "models.m" in str(refused.value)


@pytest.mark.parametrize("option", ["--check", "--json"])
def test_the_command_prints_one_sentence(option: str, policies: Path) -> None:
    done = check(write(policies, GOOD, "portt = 1"), option)
    assert done.returncode != 0
    assert done.stdout == ""
    (sentence,) = done.stderr.strip().splitlines()
    assert sentence.startswith("adacompute: ")
    assert "has no 'portt'" in sentence


def test_a_gateway_cannot_be_its_own_upstream() -> None:
    with pytest.raises(ConfigError, match=r"base_url.*port"):
        make_config({"base_url": "http://127.0.0.1:8000/v1"})
    assert make_config({"base_url": "http://127.0.0.1:8000/v1", "port": 8001}).port == 8001


def calibrated(
    path: Path, verdict: str, *, budget: float = 2.0, max_rounds: int | None = None, **notes: Any
) -> Path:
    """Save a bundle whose calibration at a budget ended in a verdict."""
    rule = FixedRule(2)
    policy = RulePolicy("test", make_levels((1, 2)), (rule,), PriceSchedule((0.1,)))
    frontier = (FrontierPoint(1.0, 0.1, 1.0, 1.0, 1.0, 0.5, 0.4, 0.6, 1.0),)
    notes = {"policy": "test", "calibration": {"budget": budget, "verdict": verdict}, **notes}
    save_bundle(Bundle(policy, frontier=frontier, max_rounds=max_rounds, notes=notes), path)
    return path


def load(bundle: Path, **settings: Any) -> VirtualModel:
    model = {"bundle": str(bundle), "budget": 2.0, "model": "real", "grader": "numeric"}
    content = {"base_url": "http://127.0.0.1:1/v1", "models": {"m": {**model, **settings}}}
    return load_models(make_config(content))["m"]


@pytest.mark.parametrize("verdict", ["loss", "no gain", "inconclusive"])
def test_a_policy_without_a_gain_is_served_only_if_the_verdict_is_accepted(
    verdict: str, tmp_path: Path
) -> None:
    bundle = calibrated(tmp_path / "b", verdict)
    with pytest.raises(ConfigError, match="accept_verdict"):
        load(bundle)
    model = load(bundle, accept_verdict=True)
    assert verdict in str(describe_verdict("m", model))


def test_a_gain_a_uniform_policy_and_another_budget_need_no_flag(tmp_path: Path) -> None:
    assert "'gain'" in str(describe_verdict("m", load(calibrated(tmp_path / "gain", "gain"))))
    uniform = load(calibrated(tmp_path / "mixture", "no gain", policy="mixture"))
    assert describe_verdict("m", uniform) is None
    today = {"verdict": "saves", "advice": "policy"}
    known: dict[str, Any] = {"verdict": "no gain", "budget": 2.0, "today": today}
    saving = load(calibrated(tmp_path / "saves", "no gain", calibration=known))
    assert "'saves'" in str(describe_verdict("m", saving))
    known["today"] = {"verdict": "saves", "advice": "fewer samples"}
    with pytest.raises(ConfigError, match="no gain"):
        load(calibrated(tmp_path / "fewer", "no gain", calibration=known))
    other = load(calibrated(tmp_path / "other", "loss", budget=3.0))
    assert "not judged" in str(describe_verdict("m", other))


def test_rounds_that_were_not_calibrated_are_refused(tmp_path: Path) -> None:
    unlimited = calibrated(tmp_path / "unlimited", "gain")
    assert load(unlimited).max_rounds is None
    with pytest.raises(ConfigError, match="max-rounds=2"):
        load(unlimited, max_rounds=2)
    limited = calibrated(tmp_path / "limited", "gain", max_rounds=3)
    assert load(limited).max_rounds == 3
    assert load(limited, max_rounds=3).max_rounds == 3
    with pytest.raises(ConfigError, match="max-rounds=2"):
        load(limited, max_rounds=2)
