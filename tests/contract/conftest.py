"""What all backends are tried with."""

import pytest
from contract.grid import ENGINES, PREFIXES

collect_ignore = [] if "obstore" in ENGINES else ["test_gcs_obstore.py"]


@pytest.fixture(params=PREFIXES.values(), ids=PREFIXES)
def prefix(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session", params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)
