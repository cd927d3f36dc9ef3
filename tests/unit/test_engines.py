"""Which engine serves a store, and what is said of it."""

from __future__ import annotations

from typing import Any

import pytest

from transcript_backends import InvalidURLError, MissingExtraError, diagnose, open_store
from transcript_backends.drivers import engines
from transcript_backends.drivers.engines import AZURE, GCS, S3, Choice, choose
from transcript_backends.registry import engine_of, find_backend
from transcript_backends.urls import parse

KEYS = {"access_key_id": "A", "secret_access_key": "S"}
URLS = {S3: "s3://bucket", GCS: "gs://bucket", AZURE: "az://bucket@account"}


@pytest.fixture(autouse=True)
def _with_obstore_and_without_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*S3.variables, *GCS.variables, *AZURE.variables):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(engines, "_is_installed", lambda: True)


def chosen(cloud: engines.Cloud, environment: dict[str, str] | None = None, **settings: Any) -> Choice:
    return choose(cloud, parse(URLS[cloud]), settings, environment or {})


@pytest.mark.parametrize("cloud", [S3, AZURE], ids=lambda cloud: cloud.name)
def test_obstore_is_chosen_where_it_can_do_all_that_is_asked(cloud: engines.Cloud) -> None:
    assert chosen(cloud).engine == chosen(cloud, engine="auto").engine == "obstore"
    for settings in (
        {"region": "r", "profile": "p", "role_arn": "a", "purge_versions": True},
        {"sas_token": "s", "tier": "Hot"},
    ):
        assert chosen(cloud, **settings).engine == "obstore"


def test_obstore_is_for_gcs_only_where_it_is_asked_for() -> None:
    assert chosen(GCS) == Choice("sdk", GCS.why_not)
    assert chosen(GCS, engine="obstore").engine == "obstore"
    assert chosen(GCS, engine="obstore", anon=True, endpoint_url="http://localhost:1").engine == "obstore"
    with pytest.raises(InvalidURLError, match="without credentials"):
        chosen(GCS, engine="obstore", anon=True)


@pytest.mark.parametrize("cloud", URLS, ids=lambda cloud: cloud.name)
def test_the_sdk_serves_whoever_asks_for_it(cloud: engines.Cloud) -> None:
    assert chosen(cloud, engine="sdk") == Choice("sdk", "engine=sdk was asked for")
    assert chosen(cloud, engine="sdk", verify="false").engine == "sdk"


@pytest.mark.parametrize(
    ("cloud", "setting"),
    [(cloud, each) for cloud in URLS for each in cloud.settings],
    ids=lambda each: getattr(each, "name", each),
)
def test_a_setting_that_obstore_can_not_follow_is_left_to_the_sdk_and_named(cloud: engines.Cloud, setting: str) -> None:
    assert chosen(cloud, **{setting: "x"}) == Choice("sdk", f"obstore can't follow the setting {setting}")
    with pytest.raises(InvalidURLError, match=rf"engine=obstore can't be used.* {setting}; leave engine out"):
        chosen(cloud, engine="obstore", **{setting: "x"})


@pytest.mark.parametrize(
    ("cloud", "name"),
    [(cloud, each) for cloud in URLS for each in cloud.variables],
    ids=lambda each: getattr(each, "name", each),
)
def test_a_variable_that_the_engines_read_differently_is_left_to_the_sdk_and_named(cloud: engines.Cloud, name: str) -> None:
    found = chosen(cloud, {name: "canary"})
    assert found.engine == "sdk"
    assert name in found.reason
    assert "canary" not in found.reason
    assert chosen(cloud, {name: ""}).reason != found.reason


def test_every_setting_that_is_left_to_the_sdk_is_one() -> None:
    for cloud, url in URLS.items():
        known = {each.name for each in find_backend(parse(url).scheme).settings}
        assert set(cloud.settings) < known
        assert "engine" in known


def test_directory_buckets_are_left_to_the_sdk() -> None:
    found = choose(S3, parse("s3://data--use1-az4--x-s3"), {}, {})
    assert found == Choice("sdk", "'data--use1-az4--x-s3' is a directory bucket")


def test_a_credential_without_tokens_is_left_to_the_sdk() -> None:
    class Tokens:
        def get_token(self) -> None: ...

    assert chosen(AZURE, credential=Tokens()).engine == "obstore"
    assert "no credential but" in chosen(AZURE, credential=object()).reason


def test_without_obstore_the_sdk_serves_and_what_to_install_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "_is_installed", lambda: False)
    found = chosen(S3)
    assert found.engine == "sdk"
    assert "pip install 'transcript-backends[s3,fast]'" in found.reason
    with pytest.raises(MissingExtraError, match=r"pip install 'transcript-backends\[azure,fast\]'") as caught:
        chosen(AZURE, engine="obstore")
    assert caught.value.name == "obstore"


def test_what_is_wrong_for_the_sdk_is_wrong_for_obstore() -> None:
    with pytest.raises(InvalidURLError, match="anon signs no request"):
        open_store("s3://bucket/p", engine="obstore", anon=True, profile="p")


def test_a_store_with_one_client_names_none(tmp_path: Any) -> None:
    assert engine_of(f"file://{tmp_path}") == engine_of("memory://x") == ""
    assert "engine" not in {each.name for each in diagnose(f"file://{tmp_path}")}
