"""Random programs against a model, on every backend: what a transcript holds, whatever was done to it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule, run_state_machine_as_test

from transcript_backends import CompactionPolicy, SegmentConflictError, SegmentNotFoundError, TranscriptRef, open_store

WRITERS = st.sampled_from(["a", "b", "C-3"])
POLICIES = st.builds(
    CompactionPolicy, min_segments=st.integers(2, 4), target_bytes=st.sampled_from([60, 200, 10_000]), full=st.booleans()
)


class Transcripts(RuleBasedStateMachine):
    """One transcript; the model is what was appended since the last delete."""

    url: ClassVar[str]
    appended = Bundle("appended")

    @initialize()
    def open(self) -> None:
        self.store = open_store(self.url)
        self.ref = TranscriptRef("machine", "agent", os.urandom(8).hex())
        self.model: dict[tuple[int, str], bytes] = {}
        self.bodies: dict[str, bytes] = {}

    def teardown(self) -> None:
        self.store.close()

    @rule(target=appended, writer=WRITERS, count=st.integers(1, 3), gap=st.integers(0, 2), text=st.text(max_size=5))
    def append(self, writer: str, count: int, gap: int, text: str) -> tuple[str, int, str, bytes]:
        start = max((seq for seq, who in self.model if who == writer), default=-1) + 1 + gap
        lines = [json.dumps({"n": start + i, "text": text}).encode() for i in range(count)]
        body = b"".join(line + b"\n" for line in lines)
        key = self.store.append_segment(self.ref, start, start + count - 1, writer, body)
        self.model.update({(start + i, writer): line for i, line in enumerate(lines)})
        self.bodies[key] = body
        return key, start, writer, body

    @rule(segment=appended)
    def append_again(self, segment: tuple[str, int, str, bytes]) -> None:
        key, start, writer, body = segment
        if self.bodies.get(key) == body:  # else it was deleted, and its place taken by another perhaps
            assert self.store.append_segment(self.ref, start, start + body.count(b"\n") - 1, writer, body) == key

    @rule(segment=appended)
    def read_what_was_appended(self, segment: tuple[str, int, str, bytes]) -> None:
        key, _, _, body = segment
        if self.bodies.get(key) == body:
            with self.store.read_segment(key) as stream:
                assert stream.read() == body

    @rule(segment=consumes(appended))
    def refuse_other_content(self, segment: tuple[str, int, str, bytes]) -> None:
        key, start, writer, body = segment
        if any(each.key == key for each in self.store.list_segments(self.ref)):
            with pytest.raises(SegmentConflictError):
                self.store.append_segment(self.ref, start, start + body.count(b"\n") - 1, writer, body.replace(b"{", b"{ "))

    @rule(policy=POLICIES)
    def compact(self, policy: CompactionPolicy) -> None:
        result = self.store.compact(self.ref, policy)
        assert result.left == []
        assert result.segments_after == len(self.store.list_segments(self.ref))

    @rule(purge=st.booleans())
    def delete(self, purge: bool) -> None:
        before = self.store.list_segments(self.ref)
        self.store.delete(self.ref, purge=purge)
        self.model.clear()
        self.bodies.clear()
        for segment in before:
            with pytest.raises(SegmentNotFoundError):
                self.store.read_segment(segment.key)

    @rule(start=st.integers(0, 12), length=st.integers(0, 6), limit=st.integers(0, 5))
    def read_a_range(self, start: int, length: int, limit: int) -> None:
        records = self.store.records(self.ref, start_seq=start, end_seq=start + length, limit=limit)
        expected = [each for each in sorted(self.model) if start <= each[0] <= start + length]
        assert [record[:2] for record in records] == expected[:limit]

    @invariant()
    def reads_what_the_model_holds(self) -> None:
        records = [(record[:2], record.line) for record in self.store.records(self.ref)]
        assert records == sorted(self.model.items())
        assert self.store.next_seq(self.ref) == max((seq for seq, _ in self.model), default=-1) + 1
        assert list(self.store.list_refs("machine", "agent")).count(self.ref) == bool(self.model)

    @invariant()
    def verifies(self) -> None:
        report = self.store.verify(self.ref)
        assert report.ok, report.problems
        assert report.records == len(self.model)


BACKENDS = [("memory", 60), ("file", 25), ("moto", 4), ("localstack", 4), ("ministack", 4), ("seaweedfs", 4)]
BACKENDS += [("fake_gcs", 4), ("azurite", 4)]


@pytest.mark.parametrize(("backend", "examples"), BACKENDS)
def test_a_random_program_reads_what_it_wrote(
    request: pytest.FixtureRequest, tmp_path: Path, backend: str, examples: int
) -> None:
    if backend in ("memory", "file"):
        url = {"memory": "memory:///machine", "file": f"file://{tmp_path}"}[backend]
    else:
        url = request.getfixturevalue(f"{backend}_server").new_bucket().url()
    machine = type("Machine", (Transcripts,), {"url": url})
    few = settings(
        max_examples=examples,
        stateful_step_count=25,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(machine, settings=few)
