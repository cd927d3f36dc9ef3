import json

import pytest


@pytest.fixture
def filled(invoke):
    for ref in ("demo/a/one", "demo/a/two"):
        invoke("append", "--segment-lines", 1, ref, stdin=b"{}\n" * 3)


def test_rm_deletes_and_says_how_many_objects(invoke, filled):
    result = invoke("rm", "demo/a/one", "demo/a/two", "demo/a/one")
    assert result.stdout == "demo/a/one: 3 objects deleted\ndemo/a/two: 3 objects deleted\n"
    assert invoke("ls").stdout == ""
    invoke("cat", "demo/a/one", code=3)


def test_rm_leaves_two_markers_which_purge_removes(invoke, filled, tmp_path):
    def objects():
        return sorted(path.name for path in (tmp_path / "store" / "demo" / "a" / "one").rglob("*") if path.is_file())

    invoke("rm", "demo/a/one")
    assert objects() == ["deleted-1", "deleting-1"]
    assert invoke("rm", "--purge", "demo/a/one").stdout == "demo/a/one: 0 objects deleted\n"
    assert objects() == []
    invoke("rm", "--purge", "demo/a/one", code=3)


def test_rm_of_an_unknown_transcript_is_exit_code_3_and_the_others_are_deleted(invoke, filled):
    result = invoke("rm", "no/such", "demo/a/one", "nor/this", code=3)
    assert result.stdout == "demo/a/one: 3 objects deleted\n"
    assert result.stderr.startswith("transcripts: error: no such transcript: default/no/such, default/nor/this")


def test_rm_missing_ok_makes_it_no_error(invoke, filled):
    result = invoke("rm", "--missing-ok", "no/such", "demo/a/one")
    assert result.stdout == "default/no/such: nothing to delete\ndemo/a/one: 3 objects deleted\n"


def test_rm_with_a_bad_ref_among_others_deletes_nothing(invoke, filled):
    invoke("rm", "demo/a/one", "bad", code=2)
    assert invoke("ls").stdout.split() == ["demo/a/one", "demo/a/two"]


def test_rm_as_json_has_the_documented_members(invoke, filled):
    result = invoke("rm", "--json", "--missing-ok", "demo/a/one", "no/such")
    assert list(map(json.loads, result.stdout.splitlines())) == [
        {"ref": "demo/a/one", "deleted": 3, "generation": 1},
        {"ref": "default/no/such", "deleted": 0, "generation": 0},
    ]


def test_doctor_shows_every_check_and_leaves_nothing_behind(invoke):
    lines = invoke("doctor").stdout.splitlines()
    assert len(lines) == 7
    assert all(line.startswith("ok     ") for line in lines)
    assert invoke("ls").stdout == ""


def test_doctor_exits_1_where_a_check_failed(invoke, tmp_path):
    (tmp_path / "file").touch()
    result = invoke("doctor", "--store", f"file://{tmp_path}/file/store", code=1)
    assert result.stdout.startswith("FAILED the store's URL: ")


def test_doctor_as_json_has_the_documented_members(invoke, tmp_path):
    checks = [json.loads(line) for line in invoke("doctor", "--json").stdout.splitlines()]
    assert all(set(check) == {"check", "ok", "detail"} for check in checks)
    assert [check["check"] for check in checks][-2:] == ["read", "delete"]
    assert json.loads(invoke("doctor", "--json", "--store", "nothing://x", code=1).stdout)["ok"] is False


def test_doctor_takes_a_url_with_placeholders(invoke, tmp_path):
    invoke("doctor", "--store", f"file://{tmp_path}/{{user_id}}")
