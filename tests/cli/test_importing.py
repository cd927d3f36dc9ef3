import json
import os
import threading

import pytest

from transcript_backends import ObjectTranscriptStore, TranscriptRef

ODD_LINES = [
    '{"text":"line\u2028and paragraph\u2029separators, next line \x85"}'.encode(),
    rb'{"half":"\ud800","pair":"\ud83d\ude00","nul":"\u0000"}',
    b'{"cr":\r1,\r"b":2}',
    b'{"long":"' + b"x" * (3 << 20) + b'"}',
    b'{"big":' + b"9" * 400 + b',"float":1e999,"minus":-0.0}',
    b'  {"blanks": "around",\t"same":1,"same":2}  ',
    '{"é":"ü","":{}}'.encode(),
    b"{}",
]


def jsonl(lines):
    return b"".join(line + b"\n" for line in lines)


def numbered(count, start=0):
    return jsonl(b'{"n":%d,"text":"%s"}' % (n, b"x" * (n % 97)) for n in range(start, start + count))


def test_cat_gives_the_imported_file_byte_for_byte(run, write):
    content = jsonl(ODD_LINES) + numbered(2500)
    path = write(content)
    done = run("import", path, "demo/agent/s1")
    assert done.stdout.decode() == "2508 lines imported into demo/agent/s1 (5 segments, seq 0-2507)\n"
    assert done.stderr == b""
    assert run("cat", "demo/agent/s1").stdout == content


def test_crlf_becomes_lf_and_a_missing_final_newline_is_added(run, write):
    path = write(b'{"a":1}\r\n{"b":\r2}\r\r\n{"c":3}')
    run("import", path, "demo/s")
    assert run("cat", "demo/s").stdout == b'{"a":1}\n{"b":\r2}\n{"c":3}\n'


def test_several_files_are_one_stream_in_the_order_given_and_empty_ones_add_nothing(run, write):
    paths = [write(b'{"a":1}', "b"), write(b"", "empty"), write(b'{"b":2}\r\n{"c":3}\r', "a")]
    run("import", *paths, "-", "demo/s", stdin=b'{"d":4}\n')
    assert run("cat", "demo/s").stdout == b'{"a":1}\n{"b":2}\n{"c":3}\n{"d":4}\n'


def test_standard_input_is_imported(run):
    content = numbered(3000)
    assert b"3000 lines" in run("import", "-", "demo/s", stdin=content).stdout
    assert run("cat", "demo/s").stdout == content


def test_a_named_pipe_is_imported(run, tmp_path):
    content = numbered(20_000)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    feeder = threading.Thread(target=pipe.write_bytes, args=(content,))
    feeder.start()
    run("import", pipe, "demo/s")
    feeder.join(30)
    assert run("cat", "demo/s").stdout == content


def test_segments_hold_at_most_the_lines_and_bytes_asked_for_and_a_larger_line_stands_alone(invoke, store, write):
    path = write(jsonl([b'{"a":1}'] * 5 + [b'{"long":"%s"}' % (b"x" * 100)] + [b'{"a":1}'] * 2))
    invoke("import", "--segment-lines", 4, path, "demo/a/lines")
    invoke("import", "--segment-bytes", 24, path, "demo/a/bytes")
    ranges = {
        name: [(each.seq_start, each.seq_end) for each in store.list_segments(TranscriptRef("demo", "a", name))]
        for name in ("lines", "bytes")
    }
    assert ranges == {"lines": [(0, 3), (4, 7)], "bytes": [(0, 2), (3, 4), (5, 5), (6, 7)]}


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (b"{", "line 1500 is not JSON"),
        (b"[1]", "line 1500 is an array"),
        (b"", "line 1500 is blank"),
        (b'{"a":NaN}', "line 1500 is not JSON: it holds NaN"),
        (b'{"a":"\xff"}', "line 1500 is not UTF-8 at byte 6"),
        (b'{"a":"%s"}' % (b"x" * (64 << 20)), "line 1500 is 67108872 bytes long, 67108864 is the limit"),
        (b'{"a":[%s1]}' % (b"1," * (2 << 20)), "line 1500 is 4194313 bytes long; 4194304 is the limit"),
        (
            b'{"a":[%s1],"b":"%s"}' % (b"1," * (3 << 20), b"x" * 5000),
            "line 1500 is 6296472 bytes long, and still 6292175 with its large strings stored outside; 4194304 is the limit",
        ),
        (b"\xef\xbb\xbf{}", "line 1500 starts with a byte-order mark"),
    ],
)
def test_a_bad_line_anywhere_writes_nothing_and_names_file_line_and_reason(invoke, write, bad, reason):
    first, second = write(numbered(10), "first.jsonl"), write(numbered(1499) + bad + b"\n" + numbered(5), "second.jsonl")
    result = invoke("import", "--segment-lines", 2, first, second, "demo/s", code=2)
    assert result.stderr.startswith(f"transcripts: error: {second}: {reason}")
    assert result.stderr.endswith("; nothing was written\n")
    assert result.stdout == ""
    invoke("ls", "demo/s", code=3)


def test_line_numbers_count_within_their_file_past_the_first_block(invoke, write):
    path = write(jsonl([b'{"long":"%s"}' % (b"x" * 400_000)] * 20) + b"oops\n")
    assert f"{path}: line 21 is not JSON" in invoke("import", path, "demo/s", code=2).stderr


def test_one_endless_line_is_refused_without_reading_all_of_it(invoke, tmp_path):
    path = tmp_path / "sparse"
    with path.open("wb") as stream:
        stream.truncate(1 << 40)
    assert "line 1 is more than 1073741824 bytes long" in invoke("import", path, "demo/s", code=2).stderr


@pytest.mark.parametrize("command", [["import", "-"], ["append"]])
def test_an_input_without_lines_is_an_error(invoke, command):
    assert "no lines in standard input" in invoke(*command, "demo/s", code=2).stderr


def test_bad_arguments_are_usage_errors(invoke, write, tmp_path):
    path = write(b"{}\n")
    assert "does not exist" in invoke("import", tmp_path / "absent", "demo/s", code=2).stderr
    assert "is a directory" in invoke("import", tmp_path, "demo/s", code=2).stderr
    assert "given twice" in invoke("import", "-", "-", "demo/s", code=2).stderr
    assert "Missing argument" in invoke("import", path, code=2).stderr
    assert "does not name a transcript" in invoke("import", path, "just-one", code=2).stderr
    assert "x>=1" in invoke("import", "--segment-lines", 0, path, "demo/s", code=2).stderr


def test_an_import_goes_after_the_records_that_are_there(invoke, records, write):
    invoke("append", "demo/s", stdin=numbered(3))
    path = write(numbered(2, start=3))
    assert "(1 segment, seq 3-4)" in invoke("import", path, "demo/s").stdout
    invoke("append", "demo/s", stdin=numbered(1, start=5))
    assert "nothing to do" in invoke("import", path, "demo/s").stdout
    assert records("demo/s") == list(enumerate(numbered(6).splitlines()))


@pytest.mark.parametrize("command", [["import", "-"], ["append"]], ids=lambda each: each[0])
@pytest.mark.parametrize("size", [100_000, 13_421_000])
def test_what_a_writer_takes_is_imported_and_appended_and_comes_back_byte_for_byte(run, store, command, size):
    content = b'{"n":0}\n{"text":"%s"}\n{"n":2}\n' % (b"\xc3\xa9x1" * (size // 4))
    with store.writer(TranscriptRef("demo", "a", "written")) as writer:
        for line in content.splitlines():
            writer.append(line)
    piped = run("cat", "demo/a/written").stdout
    assert piped == content
    run(*command, "demo/a/s", stdin=piped)
    assert run("cat", "demo/a/s").stdout == content
    lines = {ref: run("cat", "--no-resolve", ref).stdout for ref in ("demo/a/written", "demo/a/s")}
    assert lines["demo/a/s"] == lines["demo/a/written"]
    assert len(lines["demo/a/s"]) < 70_000
    assert "nothing to do" in run("import", "-", "demo/a/s", stdin=piped).stdout.decode() or command == ["append"]


def test_the_longest_line_there_may_be_is_imported(invoke, store, write):
    line = b'{"a":"%s"}' % (b"x" * ((64 << 20) - 8))
    invoke("import", write(line + b"\r\n"), "demo/a/s")
    assert [record.line == line for record in store.records(TranscriptRef("demo", "a", "s"))] == [True]


def test_appending_the_same_lines_twice_stores_them_twice(invoke, records):
    first = invoke("append", "demo/a/s", stdin=b'{"a":1}\n{"b":2}')
    second = invoke("append", "demo/a/s", stdin=b'{"a":1}\n{"b":2}\n')
    third = invoke("append", "demo/a/s", stdin=b"{}\n")
    assert first.stdout == "2 lines appended to demo/a/s (1 segment, seq 0-1)\n"
    assert second.stdout == "2 lines appended to demo/a/s (1 segment, seq 2-3)\n"
    assert third.stdout == "1 line appended to demo/a/s (1 segment, seq 4)\n"
    assert [line for _, line in records("demo/a/s")] == [b'{"a":1}', b'{"b":2}'] * 2 + [b"{}"]


def test_append_checks_everything_before_it_writes(invoke):
    result = invoke("append", "--segment-lines", 1, "demo/s", stdin=b"{}\n{}\n3\n", code=2)
    assert "standard input: line 3 is a number" in result.stderr
    invoke("ls", "demo/s", code=3)


def test_json_output_has_the_documented_members(invoke, write):
    path = write(numbered(5))
    members = json.loads(invoke("import", "--json", "--segment-lines", 2, path, "demo/a/s").stdout)
    assert members.pop("writer_id").startswith("import-")
    expected = {"ref": "demo/a/s", "lines": 5, "imported": 5, "already": 0, "segments": 3, "seq_start": 0, "seq_end": 4}
    assert members == expected
    again = json.loads(invoke("import", path, "demo/a/s", "--json").stdout)
    assert (again["imported"], again["already"], again["segments"]) == (0, 5, 0)
    members = json.loads(invoke("append", "--json", "demo/a/s", stdin=b"{}\n").stdout)
    assert members.pop("writer_id").startswith("cli-")
    expected = {"ref": "demo/a/s", "lines": 1, "imported": 1, "already": 0, "segments": 1, "seq_start": 5, "seq_end": 5}
    assert members == expected


# --- inputs that change -----------------------------------------------------------------------------------------------


def _grow(path):
    with path.open("ab") as stream:
        stream.write(b"{}\n")


def _shrink(path):
    path.write_bytes(path.read_bytes()[:-1000].rpartition(b"\n")[0] + b"\n")


def _alter(path):
    path.write_bytes(path.read_bytes().replace(b'"n":0,', b'"n":8,'))


def _spoil(path):
    path.write_bytes(b"not JSON\n" + path.read_bytes())


def _once_before(monkeypatch, method, action):
    real = getattr(ObjectTranscriptStore, method)
    actions = [action]

    def changed(*args, **kwargs):
        while actions:
            actions.pop()()
        return real(*args, **kwargs)

    monkeypatch.setattr(ObjectTranscriptStore, method, changed)


@pytest.mark.parametrize("change", [_grow, _alter, _spoil, os.unlink])
def test_a_file_that_changes_after_the_check_is_an_error_and_nothing_is_written(invoke, write, monkeypatch, change):
    path = write(numbered(1000))
    _once_before(monkeypatch, "next_seq", lambda: change(path))
    result = invoke("import", "--segment-lines", 100, path, "demo/s", code=2)
    assert ("changed while it was being read" in result.stderr) or (change is os.unlink and "can't be read" in result.stderr)
    assert result.stderr.endswith("nothing was written\n")
    invoke("ls", "demo/s", code=3)


def _shrink_to_a_block(path):
    os.truncate(path, 1 << 20)


@pytest.mark.parametrize("change", [_grow, _shrink, _shrink_to_a_block])
def test_no_line_that_was_not_checked_is_stored_when_a_file_changes_during_the_import(invoke, write, monkeypatch, change):
    content = jsonl(b'{"n":%d,"text":"%s"}' % (n, b"x" * (1023 - len(b'{"n":,"text":""}%d' % n))) for n in range(4000))
    path = write(content)
    _once_before(monkeypatch, "append_segment", lambda: change(path))
    result = invoke("import", "--segment-lines", 100, path, "demo/s", code=2)
    assert "changed while it was being read" in result.stderr
    stored = invoke("cat", "demo/s").stdout_bytes
    assert 0 < len(stored) < len(content)
    assert content.startswith(stored)
    assert f"{stored.count(bytes([10]))} lines are stored (seq 0-{stored.count(bytes([10])) - 1})" in result.stderr
