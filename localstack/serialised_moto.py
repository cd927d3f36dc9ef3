"""moto's server, one request at a time: it looks for a key and stores it in two steps, so that two creators could both win."""

from __future__ import annotations

import threading
from typing import Any

from moto import server


class _OneAtATime(server.DomainDispatcherApplication):
    _turn = threading.Lock()

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Any:
        with self._turn:
            return super().__call__(environ, start_response)


if __name__ == "__main__":
    server.DomainDispatcherApplication = _OneAtATime
    server.main()
