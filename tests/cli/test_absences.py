"""What is not there: never made by a command that reads, and never a success without a word."""

import json

import pytest

from transcript_backends import TranscriptRef, open_store

REF = "demo/agent/s1"
WHOLE = {
    "ls": ["ls"],
    "stats": ["stats"],
    "verify": ["verify", "--all"],
    "compact": ["compact", "--all"],
    "dry compact": ["compact", "--all", "--dry-run"],
    "sharded": ["verify", "--all", "--shard", "1/3"],
    "cp": ["cp", "{url}", "{copy}"],
    "sync": ["sync", "{url}", "{copy}"],
    "dry sync": ["sync", "--dry-run", "{url}", "{copy}"],
}
OF_ONE = {
    "ls": ["ls", REF],
    "cat": ["cat", REF],
    "tail": ["tail", REF],
    "show": ["show", REF],
    "context": ["context", REF],
    "stats": ["stats", REF],
    "verify": ["verify", REF],
    "compact": ["compact", REF],
    "validate": ["validate", REF],
    "rm": ["rm", REF],
    "cp": ["cp", "{url}", "{copy}", REF],
}


@pytest.fixture(params=WHOLE)
def whole(request, url, tmp_path):
    """A command that goes through all transcripts, as its arguments."""
    return [each.format(url=url, copy=f"file://{tmp_path}/copy") for each in WHOLE[request.param]]


def test_a_directory_that_is_not_there_is_exit_code_3_and_is_not_made(invoke, whole, tmp_path):
    result = invoke(*whole, code=3)
    assert result.stdout == ""
    assert "does not exist" in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", OF_ONE)
def test_a_transcript_of_a_directory_that_is_not_there_is_exit_code_3_and_nothing_is_made(invoke, command, url, tmp_path):
    arguments = [each.format(url=url, copy=f"file://{tmp_path}/copy") for each in OF_ONE[command]]
    assert REF in invoke(*arguments, code=3).stderr
    assert list(tmp_path.iterdir()) == []


def test_other_objects_in_place_of_transcripts_are_named(invoke, whole, tmp_path):
    other = tmp_path / "store/wrong/level/demo/agent/s1/events"
    other.mkdir(parents=True)
    (other / "0000000000000000000-0000000000000000000-w.jsonl").write_bytes(b"{}\n")
    stderr = invoke(*whole, code=0 if whole == ["ls"] else 3).stderr
    assert "'wrong/level/demo/agent/s1/events/" in stderr
    assert "check the prefix" in stderr


def test_the_error_is_an_object_too(invoke, url):
    assert json.loads(invoke("ls", "--json", code=3).stderr)["error"] == "ContainerNotFoundError"
    with open_store(url) as store:
        store.append_segment(TranscriptRef.parse(REF), 0, 0, "w", b"{}\n")
    error = json.loads(invoke("ls", "--json", "--tenant", "dem", code=3).stderr)
    assert error["message"].startswith("no transcripts of tenant 'dem' in file://")


@pytest.mark.parametrize("arguments", [["verify", "--all"], ["compact", "--all"], ["ls"]], ids=lambda each: each[0])
@pytest.mark.parametrize("option", ["--tenant", "--agent"])
def test_a_tenant_or_an_agent_without_transcripts_is_exit_code_3(invoke, arguments, option, store):
    store.append_segment(TranscriptRef.parse(REF), 0, 0, "w", b"{}\n")
    assert "no transcripts of" in invoke(*arguments, option, "typo", code=3).stderr


@pytest.mark.parametrize("server", ["moto_server", "fake_gcs_server", "azurite_server"])
def test_a_prefix_without_objects_is_not_there_and_a_bucket_without_objects_is_empty(invoke, server, request, tmp_path):
    bucket = request.getfixturevalue(server).new_bucket()
    copy = f"file://{tmp_path}/copy"
    assert invoke("ls", "--store", bucket.url("")).output == ""
    assert invoke("sync", bucket.url(""), copy).stdout.startswith("no transcripts in ")
    with open_store(bucket.url("right")) as store:
        store.append_segment(TranscriptRef.parse(REF), 0, 0, "w", b"{}\n")
    assert "nothing is stored below this prefix" in invoke("ls", "--store", bucket.url("wrong"), code=3).stderr
    assert "nothing is stored below this prefix" in invoke("sync", bucket.url("wrong"), copy, code=3).stderr
    assert f"'right/{REF}/events/" in invoke("sync", bucket.url(""), copy, code=3).stderr
    assert invoke("ls", "--store", bucket.url("right")).output == f"{REF}\n"
    invoke("sync", bucket.url("right"), copy)
    invoke("rm", "--store", bucket.url("right"), REF)
    assert invoke("ls", "--store", bucket.url("right")).output == ""
    assert invoke("sync", bucket.url("right"), copy).stdout.startswith("no transcripts in ")
