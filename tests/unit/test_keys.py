from __future__ import annotations

import re
import string
from urllib.parse import unquote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from transcript_backends import keys
from transcript_backends.errors import InvalidRefError, InvalidSegmentError
from transcript_backends.keys import (
    ESCAPED,
    MAX_SEQ,
    RAW,
    IndexKey,
    MarkerKey,
    PayloadKey,
    SegmentName,
    Spelling,
    TranscriptKeys,
    escape,
    parse_object,
    parse_segment_name,
    read_path,
    split_key,
    unescape,
)

seqs = st.integers(0, MAX_SEQ)
ranges = st.tuples(seqs, seqs).map(sorted)
writers = st.text(string.ascii_letters + string.digits + "_-", min_size=1, max_size=64)
texts = st.text(max_size=40)
ids = texts.filter(lambda text: text.strip() and len(escape(text)) <= 255)
roots = st.lists(ids.map(escape), max_size=3).map(lambda parts: "".join(f"{part}/" for part in parts))

NASTY = [
    "..", ".", "...", "/x", "..\\x", "../../etc/x", "\0", "a\0b", "\n", "a\n", "a.\n", "\n.", "a%2Fb", "a/b", "=41", "A", "=",
    "==", "=3D", "A-B", "A.C", "a b", " a", "日本", "e\u0301", "é", "🙂", "x" * 200, "agent:1:main", "\a", ".hidden", "end.",
    "a..b", "\u2028",
    "{tenant}", "a+b", "~", "con", "\U0010ffff", "\x85", "\u202e",
]  # fmt: skip


# --- ids --------------------------------------------------------------------------------------------------------------


@given(texts)
@example("a.\n")
def test_every_id_comes_back_from_its_path_segment(text):
    assert unescape(escape(text)) == text


@pytest.mark.parametrize("text", NASTY)
def test_nasty_ids_come_back_from_their_path_segments(text):
    assert unescape(escape(text)) == text
    assert_is_one_tame_segment(escape(text))


@given(texts.filter(bool))
def test_a_path_segment_is_tame_ascii(text):
    assert_is_one_tame_segment(escape(text))


def assert_is_one_tame_segment(segment):
    assert re.fullmatch(r"([A-Za-z0-9_-]|=[0-9A-F]{2})(([A-Za-z0-9_.-]|=[0-9A-F]{2})*([A-Za-z0-9_-]|=[0-9A-F]{2}))?", segment)
    assert unquote(segment) == segment


@given(texts, texts)
def test_two_ids_never_meet(one, other):
    assert (escape(one) == escape(other)) == (one == other)


def test_no_two_nasty_ids_meet():
    assert len({escape(text) for text in NASTY}) == len(set(NASTY))


@given(st.text(string.ascii_letters + string.digits + "_-", min_size=1), st.text(string.ascii_letters + "._-"))
def test_ordinary_ids_stay_as_they_are(start, middle):
    assert escape(f"{start}{middle}{start}") == f"{start}{middle}{start}"


@pytest.mark.parametrize(
    ("text", "segment"),
    [
        ("..", "=2E=2E"),
        ("...", "=2E.=2E"),
        ("a.\n", "a.=0A"),
        ("a/b", "a=2Fb"),
        ("a%2Fb", "a=252Fb"),
        ("=41", "=3D41"),
        ("mäggi", "m=C3=A4ggi"),
        ("agent:1:main", "agent=3A1=3Amain"),
        ("\a", "=07"),
        ("", ""),
    ],
)
def test_the_escape_is_the_documented_one(text, segment):
    assert escape(text) == segment


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb"])
def test_half_a_character_is_refused(text):
    with pytest.raises(InvalidRefError, match=r"lone surrogate .* repair the text"):
        escape(text)
    with pytest.raises(InvalidRefError):
        unescape(text)


@pytest.mark.parametrize("segment", ["=", "a=", "=4", "=4g", "=ab", "=2f", "==41", "=4=411", "=FF", "=ED=A0=80", "=C0=AF"])
def test_what_is_no_escape_is_refused(segment):
    with pytest.raises(InvalidRefError, match=r"=3D|no escaped UTF-8"):
        unescape(segment)


@pytest.mark.parametrize("value", ["", " ", "\t\n", "\u3000", "\x85"])
def test_a_blank_id_is_refused_by_its_name(value):
    with pytest.raises(InvalidRefError, match=r"the agent id is blank: .*; give it"):
        keys.check_id(value, "agent id")


@pytest.mark.parametrize("value", [None, 5, b"x", ["x"]])
def test_an_id_that_is_no_text_is_refused_with_its_type(value):
    with pytest.raises(InvalidRefError, match=f"the tenant must be text, not {type(value).__name__}"):
        keys.check_id(value, "tenant")


@pytest.mark.parametrize(
    ("fits", "too_long"), [("x" * 255, "x" * 256), ("é" * 42 + "abc", "é" * 42 + "abcd"), ("=" * 85, "=" * 86)]
)
def test_an_id_takes_255_bytes_once_escaped_and_no_more(fits, too_long):
    assert len(keys.check_id(fits, "tenant")) == 255
    with pytest.raises(InvalidRefError, match=r"tenant .*255 is the limit; use a shorter id"):
        keys.check_id(too_long, "tenant")


# --- ids as other programs write them ---------------------------------------------------------------------------------


ON_AZURE = Spelling("raw", r"\.\Z")
IN_A_DIRECTORY = Spelling("raw", r"\A\.")
RAWS = [RAW, ON_AZURE, IN_A_DIRECTORY]


@pytest.mark.parametrize("spelling", RAWS)
@given(text=st.one_of(texts.filter(str.strip), st.text("=23DF05AC\\/.\x05\x85", min_size=1).filter(str.strip)))
def test_every_raw_id_has_one_segment_that_reads_as_it(spelling, text):
    segment = spelling.escape(text)
    assert spelling.read(segment) == text
    assert "/" not in segment
    assert segment not in (".", "..")
    assert not re.search("[\x00-\x1f\x7f-\x9f]", segment)
    assert len(segment.encode()) <= len(escape(text))


@pytest.mark.parametrize("spelling", RAWS)
@given(segment=st.text("=23DF05AC\\./a b\x05\x85", min_size=1))
def test_a_raw_segment_reads_as_the_one_id_that_is_written_so_or_as_none(spelling, segment):
    text = spelling.read(segment)
    assert text is None or spelling.write(text, "id") == segment


@pytest.mark.parametrize(
    "text",
    [
        "a b", "user@host", "café", "cafe\u0301", "日本", "🙂", "a+b", "100%", "a%20b", "a?b", "a#b", "a:b", "k=v", "=", "==",
        "=4", "=2f", "=st", "a=state", "=states",
        "~", "{x}", "<a&b>", "a;b,c", "'\"`", "*[!]", "a..b", " a ", "a\u2028", "\u202e", "\U0010ffff",
    ],
)  # fmt: skip
def test_what_other_programs_put_into_paths_as_it_is_stands_for_itself(text):
    for spelling in RAWS:
        assert (spelling.escape(text), spelling.read(text)) == (text, text)


@pytest.mark.parametrize(
    ("text", "segment"),
    [
        ("a/b", "a=2Fb"),
        ("a\\b", "a=5Cb"),
        (".", "=2E"),
        ("..", "=2E=2E"),
        ("a\tb\0", "a=09b=00"),
        ("\x7f\x85", "=7F=C2=85"),
        ("=2F", "=3D2F"),
        ("k=20v", "k=3D20v"),
        ("==2F", "==3D2F"),
        ("=/", "==2F"),
        ("\ufffe", "=EF=BF=BE"),
        ("=state", "=3Dstate"),
    ],
)
def test_what_no_path_can_hold_is_escaped_in_raw_too(text, segment):
    assert (RAW.escape(text), RAW.read(segment)) == (segment, text)


def test_what_a_service_can_not_hold_is_escaped_there_only():
    assert [each.escape("a.") for each in RAWS] == ["a.", "a=2E", "a."]
    assert [each.escape(".hidden") for each in RAWS] == [".hidden", ".hidden", "=2Ehidden"]
    assert [each.read("a.") for each in RAWS] == ["a.", None, "a."]


@pytest.mark.parametrize("segment", ["a=20b", "=61", "=C3=A4", "=2E", "=FF", "", " ", "\ud800", "a=2Eb"])
def test_a_segment_that_no_raw_id_is_written_as_is_nobodys(segment):
    assert RAW.read(segment) in (None, "." if segment == "=2E" else None)


def test_a_raw_id_takes_255_bytes_as_it_is_written():
    assert RAW.write("é" * 127 + "x", "tenant") == "é" * 127 + "x"
    with pytest.raises(InvalidRefError, match=r"takes 256 bytes as it is written \(ids=raw\), 255 is the limit"):
        RAW.write("é" * 128, "tenant")


def test_the_default_reads_no_raw_segment_but_those_that_both_write_alike():
    for text in filter(str.strip, NASTY):
        assert ESCAPED.read(RAW.escape(text)) == (text if RAW.escape(text) == escape(text) else None)


# --- segment names ----------------------------------------------------------------------------------------------------


@given(ranges, writers)
def test_a_segment_name_reads_back_as_what_was_written(both, writer):
    name = SegmentName(*both, writer)
    assert parse_segment_name(str(name)) == name
    assert re.fullmatch(r"[0-9]{19}-[0-9]{19}-[A-Za-z0-9_-]+\.jsonl", str(name))


@given(ranges, writers, st.integers(0, 40), st.integers(0, 40))
def test_padding_does_not_change_what_a_name_says(both, writer, zeros, more_zeros):
    start, end = both
    assert parse_segment_name(f"{'0' * zeros}{start}-{'0' * more_zeros}{end}-{writer}.jsonl") == SegmentName(start, end, writer)


@given(st.lists(ranges, max_size=8), writers)
def test_canonical_names_sort_as_text_like_their_numbers(many, writer):
    names = [SegmentName(*both, writer) for both in many]
    assert sorted(map(str, names)) == list(map(str, sorted(names)))


@pytest.mark.parametrize(
    ("name", "writer"),
    [
        ("0-0-compacted.jsonl", "compacted"),
        ("0-0-host_name_8080__.jsonl", "host_name_8080__"),
        ("0-0-1-2.jsonl", "1-2"),
        ("0-0--.jsonl", "-"),
        ("0-0-日本.jsonl", "日本"),
        (f"0-0-{'w' * 100}.jsonl", "w" * 100),
        (f"{'0' * 5000}-{'0' * 5000}-w.jsonl", "w"),
    ],
)
def test_segments_of_other_writers_are_read(name, writer):
    found = parse_segment_name(name)
    assert found == (0, 0, writer)
    assert found.generation is None


FOREIGN_NAMES = [
    "", "x", ".jsonl", "0-0.jsonl", "0-0-.jsonl", "0-w.jsonl", "-0-0-w.jsonl", "0-0-w.json", "0-0-w.jsonl.gz", "0-0-w.JSONL",
    "0-0-a.b.jsonl",
    "0-0-a/b.jsonl", "١٢-١٣-w.jsonl", "１-２-w.jsonl", "1_0-20-w.jsonl", " 1-2-w.jsonl", "1 -2-w.jsonl", "+1-2-w.jsonl",
    "-1-2-w.jsonl",
    "1-+2-w.jsonl", "0x1-2-w.jsonl", "1e1-20-w.jsonl", "1.0-2-w.jsonl", "²-3-w.jsonl", "2-1-w.jsonl", "0-0-w.jsonl\n",
    "\n0-0-w.jsonl",
    f"0-{2**63}-w.jsonl", f"{2**63}-{2**63}-w.jsonl", "0-9999999999999999999-w.jsonl", f"0-{'9' * 5000}-w.jsonl",
    f"{'9' * 5000}-1-w.jsonl",
    ".0-0-w.jsonl.tmp-1-ab", ".DS_Store", "_SUCCESS", "_$folder$",
]  # fmt: skip


@pytest.mark.parametrize("name", FOREIGN_NAMES)
def test_a_name_that_breaks_the_grammar_is_no_segments(name):
    assert parse_segment_name(name) is None
    assert parse_object(f"events/{name}") is None


def test_the_greatest_seq_is_read_and_the_next_is_not():
    assert parse_segment_name(f"{MAX_SEQ}-{MAX_SEQ}-w.jsonl") == (2**63 - 1, 2**63 - 1, "w")
    assert parse_segment_name(f"0-{MAX_SEQ + 1}-w.jsonl") is None


@pytest.mark.parametrize(
    ("writer", "generation"),
    [
        ("compacted-0-0123456789abcdef", 0),
        ("compacted-12-ffffffffffffffff", 12),
        ("compacted-9999999999999999999-0123456789abcdef", 10**19 - 1),
        ("compacted-01-0123456789abcdef", None),
        ("compacted-1-0123456789ABCDEF", None),
        ("compacted-1-0123456789abcde", None),
        ("compacted-1-0123456789abcdef0", None),
        ("compacted--1-0123456789abcdef", None),
        ("compacted-١-0123456789abcdef", None),
        ("compacted-1-0123456789abcdef\n", None),
        ("compacted", None),
        ("compacted-", None),
        ("xcompacted-1-0123456789abcdef", None),
    ],
)
def test_only_a_well_formed_compacted_name_has_a_generation(writer, generation):
    assert parse_segment_name(f"0-5-{writer}.jsonl") == (0, 5, writer)
    assert SegmentName(0, 5, writer).generation == generation


@pytest.mark.parametrize("writer", ["w", "W-1_x", "-", "_", "compacted", "compactedx", "a" * 64])
def test_a_writer_id_of_the_alphabet_is_taken_as_it_is(writer):
    assert keys.check_writer_id(writer) == writer


@pytest.mark.parametrize("writer", ["", "a" * 65, "a.b", "a b", "a/b", "w\n", "ä", "١", "a=b", None, 5, b"w", "\ud800"])
def test_any_other_writer_id_is_refused_and_never_rewritten(writer):
    with pytest.raises(InvalidSegmentError, match=r"must be 1 to 64 of the characters A-Z a-z 0-9 _ -"):
        keys.check_writer_id(writer)


def test_the_name_of_compacted_segments_is_kept_from_writers():
    with pytest.raises(InvalidSegmentError, match="kept for compacted segments"):
        keys.check_writer_id("compacted-x")


@pytest.mark.parametrize(
    ("start", "end", "why"),
    [
        (2, 1, "seq_start 2 is greater than seq_end 1; the range is inclusive"),
        (-1, 0, "seq_start -1 is outside"),
        (0, -1, "seq_end -1 is outside"),
        (0, 2**63, "seq_end 9223372036854775808 is outside"),
        (True, 1, "seq_start must be an integer, not bool"),
        (0, 1.0, "seq_end must be an integer, not float"),
        ("0", 1, "seq_start must be an integer, not str"),
        (None, 1, "seq_start must be an integer, not NoneType"),
    ],
)
def test_a_range_that_is_none_is_refused_with_the_cause(start, end, why):
    with pytest.raises(InvalidSegmentError, match=re.escape(why)):
        keys.check_range(start, end)


def test_a_number_too_long_to_print_is_refused_like_any_other():
    with pytest.raises(InvalidSegmentError, match="seq_end of 16610 bits is outside"):
        keys.check_range(0, 10**5000)


@given(ranges)
def test_a_range_counts_both_ends(both):
    assert keys.check_range(*both) == both[1] - both[0] + 1


# --- objects of a transcript ------------------------------------------------------------------------------------------

NAME = "0000000000000000003-0000000000000000004-"
COMPACTED = f"{NAME}compacted-2-0123456789abcdef"


@pytest.mark.parametrize(
    ("rest", "parsed"),
    [
        (f"events/{NAME}w.jsonl", SegmentName(3, 4, "w")),
        ("events/3-4-w.jsonl", SegmentName(3, 4, "w")),
        (f"events/{COMPACTED}.jsonl", SegmentName(3, 4, "compacted-2-0123456789abcdef")),
        ("events/deleting-1", MarkerKey(False, 1)),
        ("events/deleted-9999999999999999999", MarkerKey(True, 10**19 - 1)),
        (f"index/{COMPACTED}.jsonl.json", IndexKey(SegmentName(3, 4, "compacted-2-0123456789abcdef"))),
        ("payloads/" + "0a" * 32, PayloadKey("0a" * 32)),
    ],
)
def test_an_object_of_ours_is_known_by_its_name(rest, parsed):
    assert parse_object(rest) == parsed


@pytest.mark.parametrize(
    "rest",
    [
        "", "events", "events/", "events/.DS_Store", "events/_SUCCESS", "events/sub/0-0-w.jsonl", "0-0-w.jsonl",
        "Events/0-0-w.jsonl",
        "events/deleted-0", "events/deleting-0", "events/deleted-01", "events/deleted-", "events/deleted-1\n",
        "events/deleted-١",
        "events/deleted--1", "events/deleted-10000000000000000000000", "events/deleted", "events/xdeleted-1",
        "events/deleted-1.jsonl",
        f"index/{NAME}w.jsonl.json", f"index/{COMPACTED}.jsonl", f"index/{COMPACTED}.json", f"index/{COMPACTED}.jsonl.json\n",
        "index/",
        "payloads/", "payloads/" + "0A" * 32, "payloads/" + "0a" * 31, "payloads/" + "0a" * 33, "payloads/x/" + "0a" * 32,
        "other/0-0-w.jsonl",
        f"events/.{NAME}w.jsonl.tmp-7-1a2b3c4d", "events/.probe-0123", "index/0-0-w.jsonl",
    ],
)  # fmt: skip
def test_any_other_object_is_somebody_elses(rest):
    assert parse_object(rest) is None


@given(roots, ids, ids, ids, ranges, writers, st.integers(1, 10**19 - 1))
def test_a_key_built_for_a_transcript_is_split_into_what_it_was_built_from(root, tenant, agent, session, both, writer, number):
    ids = (tenant, agent, session)
    try:
        names = TranscriptKeys(root, "/".join(map(escape, ids)) + "/")
    except InvalidRefError:  # too long in all
        return
    for key, parsed in [
        (names.segment(*both, writer), SegmentName(*both, writer)),
        (names.deleting(number), MarkerKey(False, number)),
        (names.deleted(number), MarkerKey(True, number)),
    ]:
        path, found = split_key(root, key)
        assert (read_path(ESCAPED, path), found) == (ids, parsed)
        assert names.parse(key) == parsed
        assert len(key.encode()) <= 1024
        assert names.parse("x" + key) is None


@pytest.mark.parametrize(
    "key",
    [
        "r/t/a/s/events/0-0-w.jsonl",  # below another root
        "root/t/a/events/0-0-w.jsonl",
        "root/t/a/s/x/events/0-0-w.jsonl",
        "root//a/s/events/0-0-w.jsonl",
        "root/t/ /s/events/0-0-w.jsonl",
        "root/t/=20/s/events/0-0-w.jsonl",
        "root/./a/s/events/0-0-w.jsonl",
        "root/t/../s/events/0-0-w.jsonl",
        "root/t/a/s=/events/0-0-w.jsonl",
        "root/t/a/=41/events/0-0-w.jsonl",
        "root/t/a/=c3=a4/events/0-0-w.jsonl",
        "root/t/a/ä/events/0-0-w.jsonl",
        "root/t/a/=FF/events/0-0-w.jsonl",
        "root/t/a/.s/events/0-0-w.jsonl",
        "root/t/a/s./events/0-0-w.jsonl",
        "root/t/a/\ud800/events/0-0-w.jsonl",
        f"root/t/{'a' * 256}/s/events/0-0-w.jsonl",
        "root/t/a/s/events/README",
        "root/",
        "",
    ],
)
def test_a_key_that_we_would_not_write_like_this_is_somebody_elses(key):
    found = split_key("root/", key)
    assert found is None or read_path(ESCAPED, found.path) is None


@pytest.mark.parametrize(
    ("key", "path"),
    [
        ("root/t/a/ä/events/0-0-w.jsonl", "t/a/ä"),
        ("root/t/a/s/x/events/0-0-w.jsonl", "t/a/s/x"),
        ("root/a/s/events/0-0-w.jsonl", "a/s"),
        ("root/a/s\n/events/0-0-w.jsonl", "a/s\n"),
        ("root/t/a/s/x/events/deleted-1", None),
        ("root/t/a/s/x/events/notes.txt", None),
        ("root/t/a/s/x/payloads/" + "0a" * 32, None),
    ],
)
def test_a_segment_that_another_program_put_elsewhere_is_recognised(key, path):
    assert getattr(split_key("root/", key), "path", None) == path


def test_a_key_takes_1024_bytes_and_no_more():
    ids = "/".join(["x" * 255] * 3) + "/"
    room = 1024 - len(ids) - len("events/") - len(str(SegmentName(0, 0, "w" * 64)))
    names = TranscriptKeys("r" * (room - 1) + "/", ids)
    assert len(names.segment(0, MAX_SEQ, "w" * 64)) == 1024
    with pytest.raises(InvalidRefError, match=r"up to 1025 bytes, 1024 is the limit; use shorter ids or a shorter prefix"):
        TranscriptKeys("r" * room + "/", ids)


def test_the_bytes_of_a_root_beyond_ascii_are_counted():
    with pytest.raises(InvalidRefError, match="1024 is the limit"):
        TranscriptKeys("ä" * 500 + "/", "t/a/s/")


# --- placeholders -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("root", "names"),
    [
        ("", []),
        ("a/b/", []),
        ("{t}/", ["t"]),
        ("a/{tenant}/{user_id}/x/", ["tenant", "user_id"]),
        ("{t}/{t}/", ["t", "t"]),
        ("a{t}/", []),
    ],
)
def test_a_placeholder_is_a_whole_segment(root, names):
    assert keys.placeholders(root) == names


@given(ids, ids)
def test_filled_values_stay_inside_their_segments(one, other):
    filled = keys.fill("a/{x}/b/{y}/", {"x": one, "y": other})
    assert filled.split("/") == ["a", escape(one), "b", escape(other), ""]
    assert keys.placeholders(filled) == []


def test_one_name_in_two_places_takes_one_value():
    assert keys.fill("{x}/and/{x}/", {"x": "{x}"}) == "=7Bx=7D/and/=7Bx=7D/"


@pytest.mark.parametrize("value", ["", " ", 5, "\ud800", "x" * 256])
def test_a_value_that_can_be_no_segment_is_refused_by_its_name(value):
    with pytest.raises(InvalidRefError, match=r"user_id|surrogate"):
        keys.fill("{user_id}/", {"user_id": value})


# --- writer ids in a generation ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("writer_id", ["mine", "m" * 61, "m" * 62, "m" * 64])
def test_a_writer_id_takes_part_in_each_generation_under_another_name(writer_id):
    names = [keys.writer_id_in(generation, writer_id) for generation in (0, 1, 2, 11, keys.MAX_SEQ)]
    assert names[0] == writer_id
    assert len(set(names)) == len(names)
    assert [keys.check_writer_id(name) for name in names] == names


def test_long_writer_ids_stay_apart_in_a_generation():
    assert keys.writer_id_in(1, "m" * 63 + "a") != keys.writer_id_in(1, "m" * 63 + "b")
    assert keys.writer_id_in(3, "mine") == "mine-g3"
