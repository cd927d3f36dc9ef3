"""What all backends are tried with."""

import pytest


@pytest.fixture(params=["", "root", "root/of-all"], ids=["bare", "prefixed", "twice prefixed"])
def prefix(request: pytest.FixtureRequest) -> str:
    return str(request.param)
