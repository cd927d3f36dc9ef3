import json
import os
import re

import pytest

from transcript_backends import CompactionPolicy, TranscriptRef

LINES = b"".join(b'{"n":%d}\n' % n for n in range(5000))
TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"


def test_ls_shows_one_transcript_a_line_and_chooses_by_tenant_and_agent(invoke):
    for ref in ("acme/coder/s1", "acme/tester/s1", "umbrella/coder/a b", "coder/s"):
        invoke("append", ref, stdin=b"{}\n")
    assert invoke("ls").stdout.split() == ["acme/coder/s1", "acme/tester/s1", "default/coder/s", "umbrella/coder/a=20b"]
    assert invoke("ls", "--tenant", "acme").stdout.split() == ["acme/coder/s1", "acme/tester/s1"]
    assert invoke("ls", "--agent", "coder").stdout.split() == ["acme/coder/s1", "default/coder/s", "umbrella/coder/a=20b"]
    assert invoke("ls", "--tenant", "acme", "--agent", "coder").stdout == "acme/coder/s1\n"
    assert json.loads(invoke("ls", "--json", "--tenant", "umbrella").stdout) == {
        "ref": "umbrella/coder/a=20b",
        "tenant": "umbrella",
        "agent": "coder",
        "session": "a b",
    }


def test_what_ls_prints_names_the_transcript_again(invoke):
    invoke("append", "a/b/c d", stdin=b"{}\n")
    assert invoke("cat", invoke("ls").stdout.strip()).stdout == "{}\n"


def test_ls_of_an_empty_store_prints_nothing_and_is_no_error(invoke, tmp_path):
    (tmp_path / "store").mkdir()
    assert invoke("ls").output == ""


def test_ls_of_a_transcript_gives_tab_separated_segments_when_piped(run):
    run("append", "demo/a/s", "--segment-lines", 2, stdin=b"{}\n" * 3)
    lines = run("ls", "demo/a/s").stdout.decode().splitlines()
    assert [re.sub("cli-[0-9a-f]{12}", "W", re.sub(TIME, "T", line)) for line in lines] == ["0-1\tW\t6\tT", "2-2\tW\t3\tT"]
    keys = [line.split("\t")[4] for line in run("ls", "demo/a/s", "--keys").stdout.decode().splitlines()]
    assert [key.rpartition("/")[0] for key in keys] == ["demo/a/s/events"] * 2


def test_ls_of_a_transcript_as_json_has_the_documented_members(invoke):
    invoke("append", "demo/a/s", stdin=b"{}\n")
    segment = json.loads(invoke("ls", "demo/a/s", "--json").stdout)
    assert set(segment) == {"seq_start", "seq_end", "writer_id", "size", "created_at", "key"}
    assert (segment["seq_start"], segment["seq_end"], segment["size"]) == (0, 0, 3)
    assert re.fullmatch(TIME, segment["created_at"])


def test_ls_of_a_transcript_is_a_table_on_a_terminal(terminal, run):
    run("append", "demo/a/s", "--segment-lines", 2, stdin=b"{}\n" * 3)
    shown, _ = terminal("ls", "demo/a/s")
    assert "created (UTC)" in shown
    assert "2 segments, 9 bytes" in shown
    assert "key" not in shown


def test_ls_of_an_empty_store_says_so_on_a_terminal(terminal, url, tmp_path):
    (tmp_path / "store").mkdir()
    shown, stderr = terminal("ls")
    assert shown == ""
    assert stderr.decode() == f"no transcripts in {url}\n"


def test_import_draws_its_progress_on_a_terminal_only_and_the_result_stays_clean(terminal, write, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    path = write(LINES)
    shown, stdout = terminal("import", path, "demo/a/s", output="stderr")
    assert "checking" in shown
    assert "storing" in shown
    assert stdout == b"5000 lines imported into demo/a/s (5 segments, seq 0-4999)\n"
    shown, _ = terminal("import", "--json", path, "demo/a/s", output="stderr")
    assert shown == ""


def test_a_terminal_never_sees_control_characters_from_a_store(invoke, tmp_path):
    events = tmp_path / "store" / "demo" / "a" / "s" / "events"
    events.mkdir(parents=True)
    (events / "0-0-evil\x1b[31m\t[red].jsonl").write_bytes(b"{}\n")
    line = invoke("ls", "demo/a/s", "--keys").stdout
    assert "\x1b" not in line
    assert line.split("\t")[1] == "evil\\x1b[31m\\t[red]"


def test_cat_gives_a_part_from_either_end(invoke):
    invoke("append", "demo/s", "--segment-lines", 7, stdin=LINES[:530])
    lines = invoke("cat", "demo/s").stdout_bytes.splitlines(keepends=True)
    assert b"".join(lines) == LINES[:530]

    def cat(*options):
        return invoke("cat", "demo/s", *options).stdout_bytes.splitlines(keepends=True)

    assert cat("--start", 10, "--end", 20) == lines[10:21]
    assert cat("--start", 50) == lines[50:]
    assert cat("--end", 3) == lines[:4]
    assert cat("--limit", 5) == lines[:5]
    assert cat("--reverse") == lines[::-1]
    assert cat("--reverse", "--limit", 3, "--end", 20) == [lines[20], lines[19], lines[18]]
    assert cat("--limit", 0) == cat("--start", 2**63 - 1) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--start", 3, "--end", 2], "--start 3 is after --end 2"),
        (["--start", -1], "-1 is not in the range"),
        (["--end", 2**63], "is not in the range"),
        (["--limit", -1], "-1 is not in the range"),
        (["--format", "html"], "'html' is not one of 'raw', 'pretty'"),
    ],
)
def test_a_part_that_makes_no_sense_is_a_usage_error(invoke, options, message):
    result = invoke("cat", "demo/s", *options, code=2)
    assert message in result.stderr
    assert result.stdout == ""


def test_cat_puts_payloads_back_unless_told_not_to(invoke, store):
    line = {"type": "tool_result", "output": "x" * 100_000}
    with store.writer(TranscriptRef.parse("demo/s")) as writer:
        writer.append(line)
    assert json.loads(invoke("cat", "demo/s").stdout) == line
    for command in (["cat"], ["cat", "--reverse"], ["tail"]):
        stored = json.loads(invoke(*command, "demo/s", "--no-resolve").stdout)
        assert len(stored["output"]) < 100_000
        assert [each["pointer"] for each in stored["_offloaded"]] == ["/output"]
    assert "[100 kB stored a" in invoke("cat", "demo/s", "--no-resolve", "--format", "pretty").stdout


def test_cat_is_byte_exact_when_piped_and_pretty_on_a_terminal(terminal, run):
    line = '{"type":"message","role":"user","content":"hi \\u001b[31m é 你"}\n'.encode()
    run("append", "demo/s", stdin=line)
    assert run("cat", "demo/s").stdout == line
    assert run("cat", "demo/s", "--format", "raw").stdout == line
    assert run("cat", "demo/s", "--format", "pretty").stdout.decode().split() == [
        *("0", "user", "hi", r"\x1b[31m", "é", "你", f"{len(line) - 1}", "bytes")
    ]
    shown, _ = terminal("cat", "demo/s")
    assert "user" in shown
    assert r"hi \x1b[31m é 你" in shown
    assert "message" not in shown
    shown, _ = terminal("cat", "demo/s", "--format", "raw")
    assert shown.replace("\r\n", "\n").encode() == line


def test_an_output_without_unicode_is_no_error(run):
    run("append", "demo/s", stdin='{"role":"user","content":"é 你 🙂"}\n'.encode())
    settings = {"env": {**os.environ, "PYTHONIOENCODING": "ascii"}}
    assert rb"\xe9 \u4f60 \U0001f642" in run("cat", "demo/s", "--format", "pretty", **settings).stdout


@pytest.mark.parametrize("command", [["ls"], ["cat"], ["cat", "--reverse"], ["tail"], ["cat", "--limit", 0]])
def test_a_transcript_that_does_not_exist_is_exit_code_3_and_nothing_on_stdout(invoke, command):
    result = invoke(*command, "no/such", code=3)
    assert result.stdout == ""
    assert result.stderr.startswith("transcripts: error: no such transcript: default/no/such")


def test_options_that_do_not_go_together_are_usage_errors(invoke):
    assert "a REF names one" in invoke("ls", "demo/s", "--tenant", "x", code=2).stderr
    assert "--keys needs a REF" in invoke("ls", "--keys", code=2).stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["cat", "demo/s"],
        ["cat", "demo/s", "--format", "pretty"],
        ["tail", "-n", 4000, "demo/s"],
        ["tail", "-f", "demo/s"],
        ["ls", "demo/s", "--keys"],
    ],
)
def test_a_reader_that_stops_early_ends_the_command_quietly(run, start, arguments):
    run("append", "demo/s", "--segment-lines", 5, stdin=LINES)
    process = start(*arguments)
    assert process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait(60) in (0, 141)


@pytest.mark.parametrize(
    "arguments", [["cat", "demo/s"], ["tail", "-f", "demo/s"], ["ls"], ["ls", "--json"], ["--help"], ["ls", "-h"], ["doctor"]]
)
def test_a_pipe_closed_from_the_beginning_ends_the_command_quietly(run, closed_pipe, arguments):
    run("append", "demo/s", stdin=b"{}\n")
    assert run(*arguments, stdout=closed_pipe, code=141).stderr == b""


@pytest.mark.parametrize("command", ["ls", "cat", "tail"])
def test_output_that_can_not_be_written_is_an_error(run, command):
    run("append", "demo/s", stdin=b"{}\n")
    with open("/dev/full", "wb") as full:
        stderr = run(command, "demo/s", stdout=full, code=1).stderr.decode()
    assert stderr == "transcripts: error: input or output failed: No space left on device\n"


def test_seqs_of_63_bits_are_whole_in_json_as_in_cursors_and_indexes(invoke, store):
    first, ref = 2**63 - 3, TranscriptRef("demo", "a", "s")
    for seq in (first, first + 1):
        store.append_segment(ref, seq, seq, "w", b"{}\n")
    for _ in range(2):
        with store.follow(ref, stop_when_idle=0) as follower:
            assert [record.seq for record in follower] == [first, first + 1]
        with store.follow(ref, cursor=follower.cursor, stop_when_idle=0) as follower:
            assert list(follower) == []
        shown = [json.loads(line) for line in invoke("ls", "--json", "demo/a/s").stdout.splitlines()]
        assert [(shown[0]["seq_start"], shown[-1]["seq_end"])] == [(first, first + 1)]
        store.compact(ref, CompactionPolicy(min_segments=2, full=True))
