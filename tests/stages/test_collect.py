"""Collection through the command line, from a fake upstream that counts what it served."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("aiohttp", reason="the extra 'serve' is not installed")


from adacompute.models.capabilities_cache import cache_path, save_cached
from adacompute.models.messages import Capabilities
from adacompute.spending.token_prices import NANO
from adacompute.storage.paid_samples import LOST, PaidTotals, read_payments, sum_payments
from adacompute.storage.store import Run
from adacompute.testing.fake_openai import FakeSettings, FakeUpstream, serve_fake
from test_support.arithmetic import generate_problems

KILLS = int(os.environ.get("ADACOMPUTE_KILLS", "6"))


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def write_questions(path: Path, count: int) -> Path:
    rows = [
        {"question_id": q.id, "question": q.question, "gold": q.gold, "level": q.class_name}
        for q in generate_problems(count, seed=1)
    ]
    pq.write_table(pa.Table.from_pylist(rows), path / "questions.parquet")
    return path / "questions.parquet"


def command(questions: Path, run: Path, fake: FakeUpstream, *more: str) -> list[str]:
    asked = ("--base-url", fake.base_url, "--model", "fake", "--grader", "numeric")
    collect = (sys.executable, "-m", "adacompute", "collect", str(questions), "--run", str(run))
    return [*collect, *asked, *more]


def collect(
    questions: Path, run: Path, fake: FakeUpstream, *more: str
) -> tuple[int, dict[str, object], str]:
    done = subprocess.run(
        [*command(questions, run, fake, *more), "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    arm = json.loads(done.stdout)["arms"][0] if done.stdout else {}
    return done.returncode, arm, done.stderr


def paid(run: Path) -> PaidTotals:
    return sum_payments(run / "paid" / "segments")


def samples(run: Path) -> list[tuple[str, int]]:
    table = pq.read_table(run / "samples.parquet")
    pairs = zip(table["question_id"].to_pylist(), table["sample"].to_pylist(), strict=True)
    return sorted(pairs)


@pytest.mark.parametrize(
    ("fake_settings", "size"),
    [
        (FakeSettings(), 5),
        (FakeSettings(top_logprobs=0), None),
        (FakeSettings(logprobs=False), None),
    ],
)
def test_entropy_is_recorded_with_its_number_of_tokens(
    tmp_path: Path, fake_settings: FakeSettings, size: int | None
) -> None:
    questions, run = write_questions(tmp_path, 12), tmp_path / "run"
    with serve_fake(fake_settings) as fake:
        code, *_ = collect(questions, run, fake, "--samples", "2")
    assert code == 0
    table = pq.read_table(run / "samples.parquet")
    assert set(table["top_logprobs"].to_pylist()) == {size}
    assert table["entropy"].null_count == (len(table) if size is None else 0)


def test_a_collection_goes_on_with_more_samples(tmp_path: Path) -> None:
    questions, run = write_questions(tmp_path, 24), tmp_path / "run"
    with serve_fake(FakeSettings()) as fake:
        code, arm, error = collect(questions, run, fake, "--samples", "8")
        assert (code, arm["samples"], arm["missing"], error) == (0, 192, 0, "")
        served = fake.stats()["choices"]
        code, again, _ = collect(questions, run, fake, "--samples", "8")
        assert (code, again["new_samples"], fake.stats()["choices"]) == (0, 0, served)
        code, more, _ = collect(questions, run, fake, "--samples", "12")
        assert (code, more["new_samples"], more["samples"]) == (0, 96, 288)
    assert len(set(samples(run))) == 288


@pytest.mark.slow
def test_random_kills_lose_no_stored_sample_and_repeat_none(tmp_path: Path) -> None:
    count, run, dice = 8 + 4 * KILLS, tmp_path / "run", random.Random(5)
    questions, wanted = write_questions(tmp_path, count), 25 * count
    prices = ("--token-prices", str(write_prices(tmp_path)))
    with serve_fake(FakeSettings(latency_s=0.15, n="ignored")) as fake:
        more = ("--samples", "25", "--config", "concurrency=8", *prices)
        save_cached(cache_path(), fake.base_url, "fake", Capabilities(), ttl_s=3600)  # no probes
        for _ in range(KILLS):
            calls, before = fake.stats()["calls"], stored_rows(run)
            process = subprocess.Popen(command(questions, run, fake, *more), stderr=subprocess.PIPE)
            while fake.stats()["calls"] == calls:
                time.sleep(0.01)
            time.sleep(dice.uniform(0.0, 1.5))
            assert process.poll() is None, "killed in the middle"
            process.send_signal(signal.SIGKILL)
            process.communicate()
            assert stored_rows(run)[: len(before)] == before
        code, arm, error = collect(questions, run, fake, *more)
        assert (code, arm["samples"], error) == (0, wanted, "")
        billed = sum(fake.stats()[name] for name in ("choices", "cancelled"))
    assert arm["new_samples"] != 0, "the last kill left something to do"
    assert len(samples(run)) == len(set(samples(run))) == wanted
    totals = paid(run)
    lost = totals.counts[LOST]
    print(f"{KILLS} kills: {wanted} samples, {billed} billed, {lost} lost")  # noqa: T201
    assert totals.samples == wanted
    assert wanted <= billed <= wanted + lost
    assert round(totals.spent / NANO / 0.01) == wanted + lost
    # Those of a second that are not stored yet, and those under way.
    assert lost <= KILLS * (8 / 0.15 + 3 * 8)


def stored_rows(run: Path) -> list[tuple[int, int, str]]:
    return [(one.position, one.number, one.kind) for one in read_payments(run / "paid/segments")]


@pytest.mark.slow
def test_a_second_process_is_refused(tmp_path: Path) -> None:
    questions, run = write_questions(tmp_path, 40), tmp_path / "run"
    with serve_fake(FakeSettings(latency_s=0.2)) as fake:
        save_cached(cache_path(), fake.base_url, "fake", Capabilities(), ttl_s=3600)  # no probes
        more = ("--samples", "4", "--config", "concurrency=8")
        first = subprocess.Popen(command(questions, run, fake, *more), stdout=subprocess.PIPE)
        while not fake.stats()["calls"]:
            time.sleep(0.01)
        code, _, error = collect(questions, run, fake, *more)
        assert (code, f"another process works on {run / 'paid'}" in error) == (1, True)
        first.communicate(timeout=120)
        assert first.returncode == 0
        assert fake.stats()["calls"] == len(samples(run)) == 160


@pytest.mark.slow
def test_interrupt_stores_running_calls(tmp_path: Path) -> None:
    questions, run = write_questions(tmp_path, 60), tmp_path / "run"
    with serve_fake(FakeSettings(latency_s=0.2, n="ignored")) as fake:
        more = ("--samples", "20", "--config", "concurrency=8")
        save_cached(cache_path(), fake.base_url, "fake", Capabilities(), ttl_s=3600)  # no probes
        before = fake.stats()["choices"]
        process = subprocess.Popen(
            command(questions, run, fake, *more), stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        while fake.stats()["choices"] - before < 30:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=60)
        assert process.returncode == 1
        assert b"samples are missing: run the same command again" in error
        assert b"Traceback" not in error
        assert len(samples(run)) == fake.stats()["choices"] - before


def test_dry_run_calls_nothing(tmp_path: Path) -> None:
    questions, run = write_questions(tmp_path, 10), tmp_path / "run"
    (tmp_path / "prices.toml").write_text('[models."fake"]\ninput = 1\noutput = 2\n')
    with serve_fake(FakeSettings()) as fake:
        more = ("--dry-run", "--samples", "5", "--token-prices", str(tmp_path / "prices.toml"))
        code, arm, _ = collect(questions, run, fake, *more)
        assert (code, arm["samples"], fake.stats()["calls"]) == (0, 50, 0)
        assert arm["max_completion_tokens"] == 50 * 1024
        assert float(str(arm["max_cost"])) > 50 * 1024 * 2 / 1e6
    assert not run.exists()


def test_max_cost_holds(tmp_path: Path) -> None:
    questions, run = write_questions(tmp_path, 30), tmp_path / "run"
    (tmp_path / "prices.toml").write_text('[models."fake"]\ninput = 0\noutput = 0\ncall = 1\n')
    with serve_fake(FakeSettings(n="ignored")) as fake:
        more = (
            "--samples",
            "3",
            "--token-prices",
            str(tmp_path / "prices.toml"),
            "--max-cost",
            "20.5",
        )
        code, arm, error = collect(questions, run, fake, *more)
        assert fake.stats()["calls"] == 20
        # Two of the calls looked at the server: a tenth of the maximum is for that.
        assert (code, arm["samples"], arm["cost"]) == (1, 18, 18.0)
        assert "may cost more" in str(arm["stopped"])
        assert "72 samples are missing" in error


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (("--arm", "name=a", "--arm", "name=a"), "different names"),
        (("--arm", "model=b"), "needs a name"),
        (("--arm", "name=a,colour=b"), "has no 'colour'"),
        (("--arm", "name=a,samples=many"), "arm 'a'"),
        (("--max-cost", "3"), "needs prices"),
        (("--config", "prompt=nothing"), "{question}"),
        (("--config", "few-shot=/nowhere"), "/nowhere: No such file"),
        (("--grader", "none"), "there is no grader 'none'"),
        (("--arm", "oops"), "is not an arm such as"),
    ],
)
def test_wrong_use_is_refused_before_any_call(
    tmp_path: Path, more: tuple[str, ...], says: str
) -> None:
    questions, run = write_questions(tmp_path, 3), tmp_path / "run"
    with serve_fake(FakeSettings()) as fake:
        code, _, error = collect(questions, run, fake, *more)
        assert (code, fake.stats()["calls"]) == (2, 0)
    assert says in error
    assert "Traceback" not in error


def test_several_arms_are_collected(tmp_path: Path) -> None:
    questions, run = write_questions(tmp_path, 5), tmp_path / "run"
    with serve_fake(FakeSettings()) as fake:
        arms = ("--arm", "name=small,samples=2", "--arm", "name=big,effort=high,samples=1")
        done = subprocess.run(
            [*command(questions, run, fake, *arms), "--json"],
            capture_output=True,
            text=True,
            check=True,
        )
        rows = json.loads(done.stdout)["arms"]
    assert [(row["arm"], row["samples"]) for row in rows] == [("small", 10), ("big", 5)]
    table = pq.read_table(run / "samples.parquet")
    assert table["arm"].to_pylist() == ["small", "small", "big"] * 5
    assert table["sample"].to_pylist() == [0, 1, 0] * 5
    asked = pq.read_table(questions)["question_id"].to_pylist()
    assert table["question_id"].to_pylist()[::3] == asked
    recorded = Run(run).encoded_samples()
    assert (recorded.arms, len(recorded.id)) == (("small", "big"), 5)
    manifest = Run(run).manifest("collect")
    assert manifest is not None
    assert (manifest.result["model"], manifest.result["samples"]) == ("fake", 15)
    assert manifest.result["settings"] is None
    assert [arm["settings"]["effort"] for arm in manifest.result["arms"]] == [None, "high"]


def test_arms_are_tables_of_a_file_of_options(tmp_path: Path) -> None:
    questions, run = write_questions(tmp_path, 3), tmp_path / "run"
    (tmp_path / "arms.toml").write_text(
        '[[collect.arm]]\nname = "low"\nsamples = 2\nrequest = {reasoning_effort = "low"}\n'
        '[[collect.arm]]\nname = "think"\nsamples = 1\nprompt = "Think. {question}"\n'
        "[collect.arm.request.thinking]\nbudget_tokens = 16000\n"
    )
    with serve_fake(FakeSettings()) as fake:
        code, _, error = collect(questions, run, fake, "--config", str(tmp_path / "arms.toml"))
    assert (code, error) == (0, "")
    manifest = Run(run).manifest("collect")
    assert manifest is not None
    low, think = manifest.result["arms"]
    assert (low["samples"], low["settings"]["extra"]) == (6, {"reasoning_effort": "low"})
    assert think["settings"]["extra"] == {"thinking": {"budget_tokens": 16000}}
    assert (low["template"]["form"], think["template"]["form"]) == (
        "{question}",
        "Think. {question}",
    )


@pytest.mark.parametrize("kind", [(), ("--config", "completion=true")])
def test_log_probabilities_of_the_answer_are_recorded(
    tmp_path: Path, kind: tuple[str, ...]
) -> None:
    questions, run = write_questions(tmp_path, 4), tmp_path / "run"
    with serve_fake(FakeSettings()) as fake:
        assert collect(questions, run, fake, "--samples", "3", *kind)[0] == 0
    for row in pq.read_table(run / "samples.parquet").to_pylist():
        # The fake's tokens are words, such as " 42.", with a log-probability by their length.
        assert row["answer_logprob"] == pytest.approx(-0.1 * len(f" {row['answer']}."))
        assert row["min_logprob_window"] <= row["mean_logprob"] + 1e-6
        assert None not in (row["completion_tokens"], row["reasoning_tokens"], row["latency_s"])
        assert row["finish_reason"] == "stop"


def test_servers_without_log_probabilities_leave_them_null(tmp_path: Path) -> None:
    questions, run = write_questions(tmp_path, 2), tmp_path / "run"
    with serve_fake(FakeSettings(logprobs=False)) as fake:
        assert collect(questions, run, fake, "--samples", "2")[0] == 0
    table = pq.read_table(run / "samples.parquet")
    for name in ("mean_logprob", "min_logprob_window", "answer_logprob"):
        assert table[name].null_count == 4


def test_imported_run_is_refused(tmp_path: Path) -> None:
    questions, run = write_questions(tmp_path, 3), tmp_path / "run"
    run.mkdir()
    (run / "samples.parquet").write_bytes(b"paid for")
    with serve_fake(FakeSettings()) as fake:
        code, _, error = collect(questions, run, fake)
    assert (code, (run / "samples.parquet").read_bytes()) == (1, b"paid for")
    assert "holds imported samples" in error


def test_samples_with_other_settings_are_refused(tmp_path: Path) -> None:
    questions, run = write_questions(tmp_path, 3), tmp_path / "run"
    with serve_fake(FakeSettings()) as fake:
        assert collect(questions, run, fake, "--samples", "4")[0] == 0
        before = (run / "samples.parquet").read_bytes()
        other = (
            "--samples",
            "2",
            "--config",
            "temperature=0.2",
            "--config",
            "prompt=Say: {question}",
        )
        code, _, error = collect(questions, run, fake, *other)
        assert code == 1
        assert "'default' with another prompt and settings" in error
        assert (run / "samples.parquet").read_bytes() == before
        assert collect(questions, run, fake, "--samples", "5")[0] == 0  # more of the same
    assert len(samples(run)) == 15


def write_prices(path: Path) -> Path:
    """Write prices by which every call costs 0.01."""
    (path / "prices.toml").write_text('[models."fake"]\ninput = 0\noutput = 0\ncall = 0.01\n')
    return path / "prices.toml"


@pytest.mark.slow
def test_maximum_cost_counts_what_is_stored(tmp_path: Path) -> None:
    questions, prices = write_questions(tmp_path, 400), write_prices(tmp_path)
    options = ("--token-prices", str(prices), "--samples", "1", "--config", "concurrency=16")
    with serve_fake(FakeSettings(latency_s=0.05)) as fake:
        save_cached(cache_path(), fake.base_url, "fake", Capabilities(), ttl_s=3600)  # no probes
        run = tmp_path / "run"
        collect(questions, run, fake, *options, "--max-cost", "0.1")
        assert fake.stats()["calls"] == 10
        collect(questions, run, fake, *options, "--max-cost", "2")
        assert fake.stats()["calls"] == 200
        assert paid(run).spent == 2 * NANO
        code, arm, _ = collect(questions, run, fake, *options, "--max-cost", "2")
        assert (code, arm["new_samples"]) == (1, 0)
        collect(questions, run, fake, *options, "--max-cost", "2.25")
        assert fake.stats()["calls"] == 225


@pytest.mark.slow
def test_calls_of_a_killed_collector_count_at_their_maximum_cost(tmp_path: Path) -> None:
    questions, prices = write_questions(tmp_path, 100), write_prices(tmp_path)
    options = ("--token-prices", str(prices), "--samples", "1", "--config", "concurrency=8")
    faults = ("ok",) * 4 + ("stall",) * 8
    with serve_fake(FakeSettings(fault_script=faults)) as fake:
        save_cached(cache_path(), fake.base_url, "fake", Capabilities(), ttl_s=3600)  # no probes
        run = tmp_path / "run"
        process = subprocess.Popen(command(questions, run, fake, *options, "--max-cost", "0.5"))
        while fake.stats()["calls"] < 12 or paid(run).samples < 4:
            time.sleep(0.05)
        process.kill()
        process.wait()
        collect(questions, run, fake, *options, "--max-cost", "0.2")
        assert fake.stats()["calls"] == 20
        totals = paid(run)
        assert (totals.samples, totals.counts[LOST], totals.spent) == (12, 8, NANO // 5)
        collect(questions, run, fake, *options, "--max-cost", "0.3")
        assert (fake.stats()["calls"], paid(run).lost) == (30, totals.lost)


@pytest.mark.slow
def test_interrupted_replies_count_at_their_maximum_cost(tmp_path: Path) -> None:
    questions, run, prices = write_questions(tmp_path, 40), tmp_path / "run", tmp_path / "p.toml"
    prices.write_text("[models.fake]\ninput = 0.0\noutput = 10.0\n")
    settings = FakeSettings(fault_rates={"half": 0.5}, completion_tokens=20, record_calls=True)
    options = ("--token-prices", str(prices), "--samples", "2", "--config", "max-tokens=30")
    with serve_fake(settings) as fake:
        save_cached(cache_path(), fake.base_url, "fake", Capabilities(), ttl_s=3600)  # no probes
        code, arm, _ = collect(questions, run, fake, *options, "--max-cost", "0.012")
        billed = sum(call["completion_tokens"] for call in fake.calls()) * 1e-5
    assert (code, "may cost more" in str(arm["stopped"])) == (1, True)
    totals = paid(run)
    assert billed <= totals.spent / NANO == pytest.approx(float(str(arm["cost"])))
    assert 0.012 - 0.0003 <= totals.spent / NANO <= 0.012
    assert totals.counts["failed"] == fake.stats()["faults"]["half"]
