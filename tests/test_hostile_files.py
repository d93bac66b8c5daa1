"""A file from elsewhere runs nothing, leads nowhere, and takes no more memory than it should.

One hostile file per format and fault. Each is refused in one sentence of ours.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import shutil
import subprocess
import sys
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

import adacompute as ada
from adacompute.core import memory
from adacompute.core.errors import AdaComputeError, BundleError, ConfigError, DataError
from adacompute.datasets.example import locate_bundle
from adacompute.gateway.settings.config import make_config
from adacompute.gateway.voting.model_loading import load_models
from adacompute.graders.grader import COMMAND
from adacompute.models.capabilities_cache import load_cached
from adacompute.options.main import BatchOptions
from adacompute.policies.bundles.bundle import load_bundle
from adacompute.policies.bundles.bundle_files import (
    FILE,
    TABLES,
    find_digest,
    locate_file,
    unpack_tables,
)
from adacompute.spending.token_prices import parse_token_prices
from adacompute.stages.batch import run_batch
from adacompute.stages.collect import LOG, collect_run
from adacompute.stages.inputs import describe_source
from adacompute.stages.train import train_run
from adacompute.storage import result_files
from adacompute.storage.array_files import pack_arrays
from adacompute.storage.decisions import read_decisions
from adacompute.storage.regular_files import read_json
from adacompute.storage.result_files import ResultFiles
from adacompute.storage.store import SAMPLES, Run

DEEP = "[" * 200_000
BRACKETS = b"[" + b"[]," * 3_000_000 + b"[]]"
"""Nine megabytes of JSON that become more than 200 MB of lists."""

SMALL_BYTES = 64 << 20
GRADER = """
import json, sys
for line in sys.stdin:
    said = json.loads(line)
    print(json.dumps({"answer": said.get("text"), "equal": said.get("left") == said.get("right")}),
          flush=True)
"""


@pytest.fixture
def marker(tmp_path: Path) -> Iterator[Path]:
    """A file that a hostile command would make; at the end it must not be there."""
    path = tmp_path / "marker"
    yield path
    assert not path.exists()


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """Return a copy of the bundle that ships, to be altered."""
    path = tmp_path / "bundle"
    shutil.copytree(locate_bundle(Path("example")), path)
    return path


def alter(bundle: Path, **entries: Any) -> Path:
    content = json.loads((bundle / FILE).read_text())
    (bundle / FILE).write_text(json.dumps(content | entries))
    return bundle


def replace_tables(bundle: Path, data: bytes) -> Path:
    digest = hashlib.sha256(data).hexdigest()
    locate_file(bundle, TABLES, digest).write_bytes(data)
    return alter(bundle, files={TABLES: digest})


def command(marker: Path) -> str:
    return f"cmd:sh -c 'touch {marker}; cat'"


@contextmanager
def refused(kind: type[Exception] = AdaComputeError) -> Iterator[None]:
    """Expect one sentence of ours, and little memory."""
    tracemalloc.start()
    try:
        with pytest.raises(kind) as caught:
            yield
        assert tracemalloc.get_traced_memory()[1] < SMALL_BYTES
    finally:
        tracemalloc.stop()
    assert isinstance(caught.value, AdaComputeError)
    assert "\n" not in str(caught.value)


async def nobody(_: str, n: int) -> list[str]:
    return ["It is 2."] * n


def serve_options(bundle: Path, **options: Any) -> dict[str, Any]:
    model = {"bundle": str(bundle), "budget": 2, "accept_verdict": True, **options}
    return {"base_url": "http://127.0.0.1:9/v1", "probe": False, "models": {"m": model}}


# A command in a bundle.

USES: dict[str, Callable[[Path], Any]] = {
    "session": lambda path: ada.load_policy(path).start("What is 1 + 1?", budget=2.0),
    "sampler": lambda path: ada.Sampler(load_bundle(path), model=nobody, budget=2.0),
    "sampler of a policy": lambda path: ada.Sampler(
        ada.load_policy(path), model=nobody, budget=2.0
    ),
    "app": lambda path: ada.create_app({"m": path}, base_url="http://127.0.0.1:9/v1", budget=2.0),
    "gateway": lambda path: load_models(make_config(serve_options(path))),
}


@pytest.mark.parametrize("use", USES)
def test_a_command_in_a_bundle_is_not_run(bundle: Path, marker: Path, use: str) -> None:
    alter(bundle, grader=command(marker))
    assert load_bundle(bundle).grader == COMMAND
    with refused(ConfigError):
        USES[use](bundle)


def test_a_command_in_a_bundle_does_not_answer_a_batch(
    bundle: Path, marker: Path, tmp_path: Path
) -> None:
    alter(bundle, grader=command(marker))
    (tmp_path / "q.jsonl").write_text('{"question_id": "a", "question": "What is 1 + 1?"}\n')
    options = BatchOptions(
        bundle=bundle,
        out=tmp_path / "batch",
        base_url="http://127.0.0.1:9/v1",
        budget=2.0,
        accept_verdict=True,
    )
    with refused(ConfigError):
        run_batch([str(tmp_path / "q.jsonl")], options=options)


def test_serve_asks_for_the_command_before_it_listens(bundle: Path, marker: Path) -> None:
    alter(bundle, grader=command(marker))
    serve = [sys.executable, "-m", "adacompute", "serve", "--bundle", str(bundle), "--budget", "2"]
    serve += ["--base-url", "http://127.0.0.1:9/v1", "--accept-verdict", "--port", "0"]
    done = subprocess.run(serve, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert "--grader" in done.stderr
    assert "listening" not in done.stderr


def test_the_operators_own_command_is_used(bundle: Path, marker: Path, tmp_path: Path) -> None:
    alter(bundle, grader=command(marker))
    (tmp_path / "grader.py").write_text(GRADER)
    own = f"cmd:{sys.executable} {tmp_path / 'grader.py'}"
    assert load_models(make_config(serve_options(bundle, grader=own)))["m"].grader.name == own
    session = ada.load_policy(bundle, grader=own).start("What is 1 + 1?", budget=2.0)
    request = session.ask()
    assert request is not None
    session.tell(["2"] * request.n)
    assert session.answer == "2"


# Files of a bundle.


@pytest.mark.parametrize("name", [FILE, "tables-*.npz"])
@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_only_regular_files_of_a_bundle_are_read(
    bundle: Path, tmp_path: Path, name: str, kind: str
) -> None:
    path, moved = next(bundle.glob(name)), tmp_path / "moved"
    path.rename(moved)
    if kind == "link":
        path.symlink_to(moved)
    else:
        os.mkfifo(path)
    with refused(BundleError):
        load_bundle(bundle)


@pytest.mark.parametrize("data", [DEEP.encode(), BRACKETS, b" " * (1 << 25)])
def test_a_document_that_would_fill_the_memory_is_refused(bundle: Path, data: bytes) -> None:
    (bundle / FILE).write_bytes(data)
    with refused(BundleError):
        load_bundle(bundle)


def test_a_file_that_is_too_large_is_refused_before_it_is_read(bundle: Path) -> None:
    os.truncate(next(bundle.glob("tables-*.npz")), (256 << 20) + 1)
    with refused(BundleError):
        load_bundle(bundle)


class Evil:
    """Touches a file when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.marker}",)


def npy(shape: tuple[int, ...], data: bytes, kind: str = "<f4") -> bytes:
    buffer = io.BytesIO()
    header = {"descr": kind, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(buffer, header)
    return buffer.getvalue() + data


def archive(*entries: tuple[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in entries:
            file.writestr(name, data)
    return buffer.getvalue()


ARRAYS: dict[str, Callable[[Path], bytes]] = {
    "compressed": lambda _: archive(("mass.npy", npy((1 << 27,), bytes(1 << 29)))),
    "many": lambda _: archive(*((f"{i}.npy", npy((1 << 22,), bytes(1 << 24))) for i in range(32))),
    "promise": lambda _: archive(("mass.npy", npy((1 << 31, 1), b"12345678"))),
    "negative": lambda _: archive(("mass.npy", npy((-1, -8), bytes(32)))),
    "none": lambda _: archive(("mass.npy", npy((0, 1 << 80), b""))),
    "pickle": lambda path: archive(("mass.npy", npy((1,), pickle.dumps(Evil(path)), "|O"))),
    "no array": lambda _: archive(("mass.npy", b"touch")),
    "no archive": lambda _: b"touch",
}


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_are_checked_before_they_are_allocated(
    bundle: Path, marker: Path, name: str
) -> None:
    data = ARRAYS[name](marker)
    replace_tables(bundle, data)
    with refused(BundleError):
        load_bundle(bundle)
    with refused(BundleError):
        unpack_tables(data)


@pytest.mark.parametrize("name", ARRAYS)
def test_kept_results_of_a_run_are_checked_before_they_are_allocated(
    tmp_path: Path, marker: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, data = ResultFiles(tmp_path / "kept", "1"), ARRAYS[name](marker)
    monkeypatch.setattr(result_files, "pack_arrays", lambda *_, **__: data)
    files.write("key", {})  # with a valid first line
    assert next((tmp_path / "kept").iterdir()).stat().st_size > len(data)
    assert files.read("key") is None
    assert not marker.exists()


@pytest.fixture(scope="module")
def fitted_router(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a bundle of the paper's router."""
    pytest.importorskip("xgboost", reason="needs the extra 'router'")
    path = tmp_path_factory.mktemp("router") / "bundle"
    ada.Router(levels=(1, 2, 4), budgets=[2.0]).fit(ada.read_samples("example")).save(path)
    return path


TREES: dict[str, Callable[[dict[str, Any], Path], bytes | dict[str, Any]]] = {
    "cycle": lambda good, _: change(good, "children", (0, 1), 0),
    "far child": lambda good, _: change(good, "children", (0, 0), 10**8),
    "negative child": lambda good, _: change(good, "children", (0, 0), -7),
    "feature": lambda good, _: change(good, "feature", 0, 16),
    "threshold": lambda good, _: change(good, "threshold", 0, np.nan),
    "root": lambda good, _: change(good, "root", -1, 10**8),
    "level": lambda good, _: change(good, "level", -1, 3),
    "short": lambda good, _: good | {"0_leaf": good["0_leaf"][:-1]},
    "kind": lambda good, _: good | {"0_feature": good["0_feature"].astype(np.int8)},
    "missing": lambda good, _: {k: v for k, v in good.items() if k != "0_root"},
    "another": lambda good, _: good | {"99_leaf": good["0_leaf"]},
    "unnamed": lambda good, _: good | {"leaf": good["0_leaf"]},
    "pickle": lambda _, path: archive(("0_leaf.npy", npy((1,), pickle.dumps(Evil(path)), "|O"))),
    "promise": lambda _, __: archive(("0_leaf.npy", npy((1 << 31, 1), b"12345678"))),
    "huge": lambda _, __: archive(("0_leaf.npy", npy((1 << 27,), bytes(1 << 29)))),
}


def change(good: dict[str, Any], name: str, index: Any, value: Any) -> dict[str, Any]:
    """Change a number of the first model."""
    array = good[f"0_{name}"].copy()
    array[index] = value
    return good | {f"0_{name}": array}


@pytest.mark.parametrize("fault", TREES)
def test_trees_of_a_router_are_checked_before_they_are_walked(
    fitted_router: Path, marker: Path, tmp_path: Path, fault: str
) -> None:
    bundle = tmp_path / "router"
    shutil.copytree(fitted_router, bundle)
    good = unpack_tables(next(bundle.glob("tables-*.npz")).read_bytes())
    replace_tables(bundle, pack_arrays(good))
    assert load_bundle(bundle).policy.decides_once
    made = TREES[fault](good, marker)
    replace_tables(bundle, made if isinstance(made, bytes) else pack_arrays(made))
    with refused(BundleError):
        load_bundle(bundle)
    assert not marker.exists()


# Run directories.


def alter_manifest(run: Path, **entries: Any) -> Run:
    path = run / "import.manifest.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | entries))
    return Run(run)


def test_a_command_in_a_manifest_is_not_run(run: Path, marker: Path, tmp_path: Path) -> None:
    store = alter_manifest(run, result={"grader": command(marker)})
    assert describe_source(store)["grader"] == COMMAND
    with refused(ConfigError):
        ada.read_samples(run)
    train_run(run, policy="mixture", out=tmp_path / "b", levels=(1, 2, 4))
    assert str(marker) not in (tmp_path / "b" / FILE).read_text()
    assert load_bundle(tmp_path / "b").grader == COMMAND
    assert len(ada.read_samples(run, grader="numeric")) == 24


@pytest.mark.parametrize(
    "entries",
    [
        {"result": {"grader": ["cmd:touch marker"]}},
        {"result": {"model": {"a": 1}}},
        {"outputs": {"../../etc/passwd": "0"}},
        {"outputs": {"/etc/passwd": "0"}},
        {"format": DEEP},
    ],
)
def test_a_manifest_with_other_values_is_refused(run: Path, entries: dict[str, Any]) -> None:
    with refused(DataError):
        describe_source(alter_manifest(run, **entries))


@pytest.mark.parametrize(
    "result", [{"template": {"form": 1}}, {"template": "x"}, {"settings": [1]}]
)
def test_a_manifest_of_a_collection_is_checked(run: Path, result: dict[str, Any]) -> None:
    alter_manifest(run, result=result)
    with refused(DataError):
        ada.read_samples(run)


@pytest.mark.parametrize("data", [DEEP.encode(), BRACKETS * 8, b"\xff", b"[]"])
def test_a_json_file_of_a_run_or_a_batch_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "job.json").write_bytes(data)
    with pytest.raises(DataError):
        read_json(tmp_path / "job.json")


def test_links_of_a_run_are_not_followed(run: Path, tmp_path: Path) -> None:
    (run / SAMPLES).rename(tmp_path / SAMPLES)
    (run / SAMPLES).symlink_to(tmp_path / SAMPLES)
    with refused(DataError):
        Run(run).samples()
    mine = tmp_path / "profile"
    mine.write_text("mine")
    other = tmp_path / "other"
    other.mkdir()
    (other / LOG).symlink_to(mine)
    with refused(DataError):
        collect_run(_plan(tmp_path), other)
    assert mine.read_text() == "mine"


def _plan(tmp_path: Path) -> Any:
    from adacompute.collection.plan import read_plan

    (tmp_path / "q.jsonl").write_text('{"question_id": "a", "question": "1 + 1?", "gold": "2"}\n')
    return read_plan(
        str(tmp_path / "q.jsonl"),
        model="m",
        grader="numeric",
        base_url="http://127.0.0.1:9/v1",
        samples=1,
    )


# Files of questions, samples and logs.


@pytest.fixture
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that the machine has little memory, so that the files can be small."""
    monkeypatch.setattr(memory, "MEMORY_BYTES", SMALL_BYTES)


ROW = {"question_id": "a", "question": "1 + 1?", "gold": "2", "sample": 0, "completion": "2"}


def write_parquet(path: Path, n_rows: int = 4_000_000) -> None:
    """Write equal rows, which are short in the file and long in memory."""
    table = pa.table({name: pa.array([value]) for name, value in ROW.items()})
    pq.write_table(table.take(pa.array(np.zeros(n_rows, dtype=np.int64))), path)


SAMPLE_FILES: dict[str, Callable[[Path], object]] = {
    "bomb.parquet": write_parquet,
    "none.parquet": lambda path: path.write_bytes(b"PAR1touch\0\0\0\0PAR1"),
    "deep.jsonl": lambda path: path.write_text(json.dumps(ROW)[:-1] + f', "x": {DEEP}'),
    "bomb.jsonl": lambda path: path.write_bytes(b'{"question_id": ' + BRACKETS + b"}"),
    "list.jsonl": lambda path: path.write_text("[1]"),
    "number.jsonl": lambda path: path.write_text(json.dumps(ROW | {"sample": 1e300})),
    "wide.csv": lambda path: path.write_text("sample," * 10_000 + "x"),
    "broken.csv": lambda path: path.write_bytes(b'question_id,sample\n"' + b"a" * 1_000_000),
    "bomb.eval": lambda path: path.write_bytes(archive(("header.json", BRACKETS))),
    "deep.eval": lambda path: path.write_bytes(archive(("header.json", DEEP.encode()))),
    "large.eval": lambda path: path.write_bytes(archive(("header.json", bytes(1 << 29)))),
    "none.eval": lambda path: path.write_bytes(b"PK touch"),
}


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("name", SAMPLE_FILES)
def test_a_hostile_file_of_samples_is_refused(tmp_path: Path, name: str) -> None:
    SAMPLE_FILES[name](tmp_path / name)
    before = pa.total_allocated_bytes()
    with refused(DataError):
        ada.read_samples(tmp_path / name, grader="numeric")
    assert pa.total_allocated_bytes() - before < SMALL_BYTES


def test_a_log_of_inspect_runs_nothing_that_it_names(tmp_path: Path, marker: Path) -> None:
    evil = f"__import__('os').system('touch {marker}')"
    header = {"version": 2, "eval": {"task": evil, "model": evil, "scorers": [{"name": evil}]}}
    sample = {"id": evil, "epoch": 1, "input": evil, "target": "2", "output": {"completion": "2"}}
    sample |= {"scores": {evil: {"value": "C", "answer": evil}}}
    path = tmp_path / "log.json"
    path.write_text(json.dumps(header | {"samples": [sample]}))
    assert len(ada.read_samples(path, grader="exact")) == 1


def test_a_log_of_lm_eval_runs_nothing_that_it_names(tmp_path: Path, marker: Path) -> None:
    evil, date = f"!function os.system('touch {marker}')", "2026-01-01T00-00-00.0"
    config = {"process_results": evil, "doc_to_text": evil, "metric_list": [{"metric": evil}]}
    config |= {"filter_list": [{"name": evil, "filter": [{"function": evil}]}]}
    (tmp_path / f"results_{date}.json").write_text(json.dumps({"configs": {"t": config}}))
    line = {"doc_id": 0, "doc": {"question": evil}, "target": "2", "resps": [["2", "3"]]}
    line |= {"filtered_resps": ["2"], "filter": evil, "exact_match": 1.0}
    path = tmp_path / f"samples_t_{date}.jsonl"
    path.write_text(json.dumps(line))
    assert len(ada.read_samples(path, grader="exact")) == 1
    (tmp_path / f"results_{date}.json").write_text(DEEP)
    with refused(DataError):
        ada.read_samples(path, grader="exact")


def write_decisions(path: Path, **columns: Any) -> None:
    """Write a table of decisions of the present format."""
    table = pa.table(columns)
    pq.write_table(table.replace_schema_metadata({"adacompute.log_format": "2"}), path)


LOGS: dict[str, Callable[[Path], object]] = {
    "decisions-1.parquet": lambda path: path.write_bytes(b"PAR1touch\0\0\0\0PAR1"),
    "decisions-2.parquet": lambda path: write_decisions(path, x=[1]),
    "decisions-3.parquet": lambda path: write_decisions(path, id=["a"], answers=["touch"]),
    "decisions-4.parquet": lambda path: path.symlink_to("/etc/passwd"),
    "active-1.jsonl": lambda path: path.write_text('{"format": 2, "id": {}}\n'),
    "active-2.jsonl": lambda path: path.write_text('{"format": 2, "id": "a", "time": "now"}\n'),
    "active-3.jsonl": lambda path: path.write_text('{"format": [2]}\n'),
    "active-4.jsonl": lambda path: path.symlink_to("/etc/passwd"),
    "active-5.jsonl": os.mkfifo,
    "active-6.jsonl": lambda path: path.write_bytes(BRACKETS),
}


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("name", LOGS)
def test_a_hostile_log_of_decisions_is_refused(tmp_path: Path, name: str) -> None:
    LOGS[name](tmp_path / name)
    with refused(DataError):
        read_decisions(tmp_path)


def test_a_line_of_a_log_that_is_nested_too_deeply_is_skipped(tmp_path: Path) -> None:
    (tmp_path / "active-1.jsonl").write_text(DEEP + "\n")
    assert read_decisions(tmp_path).num_rows == 0


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("deep.json", DEEP),
        ("deep.toml", "x = " + DEEP),
        ("huge.toml", f"[models.m]\ninput = {'9' * 400}\noutput = 1"),
        ("digits.toml", f"[models.m]\ninput = {'9' * 5000}\noutput = 1"),
        (
            "huge.json",
            f'{{"m": {{"input_cost_per_token": {"9" * 400}, "output_cost_per_token": 1}}}}',
        ),
        ("large.json", " " * (1 << 25)),
        ("grader.toml", '[models.m]\ninput = 1\noutput = 1\ngrader = "cmd:touch marker"'),
    ],
)
def test_a_hostile_file_of_token_prices_is_refused(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    with refused(ConfigError):
        parse_token_prices(tmp_path / name)


def test_a_hostile_cache_of_capabilities_counts_as_none(tmp_path: Path) -> None:
    from adacompute.models.capabilities_cache import _file_path

    url = "http://127.0.0.1:9/v1"
    for text in (DEEP, "[]", '{"base_url": 1}', "{"):
        _file_path(tmp_path, url, "m").write_text(text)
        assert load_cached(tmp_path, url, "m") is None


# Digests.


def test_another_bundle_than_the_pinned_one_is_refused(bundle: Path) -> None:
    digest = find_digest(bundle)
    assert digest == hashlib.sha256((bundle / FILE).read_bytes()).hexdigest()
    known = {"bundle_digest": digest.upper(), "grader": "numeric"}
    assert load_models(make_config(serve_options(bundle, **known)))
    assert ada.load_policy(bundle, digest=digest)
    alter(bundle, model="another")
    with refused(ConfigError):
        load_models(make_config(serve_options(bundle, **known)))
    with refused(BundleError):
        ada.load_policy(bundle, digest=digest)
    with refused(ConfigError):
        make_config(serve_options(bundle, bundle_digest="abc"))
    serve = [sys.executable, "-m", "adacompute", "serve", "--bundle", str(bundle), "--budget", "2"]
    serve += [
        "--base-url",
        "http://127.0.0.1:9/v1",
        "--config",
        f"bundle_digest={digest}",
        "--port",
        "0",
    ]
    done = subprocess.run(serve, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode != 0
    assert digest in done.stderr
    assert "listening" not in done.stderr
