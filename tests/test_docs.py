"""What the documents show works as shown."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = [
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    *(str(each.relative_to(ROOT)) for each in ROOT.glob("docs/**/*.md")),
]


def blocks(document: str, language: str) -> list[str]:
    text = (ROOT / document).read_text()
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def test_the_python_examples_of_the_readme_run(capsys: pytest.CaptureFixture[str]) -> None:
    printed = []
    for example in blocks("README.md", "python"):
        assert len(example.strip().splitlines()) <= 13
        exec(compile(example, "README.md", "exec"), {})
        printed.append(capsys.readouterr().out)
    assert printed == [
        "0 replica-a {'role': 'user'}\n1 replica-a {'role': 'assistant'}\n",
        "{'role': 'user', 'content': 'hello'}\n",
        "['hello']\n",
    ]


def test_the_commands_of_the_readme_run(tmp_path: Path) -> None:
    (tmp_path / "session.jsonl").write_text('{"role":"user"}\n')
    commands = [line.removeprefix("$ ") for block in blocks("README.md", "console") for line in block.splitlines()]
    commands += re.findall(r"`(transcripts [^`]+)`", (ROOT / "README.md").read_text())
    ours = [shlex.split(command)[1:] for command in commands if command.startswith("transcripts ")]
    assert len(ours) >= 4
    for arguments in ours:
        done = subprocess.run(
            [sys.executable, "-m", "transcript_backends.cli", *arguments],
            cwd=tmp_path,
            env={"XDG_DATA_HOME": str(tmp_path / "data"), "PATH": "/usr/bin:/bin"},
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, (arguments, done.stderr)
        if arguments[0] == "cat":
            assert done.stdout == b'{"role":"user"}\n'


def test_the_demo_shows_the_main_job() -> None:
    done = subprocess.run([sys.executable, ROOT / "docs/examples/demo.py"], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert "5 objects gone, 0 records left" in done.stdout


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_between_the_documents_lead_somewhere(document: str) -> None:
    for target in re.findall(r"\]\((?!https?://)([^)#]+)\)", (ROOT / document).read_text()):
        assert (ROOT / document).parent.joinpath(target).exists(), target


@pytest.mark.parametrize("scheme", ["s3", "gs", "az", "fsspec+memory"])
def test_every_setting_is_documented(scheme: str) -> None:
    from transcript_backends.registry import COMMON_SETTINGS, find_backend

    text = (ROOT / "docs/urls.md").read_text()
    common, section = text, text.split(f"\n## {scheme.partition('+')[0]}", 1)[1].split("\n## ", 1)[0]
    for setting in (*find_backend(scheme).settings, *COMMON_SETTINGS):
        where = common if setting in COMMON_SETTINGS else section
        if setting not in COMMON_SETTINGS or setting.kind != "object":
            assert f"`{setting.name}`" in where
            assert all(f"`{alias}`" in where for alias in setting.aliases if not alias.startswith("aws_") or not setting.secret)
