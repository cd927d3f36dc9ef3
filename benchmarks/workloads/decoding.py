"""Lines of a session, decoded to typed values."""

from __future__ import annotations

from benchmarks.clients.typed import lines
from benchmarks.measuring import Bench


def entries(bench: Bench) -> None:
    count = bench.size(100_000, 500)
    session, decode = list(lines(count)), bench.client.decode
    for line in session[:100]:
        decode(line)
    with bench.measuring(count):
        for line in session:
            decode(line)
