"""Every guide is a program that runs, with the output it shows."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from transcript_backends import TranscriptRef, open_store

GUIDES = sorted((Path(__file__).resolve().parent.parent / "docs/guides").glob("*.md"))
REF = TranscriptRef.parse("acme/coder/session-1")


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A store of the test's own, and commands that are those of this interpreter, whose warnings are errors."""
    commands = tmp_path / "bin"
    commands.mkdir()
    for name, arguments in (("python", ""), ("transcripts", "-m transcript_backends.cli")):
        (commands / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" -W error {arguments} "$@"\n')
        (commands / name).chmod(0o755)
    path = f"{commands}:{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "TRANSCRIPT_STORE_URL": f"file://{tmp_path}/store"}


def programs(guide: Path) -> dict[str, str]:
    """The programs in a guide; each begins with its file's name."""
    blocks = re.findall(r"^```python\n(.*?)^```", guide.read_text(), re.MULTILINE | re.DOTALL)
    return {re.match(r"# (\w+\.py): ", block)[1]: block for block in blocks}  # type: ignore[index]


def commands(guide: Path) -> list[tuple[str, str]]:
    """The commands in a guide, each with the output that is shown."""
    blocks = re.findall(r"^```console\n(.*?)^```", guide.read_text(), re.MULTILINE | re.DOTALL)
    return [each for block in blocks for each in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE)]


def test_there_are_guides() -> None:
    assert [each.stem for each in GUIDES] == ["append-from-an-agent", "follow-a-live-session", "resume-on-another-replica"]


@pytest.mark.parametrize("guide", GUIDES, ids=lambda each: each.stem)
def test_a_guide_does_what_it_shows(guide: Path, tmp_path: Path, environment: dict[str, str]) -> None:
    assert programs(guide)
    for name, program in programs(guide).items():
        (tmp_path / name).write_text(program)
    assert len(commands(guide)) >= 3
    for command, output in commands(guide):
        done = subprocess.run(
            command, shell=True, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, output, ""), command


@pytest.mark.parametrize(("end", "code"), [(signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_the_agent_of_the_guide_loses_nothing_when_it_is_stopped(
    end: signal.Signals, code: int, tmp_path: Path, environment: dict[str, str]
) -> None:
    """It is stopped in the middle of a turn, before anything of it was sent."""
    program = programs(GUIDES[0])["agent.py"]
    slow = program.replace('spool_dir="spool"', 'spool_dir="spool", max_age=3600')
    call = "            seq = writer.append(entry)\n"
    assert call in slow
    slow = slow.replace(call, call + '            print("appended", flush=True)\n            sys.stdin.readline()\n')
    (tmp_path / "agent.py").write_text(slow)
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-W", "error", "agent.py"],
        cwd=tmp_path,
        env=environment,
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        text=True,
    ) as agent:
        assert agent.stdin is not None
        assert agent.stdout is not None
        agent.stdin.write("Fix it.\n\n")
        agent.stdin.flush()
        assert agent.stdout.readline() + agent.stdout.readline() == "appended\n" * 2
        agent.send_signal(end)
        assert agent.wait(60) == code
        assert agent.stderr is not None
        assert agent.stderr.read() == ""
    with open_store(environment["TRANSCRIPT_STORE_URL"]) as store:
        assert len(list(store.records(REF))) == (2 if end == signal.SIGTERM else 0)
        store.writer(REF, spool_dir=str(tmp_path / "spool")).close()
        assert [record.json()["type"] for record in store.records(REF)] == ["message", "tool_use"]
