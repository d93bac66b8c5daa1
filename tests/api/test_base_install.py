"""The API works with the base install alone, wherever no learned model or server is needed."""

from __future__ import annotations

import subprocess
import sys

EXTRAS = (
    *("xgboost", "sklearn", "onnx", "onnxruntime", "math_verify", "scipy", "pandas", "polars"),
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
from adacompute import research

for name in ada.__all__:
    getattr(ada, name)
URL = "http://127.0.0.1:1/v1"
samples = ada.read_samples("example").take(range(0, 300, 3))
policy = ada.AdaptiveConsistency(max_samples=4).fit(samples)
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
    lambda: research.ValueRouter().fit(samples),
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
    assert "adacompute[train]" in missing[0]
    assert "pandas" in missing[1]
    assert "adacompute[serve]" in missing[2]
