"""The console command ``transcripts``: a user of the package's public API like any other."""

import sys

from transcript_backends.extras import is_ours


def main() -> None:
    """Run the command; says what to install where click or rich is missing."""
    try:
        try:
            import click  # noqa: F401
            import rich  # noqa: F401

            from transcript_backends.cli.app import program
        except ImportError as error:
            if is_ours(error):
                raise
            sys.exit("the command line needs click and rich: pip install 'transcript-backends[cli]'")

        program()
    except KeyboardInterrupt:  # while modules were being loaded
        sys.exit(130)
