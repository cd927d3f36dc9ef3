"""The benchmarks run, count right, and judge right; nobody looks at times here."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks import report
from benchmarks.figures import Figures, rate
from benchmarks.goals import ALL as GOALS
from benchmarks.goals import Goal
from benchmarks.places import Place, Slow, places
from benchmarks.scale import written
from benchmarks.workloads import ALL, BY_NAME
from transcript_backends import CompactionPolicy, SegmentConflictError, TranscriptRef, open_store

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
OURS = ("sdk engine", "obstore engine", "file store", "fsspec store", "entries", "transcript_backends")
REF = TranscriptRef("acme", "coder", "s1")


# --- a quick run ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a quick run of everything has left what it found."""
    directory = tmp_path_factory.mktemp("results")
    command = [sys.executable, "-m", "benchmarks", "--quick", "--results", str(directory)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    return directory


@pytest.fixture(scope="module")
def figures(quick: Path) -> Figures:
    return Figures(json.loads((quick / "figures.json").read_text())["samples"])


def test_every_workload_runs(figures: Figures) -> None:
    for workload in ALL:
        if not workload.asked_for:
            done = {client for client in workload.clients if figures.samples(workload.name, client)}
            assert done >= set(workload.clients) & {*OURS, "boto3", "obstore"}, workload.name
            left = {client: figures.missing(workload.name, client) for client in workload.clients if client not in done}
            assert all("No module" in reason or "not installed" in reason for reason in left.values()), left


@pytest.mark.parametrize("goal", [goal for goal in GOALS if goal.exact], ids=lambda goal: goal.promise)
def test_what_is_counted_is_as_promised(goal: Goal, figures: Figures) -> None:
    assert goal.held(figures), goal.measured(figures)


@pytest.mark.parametrize(
    "workload", ["append-1", "append-32", "gcs-append-1", "gcs-append-32", "azure-append-1", "azure-append-32"]
)
def test_every_append_is_one_request(workload: str, figures: Figures) -> None:
    for client in BY_NAME[workload].clients:
        for sample in figures.samples(workload, client):
            assert sample["requests"] == {"PUT": sample["operations"]}
            assert sample["received"] >= 4096 * sample["operations"]


def test_a_read_gets_every_segment_once(figures: Figures) -> None:
    for client in ("sdk engine", "obstore engine", "boto3", "obstore"):
        (sample,) = figures.samples("read", client)
        assert sample["requests"] == {"GET": sample["operations"], "LIST": 1}


def test_the_end_of_a_compacted_session_is_a_listing_an_index_and_a_range(figures: Figures) -> None:
    for workload in ("tail-1000", "tail-100000", "tail-1000000"):  # all of them short ones here
        for client in ("sdk engine", "obstore engine"):
            assert [each["requests"] for each in figures.samples(workload, client)] == [{"GET": 2, "LIST": 1}]


def test_two_writers_and_a_reader_lose_nothing_with_this_package(figures: Figures) -> None:
    for client in ("sdk engine", "obstore engine"):
        (sample,) = figures.samples("sharing", client)
        assert (sample["lost"], sample["seen"]) == (0, sample["operations"])


def test_a_quick_run_tells_what_is_counted(quick: Path) -> None:
    goals = (quick / "goals.md").read_text()
    assert goals.count("| held |") == sum(goal.exact for goal in GOALS)
    assert "missed" not in goals
    workloads = (quick / "workloads.md").read_text()
    assert all(f"(`{each.name}`)" in workloads for each in ALL if not each.asked_for and each.name != "requests")


# --- the document -----------------------------------------------------------------------------------------------------


def test_the_document_holds_the_tables_of_the_last_run() -> None:
    run = json.loads((RESULTS / "figures.json").read_text())
    document = (ROOT / "docs" / "performance.md").read_text()
    assert written(document, report.tables(run)) == document, "run: python -m benchmarks --report"
    for name, content in report.tables(run).items():
        assert (RESULTS / f"{name}.md").read_text() == content + "\n"


# --- judging ----------------------------------------------------------------------------------------------------------


def sample(client: str, number: int, seconds: float, **facts: Any) -> dict[str, Any]:
    told = {"workload": "append-1", "client": client, "round": number, "operations": 10, "seconds": seconds}
    return {**told, "cpu_seconds": seconds, "requests": {"PUT": 10}, "peak_mib": 0.0, **facts}


def test_ratios_are_of_the_same_round() -> None:
    found = Figures([sample("a", 0, 1), sample("b", 0, 2), sample("a", 1, 10), sample("b", 1, 40), sample("a", 2, 1)])
    assert found.ratios(("append-1", "a"), ("append-1", "b"), rate) == [2, 4]


@pytest.mark.parametrize(("seconds", "held"), [(1.0, True), (1.001, False)])
def test_a_goal_is_held_at_its_limit_and_missed_below(seconds: float, held: bool) -> None:
    (goal,) = [each for each in GOALS if (each.limit, each.promise) == (6, "obstore: rate of boto3")]
    found = Figures([sample("boto3", 0, 6.0), sample("obstore engine", 0, seconds)])
    assert goal.held(found) is held
    assert ("| held |" in report.goals(found)) is held


def test_a_goal_that_was_not_measured_is_neither_held_nor_missed() -> None:
    missing = {"workload": "append-1", "client": "obstore engine", "round": 0, "missing": "obstore is not installed"}
    found = Figures([sample("boto3", 0, 1.0), missing])
    assert {goal.held(found) for goal in GOALS} == {None}
    assert "obstore is not installed" in report.workloads(found)


# --- the stub ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["s3", "gcs", "azure"])
def stub(request: pytest.FixtureRequest) -> Iterator[Place]:
    with places(request.param) as new_place, new_place() as place:
        yield place


@pytest.mark.parametrize("engine", ["sdk", "obstore"])
def test_the_stub_keeps_what_a_store_relies_on(engine: str, stub: Place) -> None:
    stub.reset()
    with open_store(stub.url(), engine=engine) as store:
        for seq in range(40):
            store.append_segment(REF, seq, seq, "w", b'{"n":%d}\n' % seq)
        with pytest.raises(SegmentConflictError):
            store.append_segment(REF, 0, 0, "w", b'{"n":1}\n')
        expected = [b'{"n":%d}' % seq for seq in range(40)]
        assert [each.line for each in store.records(REF)] == expected
        assert store.compact(REF, CompactionPolicy(full=True)).segments_after == 1
        assert [each.line for each in store.records(REF)] == expected
        assert [each.seq for each in store.tail(REF, 2)] == [38, 39]
        assert store.verify(REF).problems == []
        store.delete(REF)
        assert list(store.records(REF)) == []


def test_the_stub_lists_page_by_page(stub: Place) -> None:
    stub.reset()
    stub.fill(f"{REF.prefix}events/", 5500, records=2, line=b"{}\n")
    with open_store(stub.url(), engine="sdk") as store:
        found = store.list_segments(REF)
    assert [(each.seq_start, each.seq_end) for each in found] == [(2 * number, 2 * number + 1) for number in range(5500)]
    assert stub.counts().requests == {"LIST": 2 if stub.dialect == "azure" else 6}


def _seconds(call: Callable[[], object]) -> float:
    began = time.monotonic()
    call()
    return time.monotonic() - began


def test_the_stub_is_as_slow_as_it_is_told(stub: Place) -> None:
    stub.reset(Slow(0.05))
    with open_store(stub.url(), engine="sdk") as store:
        assert _seconds(lambda: store.list_segments(REF)) >= 0.045
        stub.slow(Slow(0.01, tail=1.0, factor=10))
        assert _seconds(lambda: store.list_segments(REF)) >= 0.095
