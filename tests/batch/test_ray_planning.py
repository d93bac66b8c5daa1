"""Plans on Ray: the same files and the same price as the local engine."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from adacompute.batch.planning import spool
from adacompute.batch.planning.local import PlanProgress, find_work, make_plan, prepare_batch
from adacompute.batch.planning.plan_output import write_first_actions
from adacompute.batch.processes import WorkerProcesses
from adacompute.batch.questions import open_questions
from adacompute.batch.ray.cluster import SETTINGS, START_TRIES, connect, map_tasks
from adacompute.batch.ray.planning import prepare_on_ray, write_on_ray
from adacompute.core.errors import AdaComputeError, DataError
from adacompute.policies.bundles.bundle import Bundle

os.environ |= SETTINGS  # before Ray is imported
ray = pytest.importorskip("ray", reason="needs the extra 'ray'")
ALONE = WorkerProcesses(1)
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


def test_a_cluster_that_is_not_there_is_named() -> None:
    with pytest.raises(AdaComputeError, match=r"127\.0\.0\.1:1"), connect("127.0.0.1:1"):
        pass


def test_a_start_that_takes_too_long_is_tried_again_and_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    starts = []

    def init(**_: object) -> None:
        starts.append(1)
        raise Exception("The current node timed out during startup.")  # noqa: TRY002 - as Ray does

    monkeypatch.setattr(ray, "init", init)
    with (
        pytest.raises(
            AdaComputeError, match="Ray did not start, try again: The current node timed out"
        ),
        connect(),
    ):
        pass
    assert len(starts) == START_TRIES


@pytest.fixture(scope="module")
def cluster() -> Iterator[set[str]]:
    before = open_to_others()
    with connect(n_cpus=2):
        yield before


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("name", ["sequential", "router"])
def test_both_engines_give_the_same_plan(
    name: str,
    request: pytest.FixtureRequest,
    make_texts: Callable[[int], list[str]],
    write_questions: Callable[..., str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bundle: Bundle = request.getfixturevalue(name)
    texts: list[str | None] = list(make_texts(300))
    texts[7] = None
    source = open_questions([write_questions(texts)])
    local = prepare_batch(bundle, source, directory=tmp_path / "local", processes=ALONE)
    total = 2.5 * bundle.level_cost[0, 0] * 299
    expected = make_plan(local, total)
    parts = write_first_actions(local, expected, tmp_path / "local" / "plan", ALONE)
    monkeypatch.setattr(spool, "SHARD_ROWS", 1)  # other shards
    seen: list[PlanProgress] = []
    batch = prepare_on_ray(
        bundle, source, directory=tmp_path / "ray", workers=2, on_progress=seen.append
    )
    plan = make_plan(batch, total)
    assert len(batch.shards) > len(local.shards)
    assert seen[-1].n_done == 300
    assert plan.price == expected.price
    assert plan.expected_cost == expected.expected_cost
    written = write_on_ray(batch, plan, tmp_path / "ray" / "plan", workers=2)
    assert written.counts == parts.counts
    assert find_work(bundle, source, tmp_path / "ray").tasks == ()


def open_to_others() -> set[str]:
    """Return the addresses on which something listens and that other machines may reach."""
    lines = [
        line.split()
        for name in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]
    ]
    listening = {line[1] for line in lines if line[3] == "0A"}
    loopback = ("0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000")
    return {one for one in listening if not one.startswith(loopback)}


def test_ray_listens_on_the_loopback_interface_only(cluster: set[str]) -> None:
    assert ray.nodes()[0]["NodeManagerAddress"] == "127.0.0.1"
    assert open_to_others() <= cluster


class Divider:
    def __init__(self, by: int) -> None:
        self.by = by

    def __call__(self, number: int) -> str:
        if number == self.by:
            raise DataError(f"{number} is no number of ours")
        return str(number // self.by)


class Fragile:
    """Dies once with its process."""

    def __init__(self, mark: str) -> None:
        self.mark = Path(mark)

    def __call__(self, number: int) -> str:
        if number == 1 and not self.mark.exists():
            self.mark.touch()
            os._exit(9)
        return str(number)


@pytest.mark.usefixtures("cluster")
def test_results_come_with_the_numbers_of_their_tasks() -> None:
    found = dict(map_tasks(Divider, {"by": 9}, n_tasks=4, max_workers=2))
    assert found == {0: "0", 1: "0", 2: "0", 3: "0"}


class Meeting:
    """Waits until the other task has started too."""

    def __init__(self, directory: str) -> None:
        self.directory = Path(directory)

    def __call__(self, number: int) -> str:
        (self.directory / str(number)).touch()
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            if len(list(self.directory.iterdir())) > 1:
                return "met"
            time.sleep(0.05)
        return "alone"


@pytest.mark.usefixtures("cluster")
def test_as_many_tasks_as_workers_run_at_the_same_time(tmp_path: Path) -> None:
    found = dict(map_tasks(Meeting, {"directory": str(tmp_path)}, n_tasks=2, max_workers=2))
    assert found == {0: "met", 1: "met"}


@pytest.mark.usefixtures("cluster")
def test_errors_of_workers_are_our_own() -> None:
    with pytest.raises(DataError, match="2 is no number"):
        list(map_tasks(Divider, {"by": 2}, n_tasks=4, max_workers=2))


@pytest.mark.usefixtures("cluster")
def test_the_tasks_of_lost_workers_are_run_again(tmp_path: Path) -> None:
    done = map_tasks(Fragile, {"mark": str(tmp_path / "died")}, n_tasks=4, max_workers=2)
    assert sorted(number for number, _ in done) == [0, 1, 2, 3]
