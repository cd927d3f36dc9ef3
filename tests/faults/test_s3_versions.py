"""Buckets that keep versions, and versions that can't be deleted: what a delete leaves, and what purging them does.

On real servers with one bucket each that has an object lock, and so versions; what they don't do, on a scripted one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from faults.s3_server import S3Server, reply
from faults.scripted_server import BROKEN_HTML, XHTML, Fault, Reply, Request, Serve, html
from faults.setups import REF, OpenS3
from localstack_servers import Server

from transcript_backends import (
    AccessDeniedError,
    CompactionPolicy,
    ObjectTranscriptStore,
    PartialDeleteError,
    TranscriptRef,
    UnexpectedResponseError,
    open_store,
)

FULL = CompactionPolicy(full=True)
HELD = "a retention or legal hold keeps it"


def line(number: int) -> bytes:
    return b'{"n":%d}\n' % number


class Versioned(NamedTuple):
    """A bucket with versions; `client` is plain boto3."""

    url: str
    bucket: str
    client: Any

    def open(self, **options: Any) -> ObjectTranscriptStore:
        return open_store(self.url, access_key_id="test", secret_access_key="test", region="us-east-1", **options)

    def of(self, ref: TranscriptRef, *keys: str) -> list[tuple[str, str]]:
        """The same, of these keys only."""
        return [each for each in self.all(ref) if each[0] in keys]

    def all(self, ref: TranscriptRef) -> list[tuple[str, str]]:
        """Key and id of each version and delete marker of a transcript."""
        found = []
        for page in self.client.get_paginator("list_object_versions").paginate(Bucket=self.bucket, Prefix=f"p/{ref.prefix}"):
            found += [(each["Key"], each["VersionId"]) for each in (*page.get("Versions", ()), *page.get("DeleteMarkers", ()))]
        return found

    def hold(self, versions: list[tuple[str, str]], status: str) -> None:
        for key, version in versions:
            self.client.put_object_legal_hold(Bucket=self.bucket, Key=key, VersionId=version, LegalHold={"Status": status})


@pytest.fixture(scope="module", params=["moto_server", "localstack_server", "ministack_server", "seaweedfs_server"])
def versioned(request: pytest.FixtureRequest) -> Iterator[Versioned]:
    server: Server = request.getfixturevalue(request.param)
    client = server.client()
    client.create_bucket(Bucket="versioned", ObjectLockEnabledForBucket=True)
    yield Versioned(f"s3://versioned/p?endpoint_url={server.endpoint}", "versioned", client)
    client.close()


@pytest.fixture
def keeping(versioned: Versioned) -> Iterator[ObjectTranscriptStore]:
    with versioned.open() as store:
        yield store


@pytest.fixture
def purging(versioned: Versioned) -> Iterator[ObjectTranscriptStore]:
    with versioned.open(purge_versions=True) as store:
        yield store


@pytest.fixture
def ref(request: pytest.FixtureRequest) -> TranscriptRef:
    return TranscriptRef("acme", "coder", request.node.originalname)


def fill(store: ObjectTranscriptStore, ref: TranscriptRef, count: int = 4) -> list[str]:
    return [store.append_segment(ref, number, number, "w", line(number)) for number in range(count)]


def test_without_purging_a_delete_hides_what_was_stored_and_keeps_its_bytes(
    versioned: Versioned, keeping: ObjectTranscriptStore, ref: TranscriptRef
) -> None:
    keys = fill(keeping, ref)
    assert keeping.delete(ref).deleted == 4
    assert list(keeping.records(ref)) == []
    assert [len(versioned.of(ref, key)) for key in keys] == [2] * 4, "the object and its delete marker"


def test_purging_leaves_nothing_of_a_transcript_behind(
    versioned: Versioned, purging: ObjectTranscriptStore, ref: TranscriptRef
) -> None:
    fill(purging, ref)
    assert purging.delete(ref, purge=True).deleted == 4
    assert versioned.all(ref) == []


def test_purging_removes_what_compaction_has_merged(
    versioned: Versioned, purging: ObjectTranscriptStore, ref: TranscriptRef
) -> None:
    fill(purging, ref)
    result = purging.compact(ref, FULL)
    assert (result.segments_after, result.left) == (1, [])
    assert len(versioned.all(ref)) == 2  # the compacted segment and its index
    assert [record.seq for record in purging.records(ref)] == [0, 1, 2, 3]
    purging.delete(ref, purge=True)
    assert versioned.all(ref) == []


@pytest.mark.parametrize("first", ["deleted", "compacted", "compacted and deleted", "purged without versions"])
def test_a_purge_removes_what_was_deleted_or_merged_before_it(
    versioned: Versioned, keeping: ObjectTranscriptStore, purging: ObjectTranscriptStore, ref: TranscriptRef, first: str
) -> None:
    ref = ref.__class__(ref.tenant, ref.agent_id, f"{ref.session_id} {first}")
    beside = TranscriptRef(ref.tenant, ref.agent_id, f"{ref.session_id} beside")
    fill(keeping, ref)
    fill(keeping, beside)
    before = versioned.all(beside)
    if "compacted" in first:
        assert keeping.compact(ref, FULL).segments_after == 1
    if first != "compacted":
        keeping.delete(ref, purge="purged" in first)
    assert len(versioned.all(ref)) >= 4
    purging.delete(ref, purge=True)
    assert versioned.all(ref) == []
    assert versioned.all(beside) == before
    keeping.delete(beside)
    purging.delete(beside, purge=True)


def test_a_purge_leaves_what_was_written_meanwhile(
    versioned: Versioned, purging: ObjectTranscriptStore, keeping: ObjectTranscriptStore, ref: TranscriptRef
) -> None:
    keys = fill(keeping, ref)
    keeping.delete(ref)
    keeping.append_segment(ref, 0, 0, "w", line(7))
    assert purging._container.purge(f"p/{ref.prefix}") == {}
    assert {key for key, _ in versioned.all(ref)} == {
        keys[0],
        *(each.key for each in purging._container.list(f"p/{ref.prefix}")),
    }
    assert [record.json()["n"] for record in purging.records(ref)] == [7]
    purging.delete(ref, purge=True)
    assert versioned.all(ref) == []


def test_a_segment_can_be_created_over_a_delete_marker_and_purged_with_all_before_it(
    versioned: Versioned, keeping: ObjectTranscriptStore, purging: ObjectTranscriptStore, ref: TranscriptRef
) -> None:
    for number in range(3):
        key = keeping.append_segment(ref, 0, 0, "w", line(number))
        with keeping.read_segment(key) as stream:
            assert stream.read() == line(number)
        keeping.delete(ref, purge=True)
    key = keeping.append_segment(ref, 0, 0, "w", line(9))
    assert len(versioned.of(ref, key)) == 7
    purging.delete(ref, purge=True)
    assert versioned.of(ref, key) == []


def test_purging_one_key_leaves_the_keys_that_begin_like_it_alone(
    versioned: Versioned, purging: ObjectTranscriptStore, ref: TranscriptRef
) -> None:
    driver = purging._container.driver
    root = f"p/{ref.prefix}"
    for name in ("a", "ab", "b"):
        driver.put(root + name, b"1", mode="create", metadata={})
    assert driver.delete_many([f"{root}a"]) == {}
    assert {name for name, _ in versioned.all(ref)} == {f"{root}ab", f"{root}b"}
    assert driver.delete_many([f"{root}a", f"{root}never"]) == {}
    assert driver.delete_many([f"{root}ab", f"{root}b"]) == {}
    assert versioned.all(ref) == []


def test_a_hold_is_reported_by_key_and_deleting_again_after_it_finishes(
    versioned: Versioned, purging: ObjectTranscriptStore, ref: TranscriptRef
) -> None:
    keys = fill(purging, ref)
    kept = [keys[0], keys[-1]]
    held = versioned.of(ref, *kept)
    versioned.hold(held, "ON")
    with pytest.raises(PartialDeleteError, match=HELD) as caught:
        purging.delete(ref)
    assert sorted(caught.value.failed) == kept
    with pytest.raises(AccessDeniedError, match=HELD):
        purging.delete(ref)
    assert [segment.key for segment in purging.list_segments(ref)] == kept
    versioned.hold(held, "OFF")
    assert purging.delete(ref, purge=True).deleted == 2
    assert versioned.of(ref, *keys) == []


def test_a_held_older_version_never_shows_again(
    versioned: Versioned, keeping: ObjectTranscriptStore, purging: ObjectTranscriptStore, ref: TranscriptRef
) -> None:
    key = keeping.append_segment(ref, 0, 0, "w", line(1))
    held = versioned.of(ref, key)
    versioned.hold(held, "ON")
    keeping.delete(ref, purge=True)
    keeping.append_segment(ref, 0, 0, "w", line(2))
    with pytest.raises(PartialDeleteError, match=HELD):
        purging.delete(ref)
    assert [record.line for record in purging.records(ref)] == [line(2)[:-1]]
    versioned.hold(held, "OFF")
    purging.delete(ref, purge=True)
    assert versioned.of(ref, key) == []


def test_held_segments_are_merged_once_and_reported_each_time_until_they_can_go(
    versioned: Versioned, purging: ObjectTranscriptStore, ref: TranscriptRef
) -> None:
    keys = fill(purging, ref)
    before = list(purging.records(ref))
    held = versioned.of(ref, *keys)
    versioned.hold(held, "ON")
    results = [purging.compact(ref, FULL) for _ in range(3)]
    for result in results:
        assert sorted(key for key, _ in result.left) == keys
        assert all(HELD in reason for _, reason in result.left)
        assert list(purging.records(ref)) == before
    assert [bool(result.bytes_written) for result in results] == [True, False, False]
    assert len(versioned.all(ref)) == 6, "they are not merged again and again"
    versioned.hold(held, "OFF")
    result = purging.compact(ref, FULL)
    assert (result.bytes_written, result.left, result.segments_after) == (0, [], 1)
    assert len(versioned.all(ref)) == 2
    assert list(purging.records(ref)) == before
    purging.delete(ref, purge=True)


def test_without_purging_held_segments_are_hidden_and_kept(
    versioned: Versioned, keeping: ObjectTranscriptStore, ref: TranscriptRef
) -> None:
    held = versioned.of(ref, *fill(keeping, ref))
    versioned.hold(held, "ON")
    assert keeping.compact(ref, FULL).left == []
    assert [record.seq for record in keeping.records(ref)] == [0, 1, 2, 3]
    assert keeping.delete(ref).deleted == 2
    assert list(keeping.records(ref)) == []
    assert set(versioned.all(ref)) >= set(held)
    versioned.hold(held, "OFF")


# --- what servers don't do --------------------------------------------------------------------------------------------


@pytest.fixture
def scripted(open_s3: OpenS3, server: S3Server) -> ObjectTranscriptStore:
    store = open_s3(purge_versions=True)
    fill(store, REF, 3)
    server.log.clear()
    return store


def test_a_batch_of_keys_costs_one_listing_and_one_deletion(scripted: ObjectTranscriptStore, server: S3Server) -> None:
    keys = sorted(server.objects)
    assert scripted._container.driver.delete_many(keys) == {}
    assert server.kinds() == ["VERSIONS", "DELETE_MANY"]
    assert server.log[0].query["prefix"] == keys[0][: keys[0].index("0-")]
    assert server.log[1].body.count(b"<VersionId>null</VersionId>") == 3
    assert server.objects == {}


def test_more_versions_than_a_batch_holds_are_deleted_in_several(scripted: ObjectTranscriptStore, server: S3Server) -> None:
    keys = sorted(server.objects)

    def many(request: Request, serve: Serve) -> Reply:
        answer = serve()
        one = answer.body[answer.body.index(b"<Version>") : answer.body.index(b"</Version>") + 10]
        older = b"".join(one.replace(b"true", b"false").replace(b"null", b"v%d" % number) for number in range(1500))
        answer.body = answer.body.replace(b"<Version>", older + b"<Version>", 1)
        return answer

    server.next("VERSIONS", many)
    assert scripted._container.driver.delete_many(keys) == {}
    assert [each.body.count(b"<Key>") for each in server.requests("DELETE_MANY")] == [1000, 500, 3]


def test_a_server_without_batches_is_told_the_version_of_each_key(scripted: ObjectTranscriptStore, server: S3Server) -> None:
    server.always("DELETE_MANY", reply(400, "MissingContentMD5"))
    server.next("DELETE", reply(404, "NoSuchVersion"))  # somebody else has deleted it
    keys = sorted(server.objects)
    assert scripted._container.driver.delete_many(keys) == {}
    assert [(each.key, each.query["versionId"]) for each in server.requests("DELETE")] == [(key, "null") for key in keys]


def test_a_version_that_somebody_else_has_deleted_is_gone(scripted: ObjectTranscriptStore, server: S3Server) -> None:
    keys = sorted(server.objects)
    server.next("DELETE_MANY", server.dialect.refuse(keys[0], "NoSuchVersion"))
    assert scripted._container.driver.delete_many(keys) == {}


def version_of(key: str) -> str:
    return f"<Version><Key>{key}</Key><VersionId>null</VersionId><IsLatest>true</IsLatest></Version>"


def page_of_versions(key: str, *, is_truncated: bool, following: str) -> Fault:
    more = f"<NextKeyMarker>{following}</NextKeyMarker><NextVersionIdMarker>null</NextVersionIdMarker>" if following else ""
    body = (
        "<ListVersionsResult><Name>bucket</Name><EncodingType>url</EncodingType>"
        f"<IsTruncated>{str(is_truncated).lower()}</IsTruncated>{more}{version_of(key)}</ListVersionsResult>"
    )
    return lambda request, serve: Reply(200, body.encode(), {"Content-Type": "application/xml"})


@pytest.mark.parametrize("is_truncated", [True, False])
def test_a_page_of_versions_that_names_a_next_one_is_not_the_last(
    scripted: ObjectTranscriptStore, server: S3Server, is_truncated: bool
) -> None:
    keys = sorted(server.objects)
    pages = [page_of_versions(key, is_truncated=is_truncated, following=key) for key in keys[:2]]
    server.next("VERSIONS", *pages, page_of_versions(keys[2], is_truncated=False, following=""))
    assert scripted._container.driver.delete_many(keys) == {}
    assert server.objects == {}
    asked = [(each.query.get("key-marker"), each.query.get("version-id-marker")) for each in server.requests("VERSIONS")]
    assert asked == [(None, None), (keys[0], "null"), (keys[1], "null")]


def test_a_last_page_of_versions_that_names_itself_is_the_last_and_one_that_says_more_is_no_answer(
    scripted: ObjectTranscriptStore, server: S3Server
) -> None:
    keys = sorted(server.objects)
    server.always("VERSIONS", page_of_versions(keys[0], is_truncated=True, following=keys[0]))
    with pytest.raises(UnexpectedResponseError, match="the same page of versions again and again"):
        scripted._container.delete(keys)
    assert len(server.objects) == 3
    server.always("VERSIONS", page_of_versions(keys[0], is_truncated=False, following=keys[0]))
    assert scripted._container.delete(keys[:1]) == {}
    assert len(server.objects) == 2


@pytest.mark.parametrize("body", [XHTML, BROKEN_HTML, b""], ids=["xhtml", "broken", "nothing"])
def test_a_page_in_place_of_versions_deletes_nothing_and_claims_nothing(
    scripted: ObjectTranscriptStore, server: S3Server, body: bytes
) -> None:
    server.always("VERSIONS", html(body=body))
    with pytest.raises(UnexpectedResponseError, match="endpoint"):
        scripted.delete(REF)
    assert len(list(scripted.records(REF))) == 3


def test_versions_that_may_not_be_listed_are_an_access_error_that_names_the_permission(
    scripted: ObjectTranscriptStore, server: S3Server
) -> None:
    server.always("VERSIONS", reply(403, "AccessDenied"))
    with pytest.raises(AccessDeniedError, match="purge_versions needs s3:ListBucketVersions"):
        scripted.delete(REF)


@pytest.mark.parametrize("batches", [True, False])
def test_versions_that_may_not_be_deleted_are_named_with_the_permission(
    scripted: ObjectTranscriptStore, server: S3Server, batches: bool
) -> None:
    keys = sorted(server.objects)
    server.always("DELETE_MANY", server.dialect.refuse(keys[1], "AccessDenied") if batches else reply(501, "NotImplemented"))
    for _ in range(2):
        server.next("DELETE", reply(403, "AccessDenied"))
    with pytest.raises(AccessDeniedError, match="or s3:DeleteObjectVersion is missing"):
        scripted.delete(REF)
    (reason,) = scripted._container.delete(keys).values()
    assert "or s3:DeleteObjectVersion is missing" in reason


@pytest.mark.parametrize("code", ["SlowDown", "InternalError"])
def test_a_version_that_failed_for_now_is_tried_again(scripted: ObjectTranscriptStore, server: S3Server, code: str) -> None:
    keys = sorted(server.objects)
    server.next("DELETE_MANY", server.dialect.refuse(keys[1], code))
    assert scripted.delete(REF).deleted == 3
    server.next("VERSIONS", reply(503, code))
    fill(scripted, REF, 1)
    assert scripted.delete(REF).deleted == 1
