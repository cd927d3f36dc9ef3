"""``rm`` and ``doctor``: keeping a store in order."""

from __future__ import annotations

from collections.abc import Sequence

import click

from transcript_backends import TranscriptRef, diagnose
from transcript_backends.cli.session import (
    NoSuchTranscriptError,
    Session,
    count,
    examples,
    json_option,
    ref_argument,
    store_option,
)


@click.command(
    epilog=examples("transcripts rm demo/agent/s1", "transcripts rm --purge --missing-ok demo/agent/s1 demo/agent/s2")
)
@ref_argument("REF...", several=True)
@click.option("--purge", is_flag=True, help="Leave no deletion markers either; only where nothing else runs on REF.")
@click.option("--missing-ok", is_flag=True, help="Transcripts that do not exist are no error.")
@json_option
@store_option
@click.pass_obj
def rm(session: Session, refs: Sequence[TranscriptRef], purge: bool, missing_ok: bool) -> None:
    """Delete transcripts, without asking.

    Two small markers stay in place of each; they keep a compaction that is under way from bringing anything back.
    """
    store = session.open_store()
    missing = []
    for ref in dict.fromkeys(refs):
        deleted, generation = store.delete(ref, purge=purge)
        if deleted or (purge and generation):
            text = f"{ref}: {count(deleted, 'object')} deleted"
        else:
            missing.append(ref)
            text = f"{ref}: nothing to delete"
        if deleted or missing_ok or ref not in missing:
            session.show(text, ref=str(ref), deleted=deleted, generation=generation)
    if missing and not missing_ok:
        raise NoSuchTranscriptError(*missing)


@click.command(epilog=examples("transcripts doctor", "transcripts doctor --store 's3://bucket/prefix?region=eu-central-1'"))
@json_option
@store_option
@click.pass_context
def doctor(ctx: click.Context) -> None:
    """Try out whether the store works as it must.

    Goes step by step, up to the first that fails. Writes a small transcript of its own, which it removes again.
    """
    session = ctx.ensure_object(Session)
    passed = False
    for name, passed, detail in diagnose(session.url):
        mark = click.style("ok    ", fg="green") if passed else click.style("FAILED", fg="red")
        session.show(f"{mark} {name}: {detail}", check=name, ok=passed, detail=detail)
    if not passed:
        ctx.exit(1)
