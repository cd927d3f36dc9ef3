from __future__ import annotations

import subprocess
import sys

import pytest

import transcript_backends

HEAVY = ("boto3", "botocore", "google", "azure", "fsspec", "rich", "click", "msgspec", "asyncio", "typing")
LOADED = f"import sys; print(sorted({set(HEAVY)!r} & sys.modules.keys()))"


def run(code, *arguments):
    done = subprocess.run(
        [sys.executable, "-S", "-c", code, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": ":".join(sys.path)},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_the_package_loads_nothing_heavy():
    assert run(f"import transcript_backends; {LOADED}") == "[]"


def test_using_a_directory_loads_no_cloud_sdk(tmp_path):
    code = """if True:
        import sys
        from transcript_backends import TranscriptRef, open_store
        ref = TranscriptRef("t", "a", "s")
        with open_store(sys.argv[1]) as store:
            store.append_segment(ref, 0, 0, "w", b"{}")
            assert [record.line for record in store.records(ref)] == [b"{}"]
            assert store.delete(ref).deleted == 1
        print(sorted({"boto3", "botocore", "google", "azure", "fsspec", "rich", "click", "asyncio"} & sys.modules.keys()))
    """
    assert run(code, f"file://{tmp_path}/store") == "[]"


@pytest.mark.parametrize("name", transcript_backends.__all__)
def test_a_public_name_lives_where_the_table_says(name):
    module = f"transcript_backends.{transcript_backends._HOMES.get(name, 'errors')}"
    value = getattr(transcript_backends, name)
    assert value.__module__ == module
    assert value is getattr(sys.modules[module], name)
    assert value.__doc__


def test_the_table_names_public_names_only():
    assert set(transcript_backends._HOMES) <= set(transcript_backends.__all__)
    assert sorted(transcript_backends.__all__) == transcript_backends.__all__
    assert set(transcript_backends.__all__) <= set(dir(transcript_backends))


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="'transcript_backends' has no attribute 'open_shop'"):
        transcript_backends.open_shop  # noqa: B018
