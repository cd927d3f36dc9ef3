"""``show`` and ``context``."""

import io
import json
import re

import pytest
from rich.cells import cell_len

from transcript_backends import Record
from transcript_backends.cli.conversation import Conversation
from transcript_backends.cli.rendering import Renderer
from transcript_backends.entries import SessionTree

HOSTILE = "\x1b]0;owned\x07\x1b[2J\u202eevil\x9b"


def line(kind, own, parent=None, **members):
    stamp = {"timestamp": 1785585600 + len(own)}
    return json.dumps({"type": kind, "id": own, **({"parentId": parent} if parent else {}), **stamp, **members}).encode()


def message(own, parent, role, content, **members):
    return line("message", own, parent, role=role, content=content, **members)


def use(own, parent, call, **arguments):
    return line("tool_use", own, parent, toolCallId=call, name="bash", input=arguments)


def result(own, parent, call, output, **members):
    return line("tool_result", own, parent, toolCallId=call, name="bash", output=output, **members)


SESSION = [
    message("q1", None, "USER", "What is\n\there?"),
    message("a1", "q1", "ASSISTANT", "Let me look."),
    use("u1", "a1", "1", cmd="ls", n=2),
    use("u2", "u1", "2", cmd="sleep"),
    result("r1", "u2", "1", "a.py\nb.py\n", truncated=True, originalSize=4096),
    b'{"type":"model_change","id":"x","modelId":"m"}',
    message("a2", "r1", "ASSISTANT", "Two files."),
    line("summary", "s1", "a2", summary="They looked."),
    line("compaction", "c1", "s1", firstKeptEntryId="a2", summaryEntryId="s1"),
    message("q2", "c1", "user", "", blockTypes=["image"]),
]
BRANCH = [message("q3", "a1", "user", "Rather this."), message("a3", "q3", "assistant", "Fine.")]
ODD = [result("r9", None, "9", "x"), result("r8", None, "1", "again"), message("o", "gone", "user", "An orphan."), b"torn {"]


@pytest.fixture
def session(invoke):
    """Store lines as one transcript."""

    def session(*lines):
        invoke("append", "demo/a/s", stdin=b"".join(each + b"\n" for each in lines if each != b"torn {"))

    return session


def text_of(output):
    return re.sub("2026-08-01 12:00:0[0-9]", "TIME", output)


def test_a_session_is_shown_turn_by_turn_with_calls_and_their_results(run, session):
    session(*SESSION)
    done = run("show", "demo/a/s")
    assert done.stderr == b""
    assert (
        text_of(done.stdout.decode())
        == """
── turn 1 ──
user  0  TIME
  What is
          here?
assistant  1  TIME
  Let me look.
bash(cmd=ls, n=2)  2  TIME
  a.py
  b.py
  [cut from 4.1 kB]
bash(cmd=sleep)  3  TIME
  [no result]
     5          model_change modelId=m                                                      46 bytes
assistant  6  TIME
  Two files.
summary  7  TIME
  They looked.

── compaction (8): the model sees the summary, and messages from 6 on ──

── turn 2 ──
user  9  TIME
  [image]
"""
    )


def test_branches_are_told_apart_and_one_may_be_shown_alone(run, session):
    session(*SESSION, *BRANCH)
    shown = text_of(run("show", "demo/a/s").stdout.decode())
    assert shown.endswith("""
── branch: follows 1 again ──

── turn 3 ──
user  10  TIME
  Rather this.
assistant  11  TIME
  Fine.
""")
    assert text_of(run("show", "demo/a/s", "--leaf", "a3").stdout.decode()).split("\n")[-6:-1] == [
        "── turn 2 ──",
        "user  10  TIME",
        "  Rather this.",
        "assistant  11  TIME",
        "  Fine.",
    ]
    assert b"bash" not in run("show", "demo/a/s", "--leaf", "a3").stdout
    assert "no entry has the id 'q'" in run("show", "demo/a/s", "--leaf", "q", code=2).stderr.decode()


def test_what_is_odd_is_shown_too_and_counted(run, session):
    session(*SESSION, *ODD, message("q1", None, "user", "Other."))
    done = run("show", "demo/a/s")
    shown = done.stdout.decode()
    for part in (
        "bash: a result without a call  10",
        "  a.py\n  b.py\n  [cut from 4.1 kB]\n  [answered again]\n  again\n",
        "An orphan.",
    ):
        assert part in shown
    assert done.stderr == (
        b"transcripts: warning: 3 problems in the entries of demo/a/s; 'transcripts validate demo/a/s' lists them\n"
    )


def test_long_texts_are_cut_unless_all_is_asked_for(run, session):
    session(message("m", None, "user", "\n".join(map(str, range(100))) + "\n" + "x" * 5000))
    assert run("show", "demo/a/s").stdout.decode().split("\n")[-3:-1] == ["  19", "  [81 more lines]"]
    assert run("show", "demo/a/s", "--lines", 2).stdout.decode().split("\n")[-4:-1] == ["  0", "  1", "  [99 more lines]"]
    assert run("show", "demo/a/s", "--lines", 200).stdout.decode().split("\n")[-2] == f"  {'x' * 1000} …"
    assert run("show", "demo/a/s", "--lines", 0).stdout.decode().split("\n")[-2] == "  " + "x" * 5000


def test_the_writers_are_named_where_there_are_several(run, invoke, store, session):
    session(*SESSION[:2])
    (writer,) = {record.writer_id for record in store.records(next(store.list_refs()))}
    assert writer not in run("show", "demo/a/s").stdout.decode()
    session(*SESSION[2:4])
    assert run("show", "demo/a/s").stdout.decode().count(writer) == 2


def test_payloads_are_put_back_unless_told_otherwise(run, store, session):
    session(SESSION[0])
    ref = next(store.list_refs())
    with store.writer(ref) as writer:
        writer.append(result("r", "q1", "1", "first\n" + "x\n" * 50_000 + "last"))
    whole, preview = (run("show", "demo/a/s", "--lines", 0, *more).stdout for more in ([], ["--no-resolve"]))
    assert whole.count(b"\n  x\n") + 1 > 20_000
    assert b"a preview: the whole is stored as a payload" in preview
    assert len(run("context", "demo/a/s").stdout) > 100_000 > len(run("context", "demo/a/s", "--no-resolve").stdout)


def test_the_context_is_what_the_model_sees_as_lines_or_pretty(run, session):
    session(*SESSION, *BRANCH)
    assert run("context", "demo/a/s").stdout == b"".join(
        each + b"\n" for each in (SESSION[7], SESSION[6], SESSION[9], BRANCH[0], BRANCH[1])
    )
    assert run("context", "demo/a/s", "--leaf", "r1").stdout.splitlines() == SESSION[:5]
    assert run("context", "demo/a/s", "--leaf", "q2").stdout.splitlines() == [SESSION[7], SESSION[6], SESSION[9]]
    pretty = run("context", "demo/a/s", "--format", "pretty").stdout.decode().splitlines()
    assert len(pretty) == 5
    assert pretty[0].split()[:3] == ["7", "12:00:02", "summary"]
    run("context", "demo/a/s", "--leaf", "q", code=2)


def test_without_a_compaction_the_context_is_all_typed_entries(run, session):
    session(*SESSION[:7])
    assert run("context", "demo/a/s").stdout.splitlines() == SESSION[:5] + SESSION[6:7]


@pytest.mark.parametrize("command", ["show", "context"])
def test_a_path_with_a_gap_is_shown_from_the_gap_on_with_a_warning(run, session, command):
    session(message("c", "b", "user", "Third."), message("d", "c", "assistant", "Fourth."))
    done = run(command, "demo/a/s", "--leaf", "d")
    assert b"Third." in done.stdout
    assert b"Fourth." in done.stdout
    gap, problem = done.stderr.decode().splitlines()
    assert (
        gap == "transcripts: warning: the path to 'd' is not whole: it begins with 'c', whose parent 'b' is not there before it"
    )
    assert problem.startswith("transcripts: warning: 1 problem in the entries of demo/a/s; ")


PI = [b'{"type":"session","id":"p0","cwd":"/x"}', b'{"type":"message","id":"p1","message":{"role":"user","content":"hi"}}']
CLAUDE_CODE = [
    b'{"type":"user","uuid":"k1","parentUuid":null,"message":{"role":"user","content":"hi"}}',
    b'{"type":"assistant","uuid":"k2","parentUuid":"k1","message":{"role":"assistant","content":[]}}',
]


@pytest.mark.parametrize("lines", [PI, CLAUDE_CODE], ids=["pi", "Claude Code"])
def test_the_context_of_a_session_that_is_not_understood_is_no_success_without_a_word(run, session, lines):
    session(*lines)
    assert b"2 entries of 2 left out, of types that are not known" in run("context", "demo/a/s").stderr
    session(*SESSION)
    done = run("context", "demo/a/s")
    assert b"3 entries of 12 left out" in done.stderr
    assert done.stdout.count(b"\n") == 3
    session(line("message", "odd", "a2"))
    assert b"problem" in run("context", "demo/a/s").stderr


def test_a_session_that_is_understood_is_no_reason_for_a_warning(run, session):
    session(*(each for each in SESSION if b"model_change" not in each))
    assert run("context", "demo/a/s").stderr == b""


@pytest.mark.parametrize("command", ["show", "context"])
def test_no_such_transcript_is_exit_code_3(run, command):
    assert b"no such transcript: default/no/such" in run(command, "no/such", code=3).stderr


def test_it_is_coloured_on_a_terminal_only(terminal, session):
    session(*SESSION)
    shown, _ = terminal("show", "demo/a/s")
    assert "\x1b[" in shown
    assert "user" in shown
    assert "── turn 1 ──" in shown


def test_nothing_a_terminal_would_obey_comes_through():
    lines = [
        message("m", None, HOSTILE, f"{HOSTILE}\n{HOSTILE}", blockTypes=[HOSTILE]),
        line("tool_use", "u", toolCallId="1", name=HOSTILE, input={HOSTILE: HOSTILE}),
        line("tool_result", "r", toolCallId="1", name=HOSTILE, output=HOSTILE, truncated=True, originalSize=5),
        line("tool_result", "r2", toolCallId="2", name=HOSTILE, output=HOSTILE),
        line("summary", "s", summary=HOSTILE),
        line("compaction", "c", firstKeptEntryId=HOSTILE, summaryEntryId=HOSTILE),
        line("x" + HOSTILE, "x"),
        message("b1", HOSTILE, "user", "x"),
        message("b2", HOSTILE, "user", "x"),
    ]
    tree = SessionTree()
    tree.feed([Record(seq, HOSTILE + "ab"[seq % 2], each) for seq, each in enumerate(lines)])
    told = list(Conversation(tree, tree.nodes, tree.tool_calls(), most_lines=20))
    draw = Renderer(io.StringIO()).draw
    for text in told:
        assert text.plain.replace("\n", "").isprintable()
        assert draw(text) == text.plain + "\n"
        assert cell_len(text.plain)
    assert sum("owned" in text.plain for text in told) >= 9
