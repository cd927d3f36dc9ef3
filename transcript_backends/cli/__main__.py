"""``python -m transcript_backends.cli``."""

from transcript_backends.cli import main

main()
