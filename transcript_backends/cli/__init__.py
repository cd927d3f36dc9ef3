"""The console command ``transcripts``: a user of the package's public API like any other."""

import sys


def main() -> None:
    """Run the command; says what to install where click or rich is missing."""
    try:
        try:
            import click  # noqa: F401
            import rich  # noqa: F401
        except ImportError:
            sys.exit("the command line needs click and rich: pip install 'transcript-backends[cli]'")
        from transcript_backends.cli.app import program

        program()
    except KeyboardInterrupt:  # while modules were being loaded
        sys.exit(130)
