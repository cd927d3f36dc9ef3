import json
import re
import subprocess
import sys

import pytest

import transcript_backends as tb
from transcript_backends.cli.app import program

CODES = {
    tb.TranscriptStoreError: 1,
    tb.ConditionalWritesUnsupportedError: 1,
    tb.CorruptSegmentError: 1,
    tb.JournalError: 1,
    tb.MissingExtraError: 1,
    tb.StoreClosedError: 1,
    tb.InvalidURLError: 2,
    tb.InvalidRefError: 2,
    tb.InvalidSegmentError: 2,
    tb.InvalidEntryError: 2,
    tb.InvalidEventError: 2,
    tb.SegmentNotFoundError: 3,
    tb.ContainerNotFoundError: 3,
    tb.SegmentConflictError: 4,
    tb.VersionConflictError: 4,
    tb.AccessDeniedError: 5,
    tb.StoreUnavailableError: 6,
    tb.UnexpectedResponseError: 6,
    tb.PartialDeleteError: 7,
    RuntimeError: 1,
    KeyboardInterrupt: 130,
}


def test_every_error_of_the_library_has_an_exit_code_here():
    public = {value for name in tb.__all__ if isinstance(value := getattr(tb, name), type) and issubclass(value, Exception)}
    assert public <= CODES.keys()


@pytest.mark.parametrize(("kind", "code"), CODES.items(), ids=lambda each: getattr(each, "__name__", each))
def test_an_error_is_one_message_on_stderr_and_its_exit_code(invoke, monkeypatch, kind, code):
    def fail(*_):
        raise kind("what went wrong")

    monkeypatch.setattr(tb.ObjectTranscriptStore, "list_segments", fail)
    result = invoke("ls", "demo/s", code=code)
    assert result.stdout == ""
    assert re.fullmatch("transcripts: error: .*\n", result.stderr)
    assert "what went wrong" in result.stderr or kind is KeyboardInterrupt
    result = invoke("ls", "demo/s", "--json", code=code)
    assert result.stdout == ""
    error = json.loads(result.stderr)
    assert set(error) == {"error", "message"}
    assert error["error"] == (kind.__name__ if kind is not KeyboardInterrupt else "Interrupted")


def test_a_module_that_is_missing_is_no_bug_and_what_installs_it_is_said(invoke, monkeypatch):
    def fail(*_):
        raise ModuleNotFoundError("No module named 'their_sdk'", name="their_sdk")

    monkeypatch.setattr(tb.ObjectTranscriptStore, "list_segments", fail)
    shown = invoke("ls", "demo/s", code=1).stderr
    assert "No module named 'their_sdk'" in shown
    assert "pip install -U 'transcript-backends[all]'" in shown
    assert "bug" not in shown


def test_an_error_of_no_special_kind_shows_its_cause(invoke, monkeypatch):
    def fail(*_):
        raise tb.TranscriptStoreError("could not do it; see the cause below") from OSError("the cause")

    monkeypatch.setattr(tb.ObjectTranscriptStore, "list_segments", fail)
    assert "(OSError: the cause)" in invoke("ls", "demo/s", code=1).stderr


def test_the_store_is_taken_before_and_after_the_commands_name_and_the_later_one_wins(invoke, tmp_path):
    one, two = f"file://{tmp_path}/one", f"file://{tmp_path}/two"
    invoke("--store", one, "append", "demo/a/one", stdin=b"{}\n")
    invoke("append", "demo/a/two", "--store", two, stdin=b"{}\n")
    assert invoke("ls", "--store", one).stdout == "demo/a/one\n"
    assert invoke("--store", two, "ls").stdout == "demo/a/two\n"
    assert invoke("--store", one, "ls", "--store", two).stdout == "demo/a/two\n"
    assert invoke("ls", code=3).stdout == ""


def test_without_any_store_named_the_users_own_directory_is_used(invoke, monkeypatch, tmp_path):
    monkeypatch.delenv("TRANSCRIPT_STORE_URL")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    invoke("append", "demo/a/s", stdin=b"{}\n")
    assert list(tmp_path.rglob("demo/a/s/events/*.jsonl"))


def test_a_url_with_placeholders_is_refused_with_what_to_write(invoke, tmp_path):
    result = invoke("ls", "--store", f"file://{tmp_path}/{{tenant}}", code=2)
    assert "has placeholders ({tenant}); write a value in place of each" in result.stderr


@pytest.mark.parametrize(
    "url", ["s3://key:hunter2@bucket/x", "s3://bucket/x?secret_access_key=hunter2", "memory://x?a=hunter2"]
)
@pytest.mark.parametrize("command", [["ls"], ["ls", "--json"], ["doctor"]])
def test_secrets_in_a_url_are_not_repeated(invoke, url, command):
    assert "hunter2" not in invoke(*command, "--store", url, code=1 if command == ["doctor"] else 2).output


def test_usage_errors_are_exit_code_2_and_say_where_the_help_is(invoke):
    assert invoke("cat", code=2).stderr == "transcripts: error: Missing argument 'REF'. (see 'transcripts cat --help')\n"
    assert "No such command 'impotr'" in invoke("impotr", code=2).stderr
    error = json.loads(invoke("ls", "--json", "--bogus", code=2).stderr)
    assert error["error"].startswith("NoSuchOption")


def test_help_shows_examples_of_each_command_and_the_exit_codes(invoke):
    for name in program.commands:
        help_text = invoke(name, "-h").stdout
        assert help_text == invoke(name, "--help").stdout
        assert re.search(rf"Examples:\n.*transcripts {name} ", help_text + " ") or f"transcripts {name}\n" in help_text
    text = invoke("--help").stdout
    assert text == invoke().stdout
    for code in sorted({*CODES.values(), 0}):
        assert re.search(rf"^ +{code}  \w", text, re.MULTILINE)


def test_the_version_is_the_packages(run):
    assert run("--version").stdout.decode() == f"transcripts {tb.__version__}\n"


def test_help_loads_no_cloud_sdk():
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "transcript_backends.cli", "--help"], capture_output=True, check=True
    )
    loaded = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.decode().splitlines()}
    assert not {"boto3", "botocore", "msgspec"} & loaded
    assert "click" in loaded


_WITHOUT = """
import sys
class Without:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == {name!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Without())
from transcript_backends.cli import main
main()
"""


@pytest.mark.parametrize("name", ["click", "rich"])
def test_without_the_extra_the_command_says_what_to_install(name):
    done = subprocess.run([sys.executable, "-c", _WITHOUT.format(name=name)], capture_output=True, check=False)
    assert done.returncode == 1
    message = "the command line needs click and rich: pip install 'transcript-backends[cli]'\n"
    assert (done.stdout, done.stderr.decode()) == (b"", message)
