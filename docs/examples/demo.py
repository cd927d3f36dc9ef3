"""The main job, on a store in a temporary folder: two writers append, a reader sees all of it in order, delete."""

import tempfile

from transcript_backends import TranscriptRef, open_store

with tempfile.TemporaryDirectory() as folder, open_store(f"file://{folder}/store") as store:
    print(f"A store opened by its URL: {store}\n(s3://bucket/prefix works the same, with the extra [s3].)\n")
    ref = TranscriptRef.parse("acme/coder/session-1")

    print(f"Two replicas append to one transcript, {ref}, each as a writer of its own:")
    turns = [
        (0, "replica-a", '{"type":"message","role":"user","content":"Fix the failing test."}'),
        (1, "replica-a", '{"type":"tool_use","name":"bash","input":{"command":"pytest"}}'),
        (2, "replica-b", '{"type":"tool_result","name":"bash","output":"1 failed"}'),
        (2, "replica-a", '{"type":"message","role":"assistant","content":"Looking at it."}'),
        (3, "replica-b", '{"type":"message","role":"assistant","content":"Fixed."}'),
    ]
    for seq, writer, line in turns:
        key = store.append_segment(ref, seq, seq, writer, line.encode())
        print(f"  stored {key}")

    print("\nAppending the same again is safe: it is recognised, and stored once.")
    seq, writer, line = turns[0]
    store.append_segment(ref, seq, seq, writer, line.encode())

    print("\nList:")
    for found in store.list_refs():
        print(f"  {found}: {len(store.list_segments(found))} segments, the next free seq is {store.next_seq(found)}")

    print("\nRead back, in order of seq and writer:")
    for record in store.records(ref):
        print(f"  {record.seq}  {record.writer_id}  {record.line.decode()}")

    print(f"\nDelete: {store.delete(ref).deleted} objects gone, {len(list(store.records(ref)))} records left.")
