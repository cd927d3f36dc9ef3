"""Imports of files that have grown: what earlier imports have stored of the first lines is not stored again."""

import json
import random

import pytest

from transcript_backends import TranscriptRef

REF = "demo/agent/s1"


def lines(first, last):
    return b"".join(b'{"n":%d,"text":"%s"}\n' % (n, b"x" * (n % 50)) for n in range(first, last))


@pytest.fixture
def imports(invoke, write):
    """Import some content; returns the members of the JSON output."""

    def imports(content, *options, code=0):
        result = invoke("import", "--json", "--segment-lines", 7, *options, write(content), REF, code=code)
        return json.loads(result.stdout or result.stderr)

    return imports


def stored(invoke):
    return invoke("cat", REF).stdout_bytes


def test_only_what_is_new_of_a_file_that_has_grown_is_stored(imports, invoke):
    for last, before in ((100, 0), (105, 100), (105, 105), (180, 105), (181, 180)):
        done = imports(lines(0, last))
        assert (done["imported"], done["already"]) == (last - before, before)
        assert (done["seq_start"], done["seq_end"]) == (0, last - 1)
        assert stored(invoke) == lines(0, last)


def test_a_grown_file_is_known_in_what_was_compacted_and_after_a_delete(imports, invoke):
    for _ in range(2):
        imports(lines(0, 100))
        invoke("compact", "--full", REF)
        assert imports(lines(0, 105))["imported"] == 5
        invoke("compact", "--full", REF)
        assert imports(lines(0, 110))["imported"] == 5
        assert stored(invoke) == lines(0, 110)
        invoke("rm", REF)


def test_a_file_that_grows_after_its_import_was_cut_short(imports, invoke, failing_after):
    with failing_after(6):
        imports(lines(0, 100), code=6)
    with failing_after(2):
        imports(lines(0, 130), code=6)
    assert imports(lines(0, 130))["already"] == 56
    assert stored(invoke) == lines(0, 130)
    assert imports(lines(0, 100))["imported"] == 0
    with failing_after(1):
        imports(lines(0, 140), code=6)
    assert imports(lines(0, 137))["imported"] == 0
    assert imports(lines(0, 140))["imported"] == 3
    assert stored(invoke) == lines(0, 140)


def test_new_lines_go_behind_what_others_have_stored_meanwhile(imports, invoke):
    imports(lines(0, 10))
    invoke("append", REF, stdin=b'{"other":1}\n')
    done = imports(lines(0, 12))
    assert (done["imported"], done["seq_start"], done["seq_end"]) == (2, 0, 12)
    assert stored(invoke) == lines(0, 10) + b'{"other":1}\n' + lines(10, 12)


def test_parts_that_were_imported_one_by_one_are_known_as_one_file(imports, invoke):
    imports(lines(0, 10))
    imports(lines(10, 30))
    assert imports(lines(0, 35))["imported"] == 5
    assert stored(invoke) == lines(0, 35)


def test_another_file_and_one_whose_beginning_has_changed_are_stored_whole(imports, invoke):
    imports(lines(0, 10))
    assert imports(lines(3, 20))["imported"] == 17
    assert imports(lines(0, 9) + b'{"n":"changed"}\n' + lines(10, 12))["imported"] == 12
    assert stored(invoke) == lines(0, 10) + lines(3, 20) + lines(0, 9) + b'{"n":"changed"}\n' + lines(10, 12)


def test_all_lines_stores_all_of_them_and_still_goes_on_where_it_stopped(imports, invoke, failing_after):
    imports(lines(0, 10))
    with failing_after(1):
        imports(lines(0, 12), "--all-lines", code=6)
    assert imports(lines(0, 12), "--all-lines")["already"] == 7
    assert imports(lines(0, 12), "--all-lines")["imported"] == 0
    assert stored(invoke) == lines(0, 10) + lines(0, 12)
    assert imports(lines(0, 13))["imported"] == 1


def test_payloads_are_a_part_of_what_is_compared(imports, invoke):
    long = b'{"text":"%s"}\n'
    imports(long % (b"a" * 100_000) + lines(0, 2))
    assert imports(long % (b"a" * 100_000) + lines(0, 5))["imported"] == 3
    assert imports(long % (b"b" * 100_000) + lines(0, 5))["imported"] == 6


@pytest.mark.parametrize("seed", range(8))
def test_whatever_is_cut_short_grows_and_repeats_each_line_is_there_once(imports, invoke, failing_after, store, seed):
    chance = random.Random(seed)
    whole = b"".join(b'{"n":%d}\n' % chance.choice([0, 0, 1, n]) for n in range(60))
    cut = whole.splitlines(keepends=True)
    length = 0
    for _ in range(8):
        length = min(60, max(1, length + chance.randrange(-3, 15)))
        if chance.random() < 0.5:
            with failing_after(chance.randrange(3)):
                imports(b"".join(cut[:length]), code=None)
        else:
            imports(b"".join(cut[:length]))
            assert stored(invoke).startswith(b"".join(cut[:length]))
        if chance.random() < 0.2:
            invoke("compact", "--full", REF, code=None)
    imports(whole)
    assert stored(invoke) == whole
    assert [record.seq for record in store.records(TranscriptRef.parse(REF))] == list(range(60))
