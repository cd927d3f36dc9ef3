"""Each rule of the protocol, broken: a simulation that does not notice proves nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest
from simulation.outcome import FailedSchedule
from simulation.schedules import SHAPES, run

from transcript_backends import compaction, copying, deletion, following, listing, object_store, reading
from transcript_backends.compaction import _Compactor, _StopError
from transcript_backends.container import Container, Whole
from transcript_backends.copying import _Copy
from transcript_backends.deletion import DeleteResult
from transcript_backends.errors import SegmentConflictError
from transcript_backends.following import Place
from transcript_backends.hashing import sha256
from transcript_backends.index import SegmentIndex
from transcript_backends.keys import EVENTS, INDEX, SegmentName, TranscriptKeys
from transcript_backends.listing import Listing, stable_listing
from transcript_backends.ranges import Ranges
from transcript_backends.reading import Plan

Mutation = Callable[[pytest.MonkeyPatch], None]
_MUTATIONS: dict[str, tuple[Mutation, range]] = {}

_look_again, _write_index, _remove_sources = _Compactor._look_again, _Compactor._write_index, _Compactor._remove_sources


def mutation(*, within: int, shape: int | None = None) -> Callable[[Mutation], Mutation]:
    """A mutation that so many schedules must catch; of one shape, where only that one is likely to."""

    def register(apply: Mutation) -> Mutation:
        seeds = range(within) if shape is None else range(shape, within * SHAPES, SHAPES)
        _MUTATIONS[apply.__name__] = (apply, seeds)
        return apply

    return register


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


def _sources(self: Any, stored: bytes) -> list[str]:
    index = SegmentIndex.parse(stored, "")
    own = self._names.segment(*index.name)
    return [key for source in index.sources if (key := self._names.segment(*source.name)) != own]


# --- compaction -------------------------------------------------------------------------------------------------------


@mutation(within=50)
def sources_go_before_the_segment_is_written(patch: pytest.MonkeyPatch) -> None:
    def write_index(self: Any, name: SegmentName, index: bytes) -> None:
        _write_index(self, name, index)
        self._remove(dict.fromkeys(_sources(self, index), ""))

    patch.setattr(_Compactor, "_write_index", write_index)


@mutation(within=50)
def no_index_is_written(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_Compactor, "_write_index", lambda self, *_: None)
    patch.setattr(_Compactor, "_look_again", lambda self, merges: stable_listing(self._container, self._names))


@mutation(within=1000)
def the_segment_is_written_before_its_index(patch: pytest.MonkeyPatch) -> None:
    def look_again(self: Any, merges: Any) -> Listing:
        for merge in merges.values():
            _write_index(self, merge.name, merge.stored)
        return _look_again(self, merges)

    patch.setattr(_Compactor, "_write_index", lambda self, *_: None)
    patch.setattr(_Compactor, "_look_again", look_again)


@mutation(within=1000)
def an_output_goes_because_its_sources_are_gone(patch: pytest.MonkeyPatch) -> None:
    def look_again(self: Any, merges: Any) -> Listing:
        for key, merge in merges.items():
            if not all(self._container.exists(each) for each in _sources(self, merge.stored)):
                self._remove({key: "", self._names.index(merge.name): ""})
                raise _StopError
        return _look_again(self, merges)

    patch.setattr(_Compactor, "_look_again", look_again)


@mutation(within=1500, shape=0)
def indexes_go_with_their_segments(patch: pytest.MonkeyPatch) -> None:
    def remove_sources(self: Any, again: Listing, merges: Any) -> None:
        _remove_sources(self, again, merges)
        for key, merge in merges.items():
            sources = [each.name for each in merge.sources if each.key != key and each.name.generation is not None]
            self._remove({self._names.index(name): "" for name in sources})

    patch.setattr(_Compactor, "_remove_sources", remove_sources)


@mutation(within=1000)
def containment_is_judged_by_range(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        _Compactor,
        "_may_replace",
        lambda self, larger, segment: (
            larger.key != segment.key and larger.seq_start <= segment.seq_start and larger.seq_end >= segment.seq_end
        ),
    )
    patch.setattr(_Compactor, "_held", lambda self, larger, segments: segments)


@mutation(within=1000)
def compaction_starts_while_a_delete_runs(patch: pytest.MonkeyPatch) -> None:
    def careless(*arguments: Any, **options: Any) -> Listing:
        listed = stable_listing(*arguments, **options)
        listed.markers = [each for each in listed.markers if each.done]
        return listed

    patch.setattr(compaction, "stable_listing", careless)


@mutation(within=1000)
def what_comes_is_taken_for_what_is_stored(patch: pytest.MonkeyPatch) -> None:
    def read(self: Container, key: str, **_: object) -> Whole:
        with self.open(key) as stream:
            body = stream.read()
        return Whole(body, sha256(body), "")

    patch.setattr(Container, "read", read)


@mutation(within=1000)
def one_response_is_taken_for_damage(patch: pytest.MonkeyPatch) -> None:
    def read(self: Container, key: str, size: int | None = None, expected: str = "", is_moved: bool = False) -> Whole:
        return self._read(key, size, expected, is_moved)

    patch.setattr(Container, "read", read)


# --- listing and reading ----------------------------------------------------------------------------------------------


@mutation(within=1000)
def listings_are_taken_as_they_come(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(listing, "_explained", lambda *_: True)


@mutation(within=1000)
def indexes_are_listed_before_segments(patch: pytest.MonkeyPatch) -> None:
    def list_once(container: Container, names: TranscriptKeys, **_: Any) -> Listing:
        return Listing(names, [*container.list(names.prefix + INDEX), *container.list(names.prefix + EVENTS)])

    patch.setattr(listing, "list_once", list_once)


@mutation(within=3000)
def a_directory_tree_is_listed_in_one_pass(patch: pytest.MonkeyPatch) -> None:
    def list_once(container: Container, names: TranscriptKeys, **_: Any) -> Listing:
        return Listing(names, container.list(names.prefix))

    patch.setattr(listing, "list_once", list_once)


@mutation(within=5000)
def what_a_listing_shows_too_early_is_shown(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(reading, "premature", lambda *_: [])


@mutation(within=5000)
def a_reader_that_lists_again_shows_what_is_new(patch: pytest.MonkeyPatch) -> None:
    class Everything(Ranges):
        def holds(self, writer_id: str, seq: int) -> bool:
            return True

    patch.setattr(reading, "Ranges", Everything)


@mutation(within=1000)
def next_seq_is_read_from_segments_alone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Listing, "next_seq", property(lambda self: max((each.seq_end for each in self.segments), default=-1) + 1))


@mutation(within=200)
def a_reader_stops_at_a_vanished_segment(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(reading, "_PATIENCE", 1)


# --- copying ----------------------------------------------------------------------------------------------------------


@mutation(within=200)
def a_copy_stops_at_a_vanished_segment(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(copying, "_PATIENCE", 1)


@mutation(within=4000)
def a_copy_does_not_list_again_what_vanishes_while_it_looks(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_Copy, "_look", _Copy._see)


# --- delete -----------------------------------------------------------------------------------------------------------


@mutation(within=2000)
def an_older_generation_is_shown(patch: pytest.MonkeyPatch) -> None:
    init = Listing.__init__

    def show_dead(self: Listing, *arguments: Any, **options: Any) -> None:
        init(self, *arguments, **options)
        self.segments = sorted([*self.segments, *self.dead], key=lambda each: each[1:4])
        self.dead = []

    patch.setattr(Listing, "__init__", show_dead)


@mutation(within=2000, shape=4)
def a_finished_delete_takes_its_first_marker_away(patch: pytest.MonkeyPatch) -> None:
    delete = object_store.delete_transcript

    def leave_one(container: Container, names: TranscriptKeys, *, purge: bool) -> DeleteResult:
        result = delete(container, names, purge=purge)
        container.delete([names.deleting(result.generation)])
        return result

    patch.setattr(object_store, "delete_transcript", leave_one)


@mutation(within=500)
def a_compaction_deletes_whatever_is_there(patch: pytest.MonkeyPatch) -> None:
    remove = _Compactor._remove
    patch.setattr(_Compactor, "_remove", lambda self, doomed: remove(self, dict.fromkeys(doomed, "")))


@mutation(within=400, shape=3)
def a_delete_deletes_whatever_is_there(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(deletion, "_versions", lambda _, objects: dict.fromkeys((each.key for each in objects), ""))


# --- following --------------------------------------------------------------------------------------------------------


@mutation(within=1000)
def a_clock_tells_what_a_follower_has_seen(patch: pytest.MonkeyPatch) -> None:
    go_on, looked = following.go_on, dict[int, datetime]()

    def by_time(container: Container, names: TranscriptKeys, place: Place, **options: Any) -> tuple[Plan, Place]:
        plan, moved = go_on(container, names, place, **options)
        if plan.generation != place.generation and place.generation in looked:
            for each in plan.segments:
                seen = place.seen.get(each.writer_id, -1)
                if each.seq_end <= seen and each.created_at < looked[place.generation] - timedelta(seconds=2):
                    moved.seen[each.writer_id] = seen
                    moved.withheld.pop(each.writer_id, None)
        if (now := container.server_time()) is not None:
            looked[plan.generation] = now
        return plan, moved

    patch.setattr(following, "go_on", by_time)


@mutation(within=2000, shape=4)
def what_was_withheld_counts_as_given(patch: pytest.MonkeyPatch) -> None:
    moved = Place.moved
    patch.setattr(Place, "moved", lambda *arguments: moved(*arguments)._replace(withheld={}))


@mutation(within=4000)
def what_was_given_while_a_delete_ran_is_taken_to_be_still_there(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(following, "_mark", lambda line: "")
    patch.setattr(following, "lines_at", lambda *_: [b""])


# --- lost answers -----------------------------------------------------------------------------------------------------


@mutation(within=50)
def a_lost_answer_counts_as_success(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Container, "_stored_after_all", lambda *_: True)


@mutation(within=50)
def a_taken_key_counts_as_a_conflict(patch: pytest.MonkeyPatch) -> None:
    def holds(self: Container, key: str, *_: object) -> None:
        if self.exists(key):
            raise SegmentConflictError(key)

    patch.setattr(Container, "_holds", holds)


def schedules_until_caught(name: str) -> tuple[int, str] | None:
    """How many schedules a mutation survives, and what it fails with."""
    apply, seeds = _MUTATIONS[name]
    with pytest.MonkeyPatch.context() as patch:
        apply(patch)
        for count, seed in enumerate(seeds, 1):
            try:
                run(seed)
            except FailedSchedule as failure:
                return count, failure.reason
    return None


@pytest.mark.parametrize("name", _MUTATIONS)
def test_a_broken_rule_is_noticed(name: str) -> None:
    assert schedules_until_caught(name)
