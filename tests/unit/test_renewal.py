"""What a container makes of a denial that other credentials may mend, whatever the driver tells of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from transcript_backends import AccessDeniedError
from transcript_backends.container import Container
from transcript_backends.drivers.driver import Meaning, ObjectStore
from transcript_backends.drivers.memory import MemoryObjectStore
from transcript_backends.drivers.wrappers import FaultyObjectStore, InjectedError, RecordingObjectStore

ANYTHING = (Meaning.EXPIRED, Meaning.UNAUTHENTICATED)
CALLS: dict[str, Callable[[Container], object]] = {
    "create": lambda container: container.create("a/new", b"x"),
    "overwrite": lambda container: container.overwrite("a/k", b"x"),
    "swap": lambda container: container.swap("a/other", b"x", None),
    "fetch": lambda container: container.fetch("a/k"),
    "read": lambda container: container.read("a/k"),
    "look": lambda container: container.look("a/k"),
    "list": lambda container: list(container.list("a/")),
    "delete": lambda container: container.delete_one("a/k"),
}
OPERATIONS = {"create": "put", "overwrite": "put", "swap": "put", "fetch": "get", "read": "get", "look": "head",
              "list": "list_page", "delete": "delete_many"}  # fmt: skip


class Renewing(FaultyObjectStore):
    """Counts the renewals. Its credentials are what `known` tells of them; None where it tells nothing."""

    def __init__(self, inner: ObjectStore, *, known: Callable[[int], object] = lambda renewals: None) -> None:
        super().__init__(inner)
        self.renewals = 0
        self._known = known

    @property
    def credentials(self) -> object:
        return self._known(self.renewals)

    def renew(self) -> bool:
        self.renewals += 1
        return True


def make(**told: Any) -> tuple[Renewing, RecordingObjectStore, Container]:
    memory = MemoryObjectStore()
    memory.put("a/k", b"x", mode="overwrite", metadata={})
    renewing = Renewing(memory, **told)
    recording = RecordingObjectStore(renewing)
    return renewing, recording, Container(recording)


@pytest.mark.parametrize("meaning", ANYTHING)
@pytest.mark.parametrize("name", CALLS)
def test_every_operation_is_tried_once_more_with_others(name: str, meaning: Meaning) -> None:
    renewing, recording, container = make()
    renewing.fail(OPERATIONS[name], meaning)  # type: ignore[arg-type]
    CALLS[name](container)
    assert recording.counts[OPERATIONS[name]] == 2
    assert renewing.renewals == 1


@pytest.mark.parametrize("meaning", ANYTHING)
@pytest.mark.parametrize("name", CALLS)
def test_a_denial_that_stays_is_two_requests_and_then_one_each_until_a_request_succeeds(name: str, meaning: Meaning) -> None:
    renewing, recording, container = make()
    renewing.fail(OPERATIONS[name], meaning, times=4)  # type: ignore[arg-type]
    for requests in (2, 3, 4):
        with pytest.raises(AccessDeniedError, match="log in again"):
            CALLS[name](container)
        assert recording.counts[OPERATIONS[name]] == requests
    CALLS[name](container)
    renewing.fail("head", meaning)
    container.exists("a/k")
    assert recording.counts["head"] >= 2, "a denial after a success is a first one again"


def test_equal_credentials_are_tried_again_only_where_they_had_expired() -> None:
    for meaning, requests in ((Meaning.EXPIRED, 2), (Meaning.UNAUTHENTICATED, 1)):
        renewing, recording, container = make(known=lambda renewals: "the same")
        renewing.fail("head", meaning, times=2)
        with pytest.raises(AccessDeniedError):
            container.look("a/k")
        assert recording.counts["head"] == requests
    _, recording, container = make(known=lambda renewals: f"the {renewals}th")
    recording.inner.fail("head", Meaning.UNAUTHENTICATED)  # type: ignore[attr-defined]
    container.look("a/k")


def test_credentials_that_can_not_be_had_are_not_looked_for_again_by_the_same_call() -> None:
    def unknown(renewals: int) -> object:
        raise InjectedError(Meaning.UNAUTHENTICATED)

    renewing, recording, container = make(known=unknown)
    renewing.fail("head", Meaning.UNAUTHENTICATED)
    with pytest.raises(AccessDeniedError):
        container.look("a/k")
    assert recording.counts["head"] == 1
    container.look("a/k")


def test_a_driver_that_has_no_way_to_renew_is_asked_once() -> None:
    faulty = FaultyObjectStore(MemoryObjectStore())
    recording = RecordingObjectStore(faulty)
    container = Container(recording)
    faulty.fail("list_page", Meaning.UNAUTHENTICATED, times=2)
    for requests in (1, 2):
        with pytest.raises(AccessDeniedError):
            list(container.list("a/"))
        assert recording.counts["list_page"] == requests


def test_keys_of_a_batch_that_are_refused_for_the_credentials_are_deleted_with_others() -> None:
    class Batches(Renewing):
        def delete_many(self, keys: Any, **more: Any) -> Any:
            kinds = {"a/1": Meaning.UNAUTHENTICATED, "a/2": Meaning.EXPIRED, "a/3": Meaning.TRY_AGAIN, "a/4": Meaning.DENIED}
            if self.asked or not self.renewals:
                self.asked = False
                return {key: InjectedError(kinds[key]) for key in keys if key in kinds}
            return {key: InjectedError(Meaning.DENIED) for key in keys if key == "a/4"}

        asked = True

    container = Container(Batches(MemoryObjectStore()))
    failed = container.delete([f"a/{number}" for number in range(5)])
    assert set(failed) == {"a/4"}


def test_a_missing_permission_is_no_reason_to_renew() -> None:
    renewing, recording, container = make()
    renewing.fail("get", Meaning.DENIED)
    with pytest.raises(AccessDeniedError, match="allowed to do"):
        container.fetch("a/k")
    assert (renewing.renewals, recording.counts["get"]) == (0, 1)
