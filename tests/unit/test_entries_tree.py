from __future__ import annotations

import itertools
import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.setups import REF, make

from transcript_backends import InvalidEntryError, Record
from transcript_backends.entries import (
    CompactionEntry,
    EntryProblem,
    MessageEntry,
    RawEntry,
    SessionCompaction,
    SessionTree,
    SummaryEntry,
    ToolResultEntry,
    ToolUseEntry,
    Totals,
    encode,
    estimate_tokens,
    tree,
)


def line(kind: str = "message", own: str | None = None, parent: str | None = None, **members) -> bytes:
    named = {"id": own, "parentId": parent, "timestamp": "2026-08-01T12:00:00Z"}
    defaults = {"message": {"role": "user", "content": "x"}, "summary": {"summary": "so far"}}.get(kind, {})
    members = {"type": kind, **named, **defaults, **members}
    return json.dumps({name: value for name, value in members.items() if value is not None}).encode()


def use(own: str, call: str, **members) -> bytes:
    return line("tool_use", own, toolCallId=call, name="bash", input={}, **members)


def result(own: str, call: str, **members) -> bytes:
    return line("tool_result", own, toolCallId=call, name="bash", output="ok", **members)


def compaction(own: str, first: str, summary: str, **members) -> bytes:
    return line("compaction", own, firstKeptEntryId=first, summaryEntryId=summary, **members)


def records(*lines: bytes, writer: str = "w", start: int = 0) -> list[Record]:
    return [Record(seq, writer, each) for seq, each in enumerate(lines, start)]


def fed(*lines: bytes) -> SessionTree:
    tree = SessionTree()
    tree.feed(records(*lines))
    return tree


def ids(entries) -> list[str]:
    return [each.id for each in entries]


# --- feeding ----------------------------------------------------------------------------------------------------------


def test_each_entry_is_taken_once_however_often_it_is_fed():
    tree = SessionTree()
    some = records(line(own="a"), line(own="b", parent="a"), b"torn {", line(role="user"))
    assert [tree.feed(some), tree.feed(some), tree.feed(some[1:])] == [3, 0, 0]
    assert ids(tree.entries) == ["a", "b", ""]
    assert len(tree.problems()) == 2
    assert tree.totals.entries == 3


def test_an_entry_of_two_replicas_is_one_and_no_problem_though_each_wrote_it_at_its_own_time():
    tree = SessionTree()
    tree.feed([Record(0, "a", line(own="m", later=1)), Record(0, "b", line(own="m", later=1, timestamp=1785585600.5))])
    assert (ids(tree.entries), tree.problems()) == (["m"], [])


@pytest.mark.parametrize(
    "other",
    [line(own="a", content="y"), line(own="a", parent="z"), line(own="a", more=1), use("a", "c"), b'{"type":"x","id":"a"}'],
)
def test_another_entry_of_the_same_id_is_reported_and_hides_nothing(other):
    tree = SessionTree()
    tree.feed(records(line(own="a"), other, line(own="b", parent="a")))
    assert ids(tree.entries) == ["a", "b"]
    assert tree.problems() == [
        EntryProblem(1, "w", "id", "'a' is the id of another entry already, in record 0 of w, which counts")
    ]


def test_the_order_is_that_of_the_transcript_whatever_the_order_of_feeding():
    lines = [line(own=f"e{n}", parent=f"e{n - 1}" if n else None) for n in range(40)]
    some = [Record(seq // 2, "ab"[seq % 2], each) for seq, each in enumerate(lines)]
    random.Random(1).shuffle(some)
    tree = SessionTree()
    for record in some:
        tree.feed([record])
        assert tree.entries
    assert ids(tree.entries) == ids(tree.path("e39")) == [f"e{n}" for n in range(40)]
    assert [(node.seq, node.writer_id) for node in tree.nodes] == [(n // 2, "ab"[n % 2]) for n in range(40)]
    assert tree.problems() == []


def test_feeding_new_records_decodes_those_only(monkeypatch):
    decoded = []
    real = tree.decode
    monkeypatch.setattr(tree, "decode", lambda line: decoded.append(line) or real(line))
    session = SessionTree()
    some = records(*(line(own=f"e{n}", parent=f"e{n - 1}" if n else None) for n in range(1000)))
    session.feed(some)
    assert len(decoded) == 1000
    session.feed(records(compaction("c", "e990", "e0"), start=1000))
    for _ in range(3):
        session.context(), session.tool_calls(), session.leaves(), session.path("e999"), session.problems(), session.forks()
    assert len(decoded) == 1001


# --- bad records ------------------------------------------------------------------------------------------------------

BAD = {
    "no JSON": (b"torn {", "", "no JSON object"),
    "no object": (b"[]", "", "no JSON object"),
    "wrong type": (line(own="bad", content=5), "content", "Expected `str`, got `int`"),
    "wrong type inside": (line(own="bad", blockTypes=["a", 1]), "blockTypes[1]", "Expected `str`, got `int`"),
    "missing member": (line("tool_use", "bad", name="x", input={}), "toolCallId", "is missing"),
    "missing type": (b'{"id":"bad"}', "type", "is missing"),
    "missing id": (line(), "id", "is missing"),
    "missing timestamp": (b'{"type":"summary","id":"bad","summary":"x"}', "timestamp", "is missing"),
    "unknown role": (line(own="bad", role="wizard"), "role", "'wizard' is no role; known are user, assistant, system, tool"),
    "negative size": (result("bad", "c", originalSize=-1), "originalSize", "-1 is negative"),
    "date without zone": (line(own="bad", timestamp="2026-08-01T12:00:00"), "timestamp", "has no time zone"),
    "no date": (line(own="bad", timestamp="now"), "timestamp", "is neither RFC 3339 nor"),
    "own parent": (line(own="bad", parent="bad"), "parentId", "'bad' follows this entry itself"),
    "no parent": (line(own="bad", parent="gone"), "parentId", "no entry has the id 'gone'"),
    "duplicate id": (line(own="a", content="other"), "id", "'a' is the id of another entry already, in record 0 of w"),
    "no such call": (result("bad", "gone"), "toolCallId", "no call has the id 'gone'"),
    "nothing kept": (compaction("bad", "gone", "s"), "firstKeptEntryId", "no entry has the id 'gone'"),
    "no summary": (compaction("bad", "a", "gone"), "summaryEntryId", "no summary has the id 'gone'"),
    "a summary that is none": (compaction("bad", "a", "b"), "summaryEntryId", "no summary has the id 'b'"),
}


@pytest.mark.parametrize("what", BAD)
def test_a_problem_names_the_record_the_member_and_the_reason_and_the_rest_is_readable(what):
    bad, member, reason = BAD[what]
    tree = fed(line(own="a"), use("u", "c"), line("summary", "s"), bad, line(own="b", parent="a"))
    (problem,) = tree.problems()
    assert (problem.seq, problem.writer_id, problem.member) == (3, "w", member)
    assert reason in problem.reason
    assert {"a", "b"} <= set(ids(tree.context("b")))
    assert ids(tree.path("b")) == ["a", "b"]


def test_an_entry_that_is_not_what_its_type_demands_stays_in_the_tree():
    tree = fed(line(own="a"), line(own="b", parent="a", content=5), line(own="c", parent="b"))
    assert ids(tree.path("c")) == ["a", "b", "c"]
    assert isinstance(tree.entries[1], RawEntry)
    assert ids(tree.context()) == ["a", "c"]


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_a_loop_of_parents_is_cut_once_and_reported(order):
    lines = [line(own="a", parent="c"), line(own="b", parent="a"), line(own="c", parent="b"), line(own="d", parent="c")]
    tree = SessionTree()
    tree.feed([records(*lines)[place] for place in order])
    (problem,) = tree.problems()
    assert problem.member == "parentId"
    assert "follows this entry itself" in problem.reason
    for own in "abcd":
        path = ids(tree.path(own))
        assert path[-1] == own
        assert len(path) == len(set(path))
    assert ids(tree.leaves())[-1] == "d"
    assert tree.orphans() == []


def test_problems_come_in_the_order_of_the_transcript():
    tree = SessionTree()
    tree.feed([Record(5, "a", b"{"), Record(1, "b", line(own="o", parent="gone")), Record(1, "a", b"[")])
    assert [(each.seq, each.writer_id) for each in tree.problems()] == [(1, "a"), (1, "b"), (5, "a")]


_ATOMS = [
    *('"a"', '"b"', '""', '"\\ud800"', "null", "true", "-1", "1e400", "1e99999999999", "9" * 5000, "[]", "{}", '{"a":1}'),
    *('"2026-08-01T12:00:00"', '"2026-02-30T12:00:00Z"', "[" * 900 + "]" * 900, '"\x00"', "nul"),
]
_GOOD = [
    json.loads(each)
    for each in (line(own="a", new=1), use("b", "a"), result("a", "b"), compaction("a", "a", "b"), line("summary", "b"))
]


@st.composite
def _almost_good(draw):
    """An entry with some of its members changed."""
    members = {name: json.dumps(value) for name, value in draw(st.sampled_from(_GOOD)).items()}
    members |= draw(
        st.dictionaries(st.sampled_from([*members, "parentId", "originalSize"]), st.sampled_from(_ATOMS), max_size=3)
    )
    return ("{" + ",".join(f'"{name}":{value}' for name, value in members.items()) + "}").encode("utf-8", "surrogatepass")


@settings(max_examples=500)
@given(st.lists(st.binary() | _almost_good(), max_size=8))
def test_no_line_makes_a_view_fail(lines):
    tree = SessionTree()
    tree.feed(records(*lines, *lines))
    tree.feed(records(*lines, writer="v"))
    for entry in tree.entries:
        assert encode(entry)
        if entry.id:
            assert tree.path(entry.id)[-1] == entry
            tree.context(entry.id), tree.children(entry.id)
    tree.context(), tree.tool_calls(), tree.leaves(), tree.forks(), tree.orphans()
    assert all(each.reason for each in tree.problems())


# --- the tree ---------------------------------------------------------------------------------------------------------


def test_branches_forks_leaves_and_orphans():
    tree = fed(
        line(own="a"),
        line(own="b", parent="a"),
        line(own="c", parent="b"),
        line(own="d", parent="b"),
        line(own="e", parent="d"),
        line(own="o", parent="later"),
        line(parent="e"),
    )
    assert ids(tree.leaves()) == ["c", "o", ""]
    assert ids(tree.forks()) == ["b"]
    assert ids(tree.children("b")) == ["c", "d"]
    assert tree.children("c") == tree.children("nobody") == []
    assert ids(tree.path("e")) == ["a", "b", "d", "e"]
    assert ids(tree.context("e")) == ["a", "b", "d", "e"]
    assert ids(tree.path("o")) == ["o"]
    assert ids(tree.orphans()) == ["o"]
    tree.feed(records(line(own="later", parent="a"), start=7))
    assert (tree.orphans(), ids(tree.path("o"))) == ([], ["a", "later", "o"])
    with pytest.raises(KeyError, match="no entry has the id 'x'"):
        tree.path("x")


def test_a_path_tells_where_it_breaks_off():
    tree = fed(line(own="c", parent="b"), line(own="d", parent="c"), line(own="x", parent="x"), line(own="y", parent="x"))
    assert (tree.gap("c"), tree.gap("d")) == ("b", "b")
    assert (tree.gap("x"), tree.gap("y")) == ("x", "x")
    assert ids(tree.context("d")) == ["c", "d"]
    tree.feed(records(line(own="b"), start=9))
    assert tree.gap("d") is None
    with pytest.raises(KeyError, match="'gone'"):
        tree.gap("gone")


def test_totals_are_kept_while_feeding():
    lines = [line(own="a", content="x" * 9), use("u", "c"), result("r", "c"), compaction("k", "a", "s"), b'{"type":"note"}']
    tree = fed(*lines)
    assert tree.totals == Totals(5, 1, 1, 1, sum(map(len, lines)), 3 + 1 + 1)
    assert [estimate_tokens(each) for each in tree.entries] == [3, 1, 1, 0, 0]
    counted = SessionTree(count_tokens=lambda entry: 7)
    counted.feed(records(*lines))
    assert counted.totals.tokens == 35
    assert SessionTree().totals == Totals()


# --- tool calls -------------------------------------------------------------------------------------------------------


def pairs(*lines: bytes) -> list[tuple[str | None, list[str]]]:
    calls = fed(*lines).tool_calls()
    return [(call.use.id if call.use else None, ids(call.results)) for call in calls]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        pytest.param([use("u", "1"), result("r", "1")], [("u", ["r"])], id="in order"),
        pytest.param([use("u", "1")], [("u", [])], id="not answered"),
        pytest.param([result("r", "1")], [(None, ["r"])], id="not asked"),
        pytest.param([result("r", "1"), use("u", "1")], [("u", ["r"])], id="answered before it was asked"),
        pytest.param(
            [use("u1", "1"), use("u2", "2"), result("r2", "2"), result("r1", "1")],
            [("u1", ["r1"]), ("u2", ["r2"])],
            id="side by side",
        ),
        pytest.param([use("u", "1"), result("r1", "1"), result("r2", "1")], [("u", ["r1", "r2"])], id="answered twice"),
        pytest.param(
            [use("u1", "1"), result("r1", "1"), use("u2", "1"), result("r2", "1")],
            [("u1", ["r1"]), ("u2", ["r2"])],
            id="id used again",
        ),
        pytest.param([use("u1", "1"), use("u2", "1"), result("r", "1")], [("u1", []), ("u2", ["r"])], id="tried again"),
        pytest.param(
            [use("u1", "1"), use("u2", "1"), result("r1", "1", parent="u1"), result("r2", "1", parent="u2")],
            [("u1", ["r1"]), ("u2", ["r2"])],
            id="told apart by the parent",
        ),
        pytest.param([use("u", "1"), use("u", "1"), result("r", "1"), result("r", "1")], [("u", ["r"])], id="appended twice"),
    ],
)
def test_calls_are_paired_with_their_results(lines, expected):
    assert pairs(*lines) == expected


def test_the_calls_of_a_branch_are_those_on_its_path():
    tree = fed(line(own="a"), use("u1", "1", parent="a"), use("u2", "1", parent="a"), result("r", "1", parent="u1"))
    assert [call.use.id for call in tree.tool_calls("r")] == ["u1"]
    assert [call.use.id for call in tree.tool_calls()] == ["u1", "u2"]


# --- the context ------------------------------------------------------------------------------------------------------

SESSION = [
    line(own="m1"),
    use("u1", "1", parent="m1"),
    result("r1", "1", parent="u1"),
    line(own="m2", parent="r1"),
    b'{"type":"model_change","id":"x"}',
    line(own="m3", parent="m2"),
]


def test_without_a_compaction_the_model_sees_all_entries_of_known_types():
    assert ids(fed(*SESSION).context()) == ["m1", "u1", "r1", "m2", "m3"]


def test_after_a_compaction_it_sees_the_summary_and_the_messages_from_the_first_kept_one_on():
    tree = fed(
        *SESSION,
        line("summary", "s1", "m3"),
        compaction("c1", "m2", "s1", parent="s1"),
        line(own="m4", parent="c1"),
        use("u2", "2", parent="m4"),
        result("r2", "2", parent="u2"),
        line(own="m5", parent="r2"),
    )
    assert ids(tree.context()) == ids(tree.context("m5")) == ["s1", "m2", "m3", "m4", "m5"]
    assert ids(tree.context("r1")) == ["m1", "u1", "r1"]
    assert len(tree.entries) == 12


def test_the_last_compaction_counts_and_may_keep_from_any_entry_on():
    tree = fed(
        *SESSION,
        line("summary", "s1"),
        compaction("c1", "m1", "s1"),
        line(own="m4"),
        line("summary", "s2"),
        compaction("c2", "r1", "s2"),
    )
    assert ids(tree.context()) == ["s2", "m2", "m3", "m4"]


def test_a_compaction_that_keeps_from_nowhere_hides_what_was_before_it_and_nothing_after():
    tree = fed(*SESSION, line("summary", "s1"), compaction("c1", "gone", "s1"), line(own="m4"))
    assert ids(tree.context()) == ["s1", "m4"]
    tree = fed(*SESSION, compaction("c1", "m3", "gone"), line(own="m4"))
    assert ids(tree.context()) == ["m3", "m4"]


# --- compacting -------------------------------------------------------------------------------------------------------


def replayed(store) -> SessionTree:
    tree = SessionTree()
    tree.feed(store.records(REF))
    return tree


def test_a_compaction_shortens_the_context_and_the_whole_session_stays():
    store = make().store
    with store.writer(REF) as writer:
        for each in SESSION:
            writer.append(each)
        writer.flush()
        before = replayed(store)
        plan = SessionCompaction(before, keep=2)
        assert (ids(plan.replaced), ids(plan.kept)) == (["m1", "u1", "r1"], ["m2", "m3"])
        made = plan.append(writer, "Looked at the files.")
        writer.flush()
        after = replayed(store)
        assert after.entries[: len(before.entries)] == before.entries
        summary, last = after.entries[-2:]
        assert isinstance(summary, SummaryEntry)
        assert (summary.parent_id, summary.summary, summary.format) == ("m3", "Looked at the files.", "structured")
        assert last == made
        assert isinstance(last, CompactionEntry)
        assert last.parent_id == summary.id
        assert after.context() == [summary, *plan.kept]
        assert after.problems() == []
        writer.append(MessageEntry.user("go on", parent_id=last.id))
        writer.flush()
        again = replayed(store)
        plan = SessionCompaction(again, keep=1)
        assert ids(plan.replaced) == [summary.id, "m2", "m3"]
        plan.append(writer, "More of it.", format="plain")
        writer.flush()
    final = replayed(store).context()
    assert [each.text for each in final] == ["More of it.", "go on"]


def test_a_branch_is_compacted_for_itself():
    tree = fed(line(own="a"), line(own="b", parent="a"), line(own="c", parent="a"), line(own="d", parent="c"))
    plan = SessionCompaction(tree, keep=1, leaf_id="d")
    assert (ids(plan.replaced), ids(plan.kept)) == (["a", "c"], ["d"])
    summary, last = plan.entries("x")
    tree.feed(records(encode(summary), encode(last), start=4))
    assert summary.parent_id == "d"
    assert tree.context(last.id) == [summary, plan.kept[0]]


def test_more_is_kept_where_the_first_message_has_no_name():
    plan = SessionCompaction(fed(line(own="a"), line(own="b"), line(), line(own="c")), keep=2)
    assert (ids(plan.replaced), ids(plan.kept)) == (["a"], ["b", "", "c"])


@pytest.mark.parametrize("lines", [[], [line(own="a")], [use("u", "1"), result("r", "1")], [line(), line(own="b")]])
def test_where_nothing_would_be_taken_out_there_is_nothing_to_compact(lines):
    with pytest.raises(InvalidEntryError, match="there is nothing to compact"):
        SessionCompaction(fed(*lines), keep=2)
    with pytest.raises(ValueError, match="keep must be 1 or more, not 0"):
        SessionCompaction(fed(*lines), keep=0)


def test_made_entries_make_a_session():
    question = MessageEntry.user("What is here?")
    call = ToolUseEntry.new("bash", {"cmd": "ls"}, parent_id=question.id)
    answer = ToolResultEntry.new(call, "a.py")
    reply = MessageEntry.assistant("A file.", parent_id=answer.id)
    tree = fed(*map(encode, (question, call, answer, reply)))
    assert tree.path(reply.id) == tree.context() == [question, call, answer, reply]
    assert tree.tool_calls() == [(call, [answer])]
    assert tree.problems() == []
