"""Runs tests on copies of the project in which one rule is broken at a time. The checkout itself is never changed."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Literal, NamedTuple

from mutants.mutations import Mutation, StaleError

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 150.0  # seconds for the tests of one mutation
_COPIED = ("transcript_backends", "tests", "localstack", "docs", "pyproject.toml")
_MOST_MEMORY = 6_000_000  # KiB: a mutation may allocate without end
_PYTEST = ("-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-p", "mutants.profile")
_ENVIRONMENT = {"PYTHONHASHSEED": "0", "MALLOC_ARENA_MAX": "2"}  # the latter leaves more of the memory to the tests
_FAILED = re.compile(r"^(?:FAILED|ERROR) tests/(\S+?\.py::[\w:]+)", re.MULTILINE)
_SEED = re.compile(r"^(\w+, seed \d+): (\w+)", re.MULTILINE)

Verdict = Literal["caught", "timeout", "survived", "stale", "no verdict"]


class BaselineError(Exception):
    """A test fails on the product as it is."""


class Result(NamedTuple):
    """What became of one mutation.

    Attributes:
        mutation: which.
        verdict: ``caught``, also as ``timeout``, where the tests never end; ``no verdict``: pytest did not run the tests.
        by: what caught it, or what is wrong.
        seconds: that it took.
    """

    mutation: Mutation
    verdict: Verdict
    by: str
    seconds: float

    @property
    def is_fine(self) -> bool:
        """Whether it is as the list says."""
        return self.verdict == "survived" if self.mutation.survives else self.verdict in ("caught", "timeout")


class _Done(NamedTuple):
    """A process that has ended; ``code`` is None where it was stopped at the time limit."""

    code: int | None
    output: str


class Tree:
    """A copy of the project in a temporary directory."""

    def __init__(self, root: Path, directory: Path) -> None:
        self._directory = directory / "project"
        self._temporary = directory / "tmp"
        self._temporary.mkdir()
        for name in _COPIED:
            if (root / name).is_dir():
                shutil.copytree(root / name, self._directory / name, ignore=shutil.ignore_patterns("__pycache__"))
            elif (root / name).exists():
                shutil.copy(root / name, self._directory / name)

    @contextlib.contextmanager
    def changed(self, mutation: Mutation) -> Iterator[None]:
        """Have a mutation in the copy for a while."""
        path = self._directory / mutation.file
        before = path.read_text()
        try:
            self._write(path, mutation.apply(before))
            yield
        finally:
            self._write(path, before)

    def _write(self, path: Path, text: str) -> None:
        path.write_text(text)
        for compiled in path.parent.glob(f"__pycache__/{path.stem}.*"):  # known by second and size, which may be the same
            compiled.unlink()

    def pytest(self, tests: Sequence[str], limit: float) -> _Done:
        return self._run([*_PYTEST, *tests], self._directory, limit)

    def simulate(self, schedules: int, world: str, limit: float) -> _Done:
        return self._run(["-m", "mutants.schedules", str(schedules), world], self._directory / "tests", limit)

    def _run(self, arguments: Sequence[str], directory: Path, limit: float) -> _Done:
        """Run Python in a session of its own, of which nothing is left afterwards."""
        python_path = os.pathsep.join(str(self._directory / each) for each in ("", "tests", "localstack"))
        environment = {**os.environ, "PYTHONPATH": python_path, "TMPDIR": str(self._temporary), **_ENVIRONMENT}
        command = ["sh", "-c", f'ulimit -v {_MOST_MEMORY}; exec "$@"', "sh", sys.executable, *arguments]
        with tempfile.TemporaryFile("w+") as output:
            process = subprocess.Popen(
                command, cwd=directory, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )
            code: int | None = None
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = process.wait(limit)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            output.seek(0)
            return _Done(code, output.read())


def run(mutations: Sequence[Mutation], processes: int, *, root: Path = ROOT, limit: float = LIMIT) -> Iterator[Result]:
    """Try mutations, several at once; return the results as they come.

    Raises:
        BaselineError: what should catch them fails without them.
    """
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(processes) as pool:
        trees: SimpleQueue[Tree] = SimpleQueue()
        for _ in range(processes):
            directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="mutants-"))
            trees.put(Tree(root, Path(directory)))

        def attempt(mutation: Mutation) -> Result:
            tree = trees.get()
            try:
                return _attempt(tree, mutation, limit)
            finally:
                trees.put(tree)

        def check(part: int) -> None:
            tree = trees.get()
            try:
                _check(tree, mutations, part, processes)
            finally:
                trees.put(tree)

        list(pool.map(check, range(processes)))
        yield from pool.map(attempt, mutations)


def _check(tree: Tree, mutations: Sequence[Mutation], part: int, parts: int) -> None:
    """See that a part of the tests passes on the product as it is, or every mutation would count as caught."""
    tests = sorted({test for each in mutations for test in each.caught_by})[part::parts]
    done = [tree.pytest(tests, 3600.0)] if tests else []
    for number, world in enumerate(sorted({each.world for each in mutations})):
        if number % parts == part and (schedules := max(each.schedules for each in mutations if each.world == world)):
            done.append(tree.simulate(schedules, world, 3600.0))
    for each in done:
        if each.code != 0:
            raise BaselineError(f"the tests fail on the product as it is:\n{each.output[-5000:]}")


def _attempt(tree: Tree, mutation: Mutation, limit: float) -> Result:
    began = time.monotonic()
    try:
        with tree.changed(mutation):
            verdict, by = _judge(tree, mutation, limit)
    except StaleError as error:
        verdict, by = "stale", str(error)
    return Result(mutation, verdict, by, time.monotonic() - began)


def _judge(tree: Tree, mutation: Mutation, limit: float) -> tuple[Verdict, str]:
    if mutation.caught_by:
        code, output = tree.pytest(mutation.caught_by, limit)
        if code is None:
            return "timeout", "the tests did not end"
        if code == 1:
            found = _FAILED.search(output)
            return "caught", found.group(1) if found else output[-300:]
        if code != 0:
            return "no verdict", f"pytest ended with {code}: {output[-1000:]}"
    if mutation.schedules:
        code, output = tree.simulate(mutation.schedules, mutation.world, limit)
        if code is None:
            return "timeout", "the simulation did not end"
        if code != 0:
            found = _SEED.search(output)
            return ("caught", f"simulation, {found.group(1)}") if found else ("no verdict", output[-1000:])
    return "survived", mutation.survives
