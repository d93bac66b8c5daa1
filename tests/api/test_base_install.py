"""The API works with the base install alone, wherever no router or server is needed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import adacompute as ada

EXTRAS = (
    *("xgboost", "math_verify", "pandas", "polars"),
    *("aiohttp", "starlette", "uvicorn", "prometheus_client", "matplotlib", "jinja2", "datasets"),
    "redis",
)

PROGRAM = f"""
import asyncio, sys

class Missing:
    def find_spec(self, name, path, target=None):
        if name.split(".")[0] in {EXTRAS!r}:
            raise ModuleNotFoundError(name, name=name)

sys.meta_path.insert(0, Missing())
import adacompute as ada

for name in ada.__all__:
    getattr(ada, name)
URL = "http://127.0.0.1:1/v1"
samples = ada.read_samples("example").take(range(0, 300, 3))
policy = ada.Sequential(max_samples=4).fit(samples)
ada.calibrate(policy, samples, budget=2.5)
ada.evaluate([policy, "mixture"], samples, budgets=[2])
policy.save(sys.argv[1])
policy = ada.load_policy(sys.argv[1])
session = policy.start("What is 17 + 25?", budget=2.5)
while request := session.ask():
    session.tell(["42"] * request.n)

async def model(prompt, n):
    return ["42"] * n

print(session.answer, asyncio.run(ada.Sampler(policy, model=model, budget=2.5).run("?")).answer)
for use in (
    lambda: ada.Router().fit(samples),
    lambda: samples.to_pandas(),
    lambda: ada.create_app({{"m": policy}}, base_url=URL, budget=2.5, accept_verdict=True),
):
    try:
        use()
    except ada.MissingExtra as error:
        print(error)
"""


def test_base_install(tmp_path: object) -> None:
    command = [sys.executable, "-c", PROGRAM, f"{tmp_path}/policy"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    answers, *missing = done.stdout.splitlines()
    assert answers == "42 42"
    assert len(missing) == 3
    assert "adacompute[router]" in missing[0]
    assert "pandas" in missing[1]
    assert "adacompute[serve]" in missing[2]


SERVE = """
import sys
import adacompute as ada
import adacompute.cli.main

for path in sys.argv[1:]:
    policy = ada.load_policy(path)
    known = {"base_url": "http://127.0.0.1:1/v1", "budget": 2.0, "accept_verdict": True}
    ada.create_app({"m": policy}, **known)
    policy.start("What is 17 + 25?", budget=2.0).ask()
print({name.split(".")[0] for name in sys.modules} & {"scipy", "sklearn", "xgboost"})
"""


@pytest.mark.slow
def test_serving_imports_no_library_of_learners(tmp_path: Path) -> None:
    samples = ada.read_samples("example").take(range(0, 300, 3))
    for policy in (ada.Sequential(max_samples=4), ada.Router(levels=(1, 2, 4))):
        ada.calibrate(policy.fit(samples), samples, budget=2.0)
        policy.save(tmp_path / policy.kind)
    command = [sys.executable, "-c", SERVE, *map(str, sorted(tmp_path.iterdir()))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "set()\n"), done.stderr
