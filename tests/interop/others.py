"""The other programs that read and write this layout, by what they are known to do: written anew, sharing no code with ours."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from transcript_backends import ObjectTranscriptStore, TranscriptRef

TYPES = {"message", "tool_use", "tool_result", "compaction", "summary"}
EPOCH = 1785585600  # 2026-08-01T12:00:00Z


class Objects:
    """The objects of a store, as a program sees them that knows nothing of ours but the keys."""

    def __init__(self, store: ObjectTranscriptStore) -> None:
        self._driver = store._container.driver
        self.root = store._root

    def put(self, key: str, *lines: str) -> None:
        self._driver.put(self.root + key, "".join(f"{line}\n" for line in lines).encode(), mode="create", metadata={})

    def get(self, key: str) -> bytes:
        stream = self._driver.get(self.root + key).stream
        try:
            return b"".join(iter(lambda: stream.read(65536), b""))
        finally:
            stream.close()

    def replace(self, key: str, content: str) -> None:
        self._driver.put(self.root + key, content.encode(), mode="overwrite", metadata={})

    def names(self, folder: str) -> list[str]:
        """The names of the objects in a folder, in no certain order."""
        found, token = [], None
        while True:
            page = self._driver.list_page(f"{self.root}{folder}/", token=token)
            found += [each.key[len(self.root) + len(folder) + 1 :] for each in page.objects]
            if (token := page.token) is None:
                return found[::-1]


class Numbered(NamedTuple):
    seq: int
    type: str
    id: str


def go_events(objects: Objects, ref: str) -> list[Numbered]:
    """The events as the Go control plane shows them: files by their names as text, lines up to 4 MiB, known types, numbered."""
    found: list[Numbered] = []
    for name in sorted(each for each in objects.names(f"{ref}/events") if each.endswith(".jsonl") and "/" not in each):
        for line in objects.get(f"{ref}/events/{name}").split(b"\n"):
            if len(line) > 4 * 1024 * 1024:
                raise ValueError(f"token too long in {name}")
            event = _object(line)
            if event.get("type") in TYPES:
                found.append(Numbered(len(found), event["type"], event["id"]))
    return found


class JavaEntry(NamedTuple):
    type: str
    id: str
    parent: str | None


def java_entries(objects: Objects, ref: str) -> list[JavaEntry]:
    """The entries as the Java harness loads them: segments by their first number, then key; what it can't map is skipped."""
    return [JavaEntry(each["type"], each["id"], each.get("parentId")) for each in _java_load(objects, ref)]


class JavaResult(NamedTuple):
    output: str
    truncated: bool
    original_size: int | None


def java_results(objects: Objects, ref: str) -> list[JavaResult]:
    """The answers of tools as the Java harness has them: `_offloaded` is a field it does not know."""
    return [
        JavaResult(each["output"], each.get("truncated", False), each.get("originalSize"))
        for each in _java_load(objects, ref)
        if each["type"] == "tool_result"
    ]


def java_context(objects: Objects, ref: str) -> list[str]:
    """The ids that the Java harness would show its model: all, or a summary and the messages from a certain one on."""
    entries = _java_load(objects, ref)
    compactions = [each for each in entries if each["type"] == "compaction"]
    if not compactions:
        return [each["id"] for each in entries]
    first, summary = compactions[-1]["firstKeptEntryId"], compactions[-1]["summaryEntryId"]
    start = next(place for place, each in enumerate(entries) if each["id"] == first)
    return [summary, *(each["id"] for each in entries[start:] if each["type"] == "message")]


def _java_load(objects: Objects, ref: str) -> list[dict[str, Any]]:
    segments = []
    for name in objects.names(f"{ref}/events"):
        if found := re.fullmatch(r"(\d+)-(\d+)-([^.]+)\.jsonl", name, re.ASCII):
            segments.append((int(found[1]), name))
    lines = [line for _, name in sorted(segments) for line in objects.get(f"{ref}/events/{name}").split(b"\n")]
    return [each for each in map(_object, lines) if each.get("type") in TYPES]


def _object(line: bytes) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def java_state(user: str, session: str, key: str) -> str:
    """Where the Java harness keeps a state document: ids that need it in base64, the key as it is."""

    def segment(text: str) -> str:
        literal = re.fullmatch(r"[A-Za-z0-9_\-.]+", text)
        return text if literal else base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")

    return f"{segment(user)}/{segment(session)}/{key}.json"


def java_line(kind: str, own: str, second: int, *, parent: str | None = None, **members: Any) -> str:
    """A line as the Java harness writes it: no nulls, upper-case roles, the time as a number with nine decimals."""
    head = json.dumps({"type": kind, "id": own, **({"parentId": parent} if parent else {})}, separators=(",", ":"))[:-1]
    rest = json.dumps(members, ensure_ascii=False, separators=(",", ":"))[1:]
    return f'{head},"timestamp":{EPOCH + second}.{second * 1_000_001 % 10**9:09d},{rest}'


def java_turns(turns: int) -> Iterator[tuple[str, list[str]]]:
    """A session of the Java harness: the name of each segment with its lines. Every turn has a writer id of its own."""
    last, seq = None, 0
    for turn in range(turns):
        start, name = 10 * turn, f"q{turn}"
        call = f"call_{turn}"
        lines = [
            java_line("message", name, start, parent=last, role="USER", content=f"Wie geht’s? № {turn} 🙂"),
            java_line("message", f"a{turn}", start + 1, parent=name, role="ASSISTANT", content="Let me see.\nOne moment."),
            java_line(
                *("tool_use", f"a{turn}:use:{call}", start + 2),
                parent=f"a{turn}",
                toolCallId=call,
                name="shell",
                input={"command": "date", "n": 1.50},
                truncated=False,
            ),
            java_line(
                *("tool_result", f"t{turn}:result:{call}", start + 3),
                parent=f"a{turn}:use:{call}",
                toolCallId=call,
                name="shell",
                output="Sat\n",
                outputBlockTypes=["text"],
                truncated=True,
                originalSize=5000,
            ),
        ]
        last = f"t{turn}:result:{call}"
        yield f"{seq}-{seq + 3}-{(turn * 0x9E3779B1 + 7) % 2**32:08x}.jsonl", lines
        seq += 4
    lines = [
        java_line("summary", "sum", 900, parent=last, summary="They asked how it goes.", format="structured"),
        java_line("compaction", "cut", 901, parent="sum", firstKeptEntryId=f"q{turns - 1}", summaryEntryId="sum"),
        java_line("message", "img", 902, parent="cut", role="USER", content="", blockTypes=["image"]),
    ]
    yield f"{seq}-{seq + 2}-0a1b2c3d.jsonl", lines


def put_java_session(objects: Objects, ref: TranscriptRef | str, turns: int) -> list[str]:
    """Store such a session; gives its lines in order."""
    everything: list[str] = []
    for name, lines in java_turns(turns):
        objects.put(f"{ref}/events/{name}", *lines)
        everything += lines
    return everything
