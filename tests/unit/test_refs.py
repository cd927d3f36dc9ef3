from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transcript_backends import InvalidRefError, RuntimeContext, TranscriptRef
from transcript_backends.keys import escape

ids = st.text(max_size=30).filter(lambda text: text.strip() and len(escape(text)) <= 255)


@given(ids, ids, ids)
def test_a_ref_reads_back_from_its_text(tenant, agent, session):
    ref = TranscriptRef(tenant, agent, session)
    assert TranscriptRef.parse(str(ref)) == ref
    assert ref.prefix == f"{ref}/"
    assert str(ref).isascii()
    assert str(ref).count("/") == 2


@given(ids, ids)
def test_without_a_tenant_the_default_one_is_meant(agent, session):
    assert TranscriptRef.parse(f"{escape(agent)}/{escape(session)}") == TranscriptRef("default", agent, session)


@pytest.mark.parametrize(
    ("text", "ref"),
    [
        ("acme/coder/a b", ("acme", "coder", "a b")),
        ("acme/coder/a=20b", ("acme", "coder", "a b")),
        ("acme/coder/日本", ("acme", "coder", "日本")),
        ("coder/agent:1:main", ("default", "coder", "agent:1:main")),
        ("../../..", ("..", "..", "..")),
        ("a/b/c=2Fd", ("a", "b", "c/d")),
        ("a/b/c%2Fd", ("a", "b", "c%2Fd")),
    ],
)
def test_characters_that_need_no_escape_may_stand_for_themselves(text, ref):
    assert TranscriptRef.parse(text) == TranscriptRef(*ref)


@pytest.mark.parametrize(
    "text", ["", "a", "a/b/c/d", "/", "//", "a//b", "/a/b", "a/b/", "a/ /b", "a/b/=", "a/b/=FF", "a/b/\ud800", None, 5, b"a/b"]
)
def test_text_that_names_no_transcript_is_refused(text):
    with pytest.raises(InvalidRefError):
        TranscriptRef.parse(text)


def test_a_wrong_number_of_parts_is_refused_with_the_right_form():
    with pytest.raises(InvalidRefError, match=r"'a/b/c/d' .* write agent/session or tenant/agent/session .* =2F"):
        TranscriptRef.parse("a/b/c/d")


@pytest.mark.parametrize("field", ["tenant", "agent_id", "session_id"])
@pytest.mark.parametrize("value", ["", " ", "\n", None, 7, b"x", "\udc00", "x" * 256, "é" * 128])
def test_an_id_that_can_be_no_segment_is_refused_when_the_ref_is_made(field, value):
    with pytest.raises(InvalidRefError) as caught:
        TranscriptRef(**{"tenant": "t", "agent_id": "a", "session_id": "s", field: value})
    assert field.replace("_", " ") in str(caught.value) or "surrogate" in str(caught.value)


def test_refs_are_values():
    ref = TranscriptRef("t", "a", "s")
    assert ref == TranscriptRef("t", "a", "s") != TranscriptRef("t", "a", "S")
    assert {ref: 1}[TranscriptRef("t", "a", "s")] == 1
    assert sorted([TranscriptRef("t", "b", "a"), ref]) == [ref, TranscriptRef("t", "b", "a")]
    assert pickle.loads(pickle.dumps(ref)) == ref
    with pytest.raises(AttributeError):
        ref.tenant = "x"


def test_a_context_gives_its_fields_and_attributes():
    rc = RuntimeContext(user_id="u", tenant="t", session_id="s", attributes={"region": "eu", "user_id": "other"})
    assert [rc.value(name) for name in ("user_id", "tenant", "session_id", "region", "x")] == ["u", "t", "s", "eu", None]
    assert RuntimeContext().value("user_id") is None


def test_a_context_does_not_change_with_the_mapping_it_was_made_from():
    attributes = {"a": "1"}
    rc = RuntimeContext(attributes=attributes)
    attributes["a"] = "2"
    assert rc.value("a") == "1"
    with pytest.raises(TypeError):
        rc.attributes["a"] = "2"


def test_a_context_can_be_pickled():
    rc = RuntimeContext(user_id="u", attributes={"region": "eu"})
    assert pickle.loads(pickle.dumps(rc)) == rc
