import json

import pytest

GOOD = (
    b'{"type":"message","id":"m1","timestamp":1785585600.5,"role":"USER","content":"hello"}\n'
    b'{"type":"message","id":"m2","parentId":"m1","timestamp":"2026-08-01T12:00:00Z","role":"assistant","content":"hi"}\n'
)
BAD = (
    b'{"type":"message","id":"m3","parentId":"m2","timestamp":1,"role":5,"content":"x"}\n'
    b'{"type":"tool_result","id":"r","parentId":"m2","timestamp":1,"toolCallId":"c","name":"n","output":"","originalSize":-1}\n'
)
ROWS = [
    ("2", "role", "'role' of a message entry is not what it should be: Expected `str`, got `int`"),
    ("3", "originalSize", "-1 is negative"),
    ("3", "toolCallId", "no call has the id 'c'"),
]


@pytest.fixture
def filled(invoke):
    invoke("append", "demo/a/good", stdin=GOOD)
    invoke("append", "demo/a/bad", stdin=GOOD + BAD)


def test_a_session_without_problems_is_one_line_and_exit_code_0(run, filled):
    done = run("validate", "demo/a/good")
    assert done.stdout.decode() == f"demo/a/good: ok, 2 entries, {len(GOOD) - 2} bytes, about 3 tokens\n"
    assert done.stderr == b""


def test_problems_name_record_member_and_reason_and_end_with_exit_code_1(run, filled):
    *rows, summary = run("validate", "demo/a/bad", code=1).stdout.decode().splitlines()
    table = [row.split("\t") for row in rows]
    assert [(seq, member, reason) for seq, _, member, reason in table] == ROWS
    assert all(writer.startswith("cli-") for _, writer, _, _ in table)
    assert summary.startswith("demo/a/bad: 3 problems, 4 entries, ")


def test_a_line_that_is_no_json_is_named_and_the_rest_is_validated(run, filled, tmp_path):
    (segment,) = (tmp_path / "store/demo/a/good/events").iterdir()
    segment.write_bytes(GOOD[:-40])
    row, summary = run("validate", "demo/a/good", code=1).stdout.decode().splitlines()
    assert row.split("\t")[0::2] == ["1", "-"]
    assert "no JSON object" in row
    assert summary.startswith("demo/a/good: 1 problem, 1 entry, ")


def test_all_transcripts_are_validated_and_one_bad_one_is_exit_code_1(run, filled):
    lines = run("validate", "--all", "--tenant", "demo", code=1).stdout.decode().splitlines()
    assert {line.partition(":")[0] for line in lines if "\t" not in line} == {"demo/a/good", "demo/a/bad"}
    assert run("validate", "no/such", code=3).stderr.startswith(b"transcripts: error: no such transcript: default/no/such")
    assert b"give REFs, or --all" in run("validate", code=2).stderr


def test_json_has_the_documented_members(invoke, filled):
    result = json.loads(invoke("validate", "demo/a/bad", "--json", code=1).stdout)
    problems = result.pop("problems")
    assert [(str(each["seq"]), each["member"], each["reason"]) for each in problems] == ROWS
    assert all(set(each) == {"seq", "writer_id", "member", "reason"} for each in problems)
    assert result == {
        "ref": "demo/a/bad",
        "ok": False,
        "entries": 4,
        "messages": 2,
        "tool_calls": 0,
        "compactions": 0,
        "bytes": len(GOOD + BAD) - 4,
        "tokens": 3,
    }


def test_problems_are_a_table_on_a_terminal(terminal, invoke, filled):
    shown, _ = terminal("validate", "demo/a/bad", code=1)
    assert "member" in shown
    assert "\t" not in shown
