from __future__ import annotations

import json
import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from transcript_backends import CorruptSegmentError, InvalidSegmentError, Record, check_jsonl
from transcript_backends.records import MAX_LINE_BYTES, is_object, normalize

# --- an oracle of its own ---------------------------------------------------------------------------------------------


def oracle(payload: bytes, count: int) -> bytes | None:
    """The payload as it is to be stored, by the standard library alone; None where it is to be refused."""

    def refuse(constant):
        raise ValueError(constant)

    try:
        text = payload.decode()
        lines = [each.rstrip("\r") for each in text.removesuffix("\n").split("\n")]
        objects = [json.loads(each, parse_constant=refuse, parse_int=float) for each in lines]
    except (ValueError, RecursionError):
        return None
    if len(lines) != count or not all(isinstance(each, dict) for each in objects):
        return None
    if any(len(each.encode()) > MAX_LINE_BYTES for each in lines):
        return None
    return "".join(f"{each}\n" for each in lines).encode()


def verdict(payload: bytes, count: int) -> bytes | None:
    try:
        return normalize(payload, count)
    except InvalidSegmentError:
        return None


def assert_judged_alike(payload: bytes, count: int) -> None:
    expected = oracle(payload, count)
    assert verdict(payload, count) == expected
    if expected is not None:
        assert normalize(expected, count) == expected


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.text(st.characters(max_codepoint=0x24F))
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3), max_leaves=6
)
objects = st.dictionaries(st.text(max_size=5), values, max_size=4)


@st.composite
def dumped(draw):
    """An object as one of the many texts that stand for it (or would, were NaN allowed)."""
    separators = draw(st.sampled_from([(",", ":"), (", ", ": "), (" ,\t", "\r:  "), ("\r,", ":\t")]))
    text = json.dumps(draw(objects), ensure_ascii=draw(st.booleans()), separators=separators, sort_keys=draw(st.booleans()))
    return draw(st.sampled_from(["", " ", "\t", "\r"])) + text + draw(st.sampled_from(["", " ", "\t "]))


payloads = st.builds(
    lambda lines, ends, final: "".join(line + end for line, end in zip(lines, ends, strict=False)).removesuffix(final).encode(),
    st.lists(dumped(), min_size=1, max_size=4),
    st.lists(st.sampled_from(["\n", "\r\n", "\r\r\n"]), min_size=4, max_size=4),
    st.sampled_from(["", "\n"]),
)


@given(payloads)
def test_what_the_standard_library_dumps_is_judged_like_it_judges_it(payload):
    assert_judged_alike(payload, payload.removesuffix(b"\n").count(b"\n") + 1)


@given(payloads, st.data())
@settings(max_examples=300)
def test_damaged_bytes_are_judged_like_the_standard_library_judges_them(payload, data):
    damaged = bytearray(payload)
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(damaged)))
        piece = data.draw(
            st.binary(max_size=2)
            | st.sampled_from([b'"', b"\\", b"\\u", b"{", b"}", b",", b"0", b"-", b".", b"e", b"\0", b"\n", b"\xed\xa0\x80"])
        )
        damaged[place : place + data.draw(st.integers(0, 2))] = piece
    assert_judged_alike(bytes(damaged), damaged.removesuffix(b"\n").count(b"\n") + 1)


ATOMS = [
    "0", "-0", "1", "01", "-", "+1", "1.", ".5", "1.5e", "1e+", "1E-5", "1e400", "-1e400", "0x1", "1_0", "9" * 400, "true",
    "True", "nul", "null", "NaN", "Infinity", "-Infinity", '""', '"a', "'a'", '"\\u00e9"', '"\\u12"', '"\\ud800"',
    '"\\udc00\\ud800"', '"\\x"', '"\\/"', '"\\"', '"\\\\"', '"\t"', '"\x7f"', '"\x00"', '"é"', '"\u2028"', '"\x85"', "", "[",
    "]", "/**/1", "\x0c1", "\xa01",
]  # fmt: skip
NAMES = ['"a"', '"a"', '"\\udfff"', "a", "1"]
COLONS = [":", " : ", "", "::"]


def in_an_array(inner):
    many = st.lists(inner, max_size=3)
    return st.tuples(st.sampled_from(["[{}]", "[{},]", "[ {} ]"]), st.sampled_from([",", " , ", " "]), many).map(
        lambda drawn: drawn[0].format(drawn[1].join(drawn[2]))
    )


def in_an_object(inner):
    members = st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(COLONS), inner).map("".join), max_size=2)
    return members.map(lambda many: "{" + ", ".join(many) + "}")


texts = st.recursive(st.sampled_from(ATOMS), lambda inner: in_an_array(inner) | in_an_object(inner), max_leaves=5)


@given(texts.map(lambda text: '{"k": ' + text + "}") | texts)
@settings(max_examples=400)
def test_text_that_is_almost_json_is_judged_like_the_standard_library_judges_it(text):
    assert_judged_alike(text.encode(), 1)


# --- refused, with the cause and what to do ---------------------------------------------------------------------------

REFUSED = {
    "NaN": (b'{"a":NaN}', "line 1 is not JSON: it holds NaN, which is not JSON; write null or a string"),
    "NaN deep inside": (b'{"a":[{"b":[NaN]}]}', "line 1 is not JSON: it holds NaN"),
    "Infinity": (b'{"a":Infinity}', "line 1 is not JSON: it holds Infinity"),
    "-Infinity": (b'{"a":-Infinity}', "line 1 is not JSON: it holds -Infinity"),
    "an array": (b"[{}]", "line 1 is an array; every line must be a JSON object"),
    "a string": (b'"a"', "line 1 is a string"),
    "a number": (b"12", "line 1 is a number"),
    "a fraction": (b"1.5", "line 1 is a number"),
    "true": (b"true", "line 1 is true or false"),
    "null": (b"null", "line 1 is null"),
    "a raw NUL": (b'{"a":"\0"}', "line 1 holds a raw NUL byte at 6; write it as \\u0000"),
    "a control character": (b'{"a":"\x01"}', "line 1 is not JSON: Invalid control character"),
    "a BOM": (b"\xef\xbb\xbf{}", "line 1 starts with a byte-order mark; remove its three bytes EF BB BF"),
    "a BOM later": (b"{}\n\xef\xbb\xbf{}\n", "line 2 starts with a byte-order mark"),
    "Latin-1": (b'{"a":"\xe9"}', "line 1 is not UTF-8 at byte 6"),
    "an encoded surrogate": (b'{"a":"\xed\xa0\x80"}', "line 1 is not UTF-8 at byte 6"),
    "an overlong slash": (b'{"a":"\xc0\xaf"}', "line 1 is not UTF-8 at byte 6"),
    "beyond Unicode": (b'{"a":"\xf4\x90\x80\x80"}', "line 1 is not UTF-8 at byte 6"),
    "UTF-16": ('{"a":1}'.encode("utf-16"), "line 1 is not UTF-8 at byte 0"),
    "UTF-16 without BOM": ("{}".encode("utf-16-le"), "line 1 holds a raw NUL byte at 1"),
    "nothing": (b"", "the payload is empty; a segment holds at least one record"),
    "a newline only": (b"\n", "line 1 is blank; every line must hold one JSON object"),
    "CR LF only": (b"\r\n", "line 1 is blank"),
    "a blank line": (b"{}\n \t\n{}\n", "line 2 is blank"),
    "a blank line at the end": (b"{}\n\n", "line 2 is blank"),
    "two objects": (b"{} {}", "line 1 is not JSON: Extra data"),
    "an object over two lines": (b'{"a":\n1}', "line 1 is not JSON"),
    "cut short": (b'{}\n{"a":"b', "line 2 is not JSON"),
    "single quotes": (b"{'a':1}", "line 1 is not JSON"),
    "a trailing comma": (b'{"a":1,}', "line 1 is not JSON"),
    "100,000 arrays deep": (b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "line 1 is nested too deeply"),
    "100,000 objects deep": (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "line 1 is nested too deeply"),
    "100,000 open arrays": (b"[" * 100_000, "line 1 is nested too deeply"),
    "a line over 4 MiB": (b'{"a":"' + b"x" * (MAX_LINE_BYTES - 7) + b'"}',
    "line 1 is 4194305 bytes long, 4194304 is the limit; keep large values"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_a_line_that_breaks_the_rules_is_refused_with_its_number_and_the_cause(what):
    payload, why = REFUSED[what]
    with pytest.raises(InvalidSegmentError, match=re.escape(why)):
        normalize(payload, payload.removesuffix(b"\n").count(b"\n") + 1)


@pytest.mark.parametrize("payload", ["{}", None, 5, ["{}"], {}])
def test_a_payload_that_is_not_bytes_is_refused_with_its_type(payload):
    with pytest.raises(InvalidSegmentError, match=f"must be bytes, not {type(payload).__name__}; encode text as UTF-8"):
        normalize(payload, 1)


@pytest.mark.parametrize(("lines", "count"), [(1, 2), (2, 1), (3, 2**63)])
def test_as_many_lines_as_the_range_names_records_or_none(lines, count):
    with pytest.raises(InvalidSegmentError, match=f"has {lines} lines, the range names {count} records"):
        normalize(b"{}\n" * lines, count)


@pytest.mark.parametrize("kept", ["{}", '{"a":[]}', '{"a":"\\ud800"}'])
@pytest.mark.parametrize("refused", ["[]", '["\\ud800"]', '"\\ud800"', "null", "{", '{"a":NaN}', ""])
def test_a_line_is_an_object_or_not_however_odd_its_strings_are(kept, refused):
    assert is_object(kept.encode())
    assert not is_object(refused.encode())


def test_a_message_never_holds_the_line():
    with pytest.raises(InvalidSegmentError) as caught:
        normalize(b'{"a": "canary-7f3a}', 1)
    assert "canary" not in str(caught.value)


# --- kept byte for byte -----------------------------------------------------------------------------------------------

KEPT = {
    "an escaped lone surrogate": b'{"t":"\\ud800","u":"\\udc00\\ud800"}',
    "a surrogate as a name": b'{"\\udfff":1}',
    "line separators": '{"t":"a\u2028b\u2029c"}'.encode(),
    "NEL and DEL": '{"t":"a\x85b\x7f"}'.encode(),
    "duplicate members": b'{"a":1,"a":2}',
    "a 5,000-digit integer": b'{"a":' + b"9" * 5000 + b"}",
    "beyond doubles": b'{"a":[1e400,-1e400,1E-400,-0]}',
    "odd spacing": b'{ "a"\t:  [ 1 ,2] }',
    "a bare CR between tokens": b'{"a":1,\r"b":2}',
    "blanks around": b" \t{} \t ",
    "a CR before": b"\r{}",
    "an empty object": b"{}",
    "escapes": b'{"a":"\\u0000\\/\\u00e9\\n"}',
    "astral": '{"🙂":"\U0010ffff"}'.encode(),
    "nesting": b'{"a":' + b"[" * 200 + b"]" * 200 + b"}",
    "4 MiB exactly": b'{"a":"' + b"x" * (MAX_LINE_BYTES - 8) + b'"}',
    "noncharacters": '{"a":"\ufffe\uffff"}'.encode(),
    "a BOM inside": '{"a":"\ufeff"}'.encode(),
}


@pytest.mark.parametrize("what", KEPT)
def test_a_line_is_kept_byte_for_byte(what):
    line = KEPT[what]
    assert normalize(line + b"\n", 1) == line + b"\n"
    assert normalize(line, 1) == line + b"\n"
    assert normalize(line + b"\r\n" + line, 2) == (line + b"\n") * 2


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_anything_like_bytes_is_taken(kind):
    stored = normalize(kind(b"{}\r\n{}"), 2)
    assert stored == b"{}\n{}\n"
    assert type(stored) is bytes


@pytest.mark.parametrize("payload", [b"{}\r\n", b"{}\r", b"{}\r\r\n", b"{}", b"{}\n"])
def test_line_ends_become_one_lf(payload):
    assert normalize(payload, 1) == b"{}\n"


def test_the_cr_of_a_line_end_does_not_count_against_the_limit():
    line = KEPT["4 MiB exactly"]
    assert check_jsonl(line + b"\r\n") == line + b"\n"


# --- check_jsonl ------------------------------------------------------------------------------------------------------


@given(st.lists(payloads.map(lambda payload: payload.removesuffix(b"\n") + b"\n"), min_size=1, max_size=4))
@example([b"{}\r\n", b'{"a":1}\n'])
def test_blocks_of_whole_lines_are_checked_one_by_one_like_in_one_piece(blocks):
    def checked(payload, first_line=1):
        try:
            return check_jsonl(payload, first_line=first_line)
        except InvalidSegmentError as error:
            return str(error)

    found, number = b"", 1
    for block in blocks:
        one = checked(block, number)
        if isinstance(one, str):
            found = one
            break
        found, number = found + one, number + one.count(b"\n")
    assert checked(b"".join(blocks)) == found


@pytest.mark.parametrize(
    "payload", [b"{}\n[]", b"{}\n\n", b"{}\n\xff", b"{}\n\xef\xbb\xbf{}", b'{}\n{"a":NaN}', b"{}\n\0", b"{}\n" + b"[" * 100_000]
)
def test_lines_are_numbered_from_where_the_caller_is(payload):
    with pytest.raises(InvalidSegmentError, match=r"^line 2\b"):
        check_jsonl(payload)
    with pytest.raises(InvalidSegmentError, match=r"^line 1001\b"):
        check_jsonl(payload, first_line=1000)


# --- Record -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("line", [b"", b"{", b"\xff", b"[" * 100_000])
def test_a_damaged_record_says_which_it_is(line):
    with pytest.raises(CorruptSegmentError, match=r"record 7 of writer w\b"):
        Record(7, "w", line).json()


@given(objects)
def test_a_record_gives_the_object_it_was_made_from(value):
    text = json.dumps(value)
    if "NaN" not in text:
        assert Record(0, "w", text.encode()).json() == value


def test_a_number_longer_than_int_takes_from_text_is_parsed():
    assert Record(0, "w", b'{"n":-' + b"9" * 5000 + b"}").json() == {"n": -(10**5000 - 1)}
