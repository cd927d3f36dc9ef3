"""Transcripts as other programs spell them: told of by every command that goes through a store, read with ``ids=raw``."""

import json

import pytest
from click.testing import CliRunner

from transcript_backends.cli.app import program

LINE = b'{"id":"m","type":"message"}\n'
THEIRS = ["a b", "café", "user@host", "with=sign"]


@pytest.fixture
def theirs(tmp_path, url):
    """A store with a session of ours and some of another program; gives its directory."""
    for name in ("s1", *THEIRS):
        events = tmp_path / "store/acme/coder" / name / "events"
        events.mkdir(parents=True)
        (events / "0-0-9f8e7d6c.jsonl").write_bytes(LINE)
    return tmp_path / "store"


def warnings(result):
    return [line.partition("warning: ")[2] for line in result.stderr.splitlines() if "warning:" in line]


MESSAGE = (
    "4 transcripts are left out whose ids are spelled otherwise than in this store: 'acme/coder/a b', 'acme/coder/café', "
    "'acme/coder/user@host', ...; open the store with ids=raw for them"
)
COMMANDS = [
    ["ls"],
    ["ls", "--tenant", "acme", "--agent", "coder"],
    ["stats"],
    ["stats", "acme"],
    ["stats", "acme/coder/"],
    ["verify", "--all"],
    ["compact", "--all"],
    ["compact", "--all", "--dry-run"],
    ["sync", "{url}", "{copy}"],
    ["sync", "{url}", "{copy}", "--dry-run"],
    ["cp", "{url}", "{copy}"],
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_what_is_left_out_is_counted_and_named_with_the_remedy(invoke, theirs, url, tmp_path, command):
    arguments = [each.format(url=url, copy=tmp_path / "copy") for each in command]
    assert warnings(invoke(*arguments)) == [MESSAGE]
    result = invoke(*arguments, "--json")
    assert [json.loads(line) for line in result.stderr.splitlines()] == [{"warning": MESSAGE, "skipped": 4}]
    assert all(map(json.loads, result.stdout.splitlines()))


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_with_raw_ids_nothing_is_left_out(theirs, url, tmp_path, command):
    raw = f"{url}?ids=raw"
    arguments = [each.format(url=raw, copy=f"{tmp_path}/copy") for each in command]
    result = CliRunner().invoke(program, [*arguments, *(["--store", raw] if command[0] not in ("sync", "cp") else [])])
    assert (result.exit_code, result.stderr) == (0, "")


def test_a_store_of_another_program_is_read_written_and_removed_by_its_refs(invoke, theirs, url, write):
    raw = f"{url}?ids=raw"
    refs = invoke("ls", "--store", raw).stdout.splitlines()
    assert refs == [
        "acme/coder/a=20b",
        "acme/coder/caf=C3=A9",
        "acme/coder/s1",
        "acme/coder/user=40host",
        "acme/coder/with=3Dsign",
    ]
    for ref in (*refs, "acme/coder/user@host"):
        assert invoke("cat", ref, "--store", raw).stdout.encode() == LINE
    invoke("import", write(LINE), "acme/coder/a b", "--store", raw)
    assert sorted(each.name for each in (theirs / "acme/coder").iterdir()) == sorted(["s1", *THEIRS])
    assert len(list((theirs / "acme/coder/a b/events").iterdir())) == 2
    invoke("rm", "acme/coder/a b", "--store", raw)
    assert "acme/coder/a=20b" not in invoke("ls", "--store", raw).stdout


def test_ids_go_from_one_spelling_into_the_other_and_back(invoke, theirs, url, tmp_path):
    escaped, back = f"{tmp_path}/escaped", f"file://{tmp_path}/back?ids=raw"
    invoke("sync", f"{url}?ids=raw", escaped)
    invoke("sync", escaped, back)
    assert sorted(each.name for each in (tmp_path / "back/acme/coder").iterdir()) == sorted(["s1", *THEIRS])
    assert "0 copied: nothing to copy" in invoke("sync", f"{url}?ids=raw", back).stdout
    assert "=20" in invoke("ls", "--store", escaped).stdout


def test_a_transcript_that_another_program_has_deleted_is_told_of_until_it_is_removed(invoke, store, url, theirs):
    ref = theirs / "acme/coder/s1"
    (ref / "payloads").mkdir()
    (ref / "payloads" / ("0a" * 32)).write_bytes(b"x")
    (ref / "events/0-0-9f8e7d6c.jsonl").unlink()
    (message,) = warnings(invoke("verify", "--all", "--store", f"{url}?ids=raw"))
    assert message.startswith("1 transcript is left out without a segment, but with payloads or indexes: 'acme/coder/s1'")
    assert "1 object deleted" in invoke("rm", "acme/coder/s1").stdout
    assert warnings(invoke("ls", "--store", f"{url}?ids=raw")) == []
