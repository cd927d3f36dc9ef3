"""State documents on each cloud's protocol under faults: a version is replaced once, or it is said what is not known."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest
from faults import azure_server, gcs_server, s3_server
from faults.azure_server import AzureServer
from faults.engines import check_engine, sdk_and_obstore  # noqa: F401 - a fixture
from faults.gcs_server import GCSServer
from faults.s3_server import S3Server
from faults.scripted_server import Fault, Reply, Request, Serve, drop_after_storing, drop_before_storing, html, truncated
from faults.setups import FakeClock

from transcript_backends import (
    ABSENT,
    AccessDeniedError,
    ConditionalWritesUnsupportedError,
    ContainerNotFoundError,
    StateStore,
    StoreUnavailableError,
    UnexpectedResponseError,
    VersionConflictError,
)

PLACE = ("u", "s", "k")
KEY = "p/u/s/k.json"
LIST = "p/u/s/k.jsonl"


class Cloud(NamedTuple):
    """A service: its server, a URL of a bucket there, what it says that means "try again", or "not done", and a denial."""

    server: Callable[[], S3Server | AzureServer | GCSServer]
    bucket: str
    url: str
    options: dict[str, object]
    again: list[Fault]
    refusals: list[Fault]
    denial: Fault
    created: tuple[str, str]
    replaced: str


CLOUDS = {
    "s3": Cloud(
        S3Server,
        "bucket",
        "s3://{bucket}/p?endpoint_url={url}",
        {"access_key_id": "AKIATEST", "secret_access_key": "secret", "region": "eu-test-1"},
        [s3_server.reply(409, "ConditionalRequestConflict"), s3_server.reply(503, "SlowDown"), s3_server.reply(500, "X")],
        [
            s3_server.reply(409, "ConditionalRequestConflict"),
            s3_server.reply(409, "OperationAborted"),
            s3_server.reply(429, "TooManyRequests"),
        ],
        s3_server.reply(403, "AccessDenied"),
        ("if-none-match", "*"),
        "if-match",
    ),
    "azure": Cloud(
        AzureServer,
        "container",
        "az://{bucket}/p?endpoint_url={url}",
        {"account_key": azure_server.KEY_OF_ACCOUNT},
        [azure_server.reply(503, "ServerBusy"), azure_server.reply(500, "OperationTimedOut"), azure_server.reply(502, "")],
        [azure_server.reply(429, "")],
        azure_server.reply(403, "AuthorizationPermissionMismatch"),
        ("if-none-match", "*"),
        "if-match",
    ),
    "gcs": Cloud(
        GCSServer,
        "bucket",
        "gs://{bucket}/p?endpoint_url={url}",
        {"anon": True},
        [gcs_server.reply(429, "rateLimitExceeded"), gcs_server.reply(503, "backendError"), gcs_server.reply(408, "x")],
        [gcs_server.reply(429, "rateLimitExceeded"), gcs_server.reply(403, "rateLimitExceeded"), gcs_server.reply(429)],
        gcs_server.reply(403, "forbidden"),
        ("ifGenerationMatch", "0"),
        "ifGenerationMatch",
    ),
}


class Setup(NamedTuple):
    cloud: Cloud
    server: S3Server | AzureServer | GCSServer
    states: StateStore
    others: StateStore
    options: dict[str, object]

    def open(self, bucket: str) -> StateStore:
        return StateStore(self.cloud.url.format(bucket=bucket, url=self.server.url), **self.cloud.options, **self.options)

    def conditions(self) -> list[dict[str, str]]:
        """The puts' headers and queries; GCS's two protocols name its condition alike."""
        sent = [{**each.headers, **each.query} for each in self.server.requests("PUT")]
        return [{name.replace("x-goog-if-generation-match", "ifGenerationMatch"): each[name] for name in each} for each in sent]


@pytest.fixture(params=CLOUDS)
def setup(request: pytest.FixtureRequest, clock: FakeClock, engine: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Setup]:
    """A service whose server has proved to honour conditions; nothing is stored, and the log is empty."""
    for name in ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY"):
        monkeypatch.delenv(name, raising=False)
    cloud = CLOUDS[request.param]
    server = cloud.server()
    made = Setup(cloud, server, None, None, {"clock": clock, "engine": engine})  # type: ignore[arg-type]
    with made.open(cloud.bucket) as states, made.open(cloud.bucket) as others:
        check_engine(states._store, engine)
        for number in (1, 2):
            states.update("prover", "s", "k", int, lambda _, number=number: number)  # type: ignore[misc]
        server.dialect.objects.clear()
        server.log.clear()
        yield made._replace(states=states, others=others)
    server.close()
    assert server.errors == []


def add_one(states: StateStore) -> int:
    return states.update(*PLACE, int, lambda number: (number or 0) + 1)


# --- once, or it is said ------------------------------------------------------------------------------------------------


def test_a_version_is_sent_as_the_condition_it_is(setup: Setup) -> None:
    first = setup.states.save_if_version(*PLACE, 1, ABSENT)
    second = setup.states.save_if_version(*PLACE, 2, first)
    setup.states.save(*PLACE, 3)
    name, value = setup.cloud.created
    create, replace, overwrite = setup.conditions()
    assert create[name] == value
    assert replace[setup.cloud.replaced] == first != second
    assert not {name, setup.cloud.replaced} & overwrite.keys()
    assert setup.server.kinds() == ["PUT", "PUT", "PUT"]


@pytest.mark.parametrize("fault", [drop_before_storing, drop_after_storing, html], ids=["lost", "answer lost", "a page"])
def test_a_counter_counts_once_whatever_is_lost(setup: Setup, fault: Callable[[], Fault]) -> None:
    for number in range(6):
        setup.server.next("PUT", *[fault()] * (number % 3))
        setup.server.next("HEAD", *[drop_before_storing()] * (number % 2))
        assert add_one(setup.states) == number + 1
    assert setup.others.get(*PLACE, int) == 6


@pytest.mark.parametrize("number", range(3))
def test_what_asks_to_be_tried_again_is(setup: Setup, number: int) -> None:
    add_one(setup.states)
    setup.server.next("PUT", *[setup.cloud.again[number]] * 3)
    assert add_one(setup.states) == 2
    assert setup.others.get(*PLACE, int) == 2


@pytest.mark.parametrize("number", range(3))
def test_of_two_at_once_the_one_that_is_put_off_comes_second(setup: Setup, number: int) -> None:
    """What S3 says of two conditional writes at the same moment, GCS of more than one a second, and the like."""
    add_one(setup.others)

    def put_off(request: Request, serve: Serve) -> Reply | None:
        add_one(setup.others)
        return setup.cloud.again[number](request, serve)

    setup.server.next("PUT", put_off)
    assert add_one(setup.states) == 3
    assert setup.others.get(*PLACE, int) == 3


def test_a_refusal_and_another_version_is_a_conflict_and_no_doubt(setup: Setup) -> None:
    for refusal in setup.cloud.refusals:
        version = setup.others.save(*PLACE, 1)

        def overtaken(request: Request, serve: Serve, refusal: Fault = refusal) -> Reply | None:
            for number in (5, 7):
                setup.others.save(*PLACE, number)
            return refusal(request, serve)

        setup.server.next("PUT", overtaken)
        with pytest.raises(VersionConflictError, match="nothing was written"):
            setup.states.save_if_version(*PLACE, 2, version)
        setup.server.next("PUT", overtaken)
        assert add_one(setup.states) == 8


def test_refusals_alone_leave_no_doubt(setup: Setup) -> None:
    version = setup.others.save(*PLACE, 1)
    for refusal in setup.cloud.refusals:
        setup.server.next("PUT", *[refusal] * 10)
        with pytest.raises(StoreUnavailableError) as caught:
            setup.states.save_if_version(*PLACE, 2, version)
        assert "may have been stored" not in str(caught.value)
    assert setup.server.objects[KEY].body == b"1"


def test_a_stale_version_is_a_conflict_and_nothing_is_written(setup: Setup) -> None:
    stale = setup.others.save(*PLACE, 1)
    setup.others.save(*PLACE, 2)
    setup.server.log.clear()
    for expected in (stale, ABSENT):
        with pytest.raises(VersionConflictError, match="another version is there now; nothing was written"):
            setup.states.save_if_version(*PLACE, 3, expected)
    assert setup.server.kinds() == ["PUT", "HEAD"] * 2
    assert setup.server.objects[KEY].body == b"2"


def test_a_version_that_was_deleted_is_a_conflict_whatever_the_service_calls_it(setup: Setup) -> None:
    version = setup.others.save(*PLACE, 1)
    setup.others.delete(*PLACE)
    with pytest.raises(VersionConflictError, match="nothing is there now"):
        setup.states.save_if_version(*PLACE, 2, version)
    assert setup.server.objects == {}


@pytest.mark.parametrize("fault", [drop_before_storing, drop_after_storing], ids=["lost", "answer lost"])
def test_a_lost_answer_and_another_version_is_said_as_it_is(setup: Setup, fault: Callable[[], Fault]) -> None:
    version = setup.others.save(*PLACE, 1)

    def overtaken(request: object, serve: object) -> None:
        fault()(request, serve)  # type: ignore[arg-type]
        setup.server.dialect.store(KEY, b"7")

    setup.server.next("PUT", overtaken)
    with pytest.raises(StoreUnavailableError, match="may have been stored and replaced since, or not"):
        setup.states.save_if_version(*PLACE, 2, version)
    assert setup.server.objects[KEY].body == b"7"


def test_retries_that_are_used_up_say_that_the_outcome_is_unknown(setup: Setup) -> None:
    version = setup.others.save(*PLACE, 1)
    setup.server.always("PUT", drop_before_storing())
    for call in (lambda: setup.states.save_if_version(*PLACE, 2, version), lambda: setup.states.save(*PLACE, 2)):
        with pytest.raises(StoreUnavailableError, match="it may have been stored or not"):
            call()


def test_a_server_that_ignores_versions_is_found_out(setup: Setup) -> None:
    version = setup.others.save(*PLACE, 1)
    setup.server.dialect.ignore_conditions = True
    refused = pytest.raises(ConditionalWritesUnsupportedError, match="conditional_writes=off")
    with setup.open(setup.cloud.bucket) as states, refused:
        states.save_if_version(*PLACE, 2, version)
    assert {key: found.body for key, found in setup.server.objects.items()} == {KEY: b"1"}


# --- lists --------------------------------------------------------------------------------------------------------------


def test_a_list_whose_answers_get_lost_is_saved_once_and_whole(setup: Setup) -> None:
    for number in range(1, 6):
        setup.server.next("PUT", *[drop_after_storing() if number % 2 else drop_before_storing()] * 2)
        version = setup.states.save_list(*PLACE, range(number))
        assert setup.others.get_list_versioned(*PLACE, int) == (list(range(number)), version)


def test_a_list_that_is_cut_short_on_its_way_is_read_again_and_never_of_two_versions(setup: Setup) -> None:
    setup.others.save_list(*PLACE, range(1000))

    def replaced(request: object, serve: Callable[[], object]) -> object:
        answer = truncated(100)(request, serve)  # type: ignore[arg-type]
        setup.server.dialect.store(LIST, b"5\n" * 1000)
        return answer

    absent = setup.server.dialect.answer
    setup.server.next("GET", lambda request, serve: absent(request), replaced)  # type: ignore[arg-type]
    assert setup.states.get_list(*PLACE, int) == [5] * 1000


# --- errors are no answers ------------------------------------------------------------------------------------------------


def test_a_missing_bucket_is_not_an_absent_document(setup: Setup) -> None:
    with setup.open("nowhere") as states:
        for call in (
            lambda: states.get(*PLACE, int),
            lambda: states.get_list(*PLACE, int),
            lambda: states.save(*PLACE, 1),
            lambda: states.save_list(*PLACE, [1]),
            lambda: states.save_if_version(*PLACE, 1, ABSENT),
            lambda: states.save_if_version(*PLACE, 1, '"1"'),
            lambda: states.exists("u", "s"),
            lambda: states.list_session_ids("u"),
        ):
            with pytest.raises(ContainerNotFoundError):
                call()


def test_a_denial_is_neither_an_absence_nor_a_conflict(setup: Setup) -> None:
    version = setup.others.save(*PLACE, 1)
    for kind, call in (
        ("GET", lambda: setup.states.get(*PLACE, int)),
        ("GET", lambda: setup.states.get_list(*PLACE, int)),
        ("HEAD", lambda: setup.states.save_list(*PLACE, [1])),
        ("PUT", lambda: setup.states.save_if_version(*PLACE, 2, version)),
        ("LIST", lambda: setup.states.exists("u", "s")),
    ):
        setup.server.always(kind, setup.cloud.denial)
        with pytest.raises(AccessDeniedError):
            call()
        setup.server.always(kind, None)
    assert setup.server.objects[KEY].body == b"1"


def test_a_page_of_a_proxy_is_not_a_value(setup: Setup) -> None:
    setup.others.save(*PLACE, 1)
    setup.server.next("GET", html())
    with pytest.raises(UnexpectedResponseError):
        setup.states.get(*PLACE, int)
