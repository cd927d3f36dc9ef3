"""What tells one store from every other: a journal must find its own, and no other."""

from __future__ import annotations

import pytest

from transcript_backends import open_store

LOCAL = "127.0.0.1:9000"
AZURE_KEY = "c2VjcmV0"


def identity(url: str | None, **options: object) -> str:
    with open_store(url, **options) as store:
        return store._container.identity


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("s3://bucket?region=eu-west-1&anon=true", "s3://bucket?region=us-east-1&anon=true"),
        ("s3://bucket?region=eu-west-1&anon=true", "s3://bucket?endpoint_url=https://s3.eu-west-1.amazonaws.com&anon=true"),
        ("gs://bucket?anon=true", "gs://bucket?anon=true&endpoint_url=https://storage.googleapis.com"),
        ("az://container@account?anon=true", "abfss://container@account.dfs.core.windows.net?anon=true"),
        ("memory://shared", "memory://shared"),
    ],
)
def test_one_store_has_one_identity_however_it_is_opened(one: str, other: str) -> None:
    assert identity(one) == identity(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("s3://bucket?anon=true", f"s3://bucket?anon=true&endpoint_url=http://{LOCAL}"),
        (f"s3://bucket?anon=true&endpoint_url=http://{LOCAL}", "s3://bucket?anon=true&endpoint_url=http://127.0.0.1:9001"),
        ("gs://bucket?anon=true", f"gs://bucket?anon=true&endpoint_url=http://{LOCAL}"),
        ("az://container@account?anon=true", "az://container@another?anon=true"),
        (
            f"az://container?anon=true&endpoint_url=http://{LOCAL}/account",
            f"az://container?anon=true&endpoint_url=http://{LOCAL}/another",
        ),
        ("fsspec+ftp://one.example/a", "fsspec+ftp://other.example/a"),
        ("memory://", "memory://"),
        ("memory://one", "memory://other"),
    ],
)
def test_stores_of_one_location_on_different_servers_have_different_identities(one: str, other: str) -> None:
    assert identity(one) != identity(other)


def test_an_identity_holds_no_secret_and_outlives_a_new_one() -> None:
    names = [
        identity("s3://bucket", endpoint_url=f"http://{LOCAL}", access_key_id=f"k{n}", secret_access_key=f"secret{n}")
        for n in range(2)
    ]
    names += [identity("az://container@account", account_key=AZURE_KEY)]
    names += [identity("fsspec+ftp://host/a", storage_options={"username": "u", "password": f"secret{n}"}) for n in range(2)]
    assert names[-1] == names[-2]
    assert names[0] == names[1]
    assert not any("secret" in each or AZURE_KEY in each for each in names)
