"""Which account an Azure store is in, and what authorizes its requests; nothing is contacted."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from azure.core.credentials import AzureSasCredential

from transcript_backends import InvalidURLError, open_store
from transcript_backends.drivers import azure_account
from transcript_backends.drivers.azure import SETTINGS
from transcript_backends.drivers.azure_account import find_account
from transcript_backends.urls import parse, settings

PUBLIC = "https://acct.blob.core.windows.net"
EMULATOR = "http://127.0.0.1:10000/devstoreaccount1"
NAME, KEY, SAS = "AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_SAS_TOKEN"
SERVICE, MODE = "AZURE_STORAGE_SERVICE_ENDPOINT", "AZURE_STORAGE_AUTH_MODE"
CONNECTION = "AZURE_STORAGE_CONNECTION_STRING"


class Tokens:
    def get_token(self) -> None: ...


def find(url: str, environment: dict[str, str] | None = None, **options: object):
    parsed = parse(url)
    found = find_account(parsed, settings(parsed, options, SETTINGS, {}), environment or {})
    if isinstance(found.credential, AzureSasCredential):
        return found._replace(credential=f"SAS {found.credential.signature}")
    return found


def string_of(name: str = "acct", key: str = "k", **more: str) -> str:
    return "".join(f"{part}={value};" for part, value in {"AccountName": name, "AccountKey": key, **more}.items())


@pytest.mark.parametrize(
    ("url", "options", "endpoint", "name"),
    [
        ("az://con@acct", {}, PUBLIC, "acct"),
        ("az://con@acct.blob.core.windows.net", {}, PUBLIC, "acct"),
        ("abfss://con@acct.dfs.core.windows.net/p", {}, PUBLIC, "acct"),
        ("abfss://con@acct.dfs.core.chinacloudapi.cn", {}, "https://acct.blob.core.chinacloudapi.cn", "acct"),
        ("abfss://con@acct.z12.dfs.storage.azure.net", {}, "https://acct.z12.blob.storage.azure.net", "acct"),
        ("https://acct.blob.core.windows.net/con/p", {}, PUBLIC, "acct"),
        ("az://con?account_name=acct", {}, PUBLIC, "acct"),
        ("az://con", {"account_name": "acct"}, PUBLIC, "acct"),
        ("az://con@acct?account=acct", {}, PUBLIC, "acct"),
        (f"az://con?endpoint_url={EMULATOR}", {}, EMULATOR, "devstoreaccount1"),
        ("az://con?endpoint_url=https://acct.blob.core.windows.net/", {}, PUBLIC, "acct"),
        ("az://con?endpoint_url=https://blobs.example&account_name=acct", {}, "https://blobs.example", "acct"),
    ],
)
def test_the_account_comes_from_the_url_and_the_arguments(url, options, endpoint, name):
    assert find(url, account_key="k", **options) == (endpoint, name, "k")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (string_of(), (PUBLIC, "acct", "k")),
        (string_of(EndpointSuffix="core.usgovcloudapi.net"), ("https://acct.blob.core.usgovcloudapi.net", "acct", "k")),
        (string_of(key="a=b=="), (PUBLIC, "acct", "a=b==")),
        (string_of(DefaultEndpointsProtocol="http", BlobEndpoint=EMULATOR + "/"), (EMULATOR, "acct", "k")),
        (f"BlobEndpoint={PUBLIC}/;SharedAccessSignature=?sv=1&sig=s", (PUBLIC, "acct", "SAS sv=1&sig=s")),
        ("accountname = acct ; ACCOUNTKEY=k", (PUBLIC, "acct", "k")),
        ("UseDevelopmentStorage=true", (EMULATOR, "devstoreaccount1", azure_account._EMULATOR_KEY)),
        ("UseDevelopmentStorage=true;", (EMULATOR, "devstoreaccount1", azure_account._EMULATOR_KEY)),
        (f"BlobEndpoint={PUBLIC}", (PUBLIC, "acct", None)),
    ],
)
def test_a_connection_string_tells_account_and_credentials(text, found):
    assert find("az://con", connection_string=text) == found
    assert find("az://con", {CONNECTION: text}) == found


@pytest.mark.parametrize(
    ("environment", "found"),
    [
        ({NAME: "acct", KEY: "k"}, (PUBLIC, "acct", "k")),
        ({"AZURE_STORAGE_ACCOUNT": "acct", "AZURE_STORAGE_KEY": "k"}, (PUBLIC, "acct", "k")),
        ({NAME: "acct", SAS: "?sv=1&sig=s"}, (PUBLIC, "acct", "SAS sv=1&sig=s")),
        ({NAME: "acct"}, (PUBLIC, "acct", None)),
        ({CONNECTION: string_of(key="c"), NAME: "other", KEY: "k"}, (PUBLIC, "acct", "c")),
        ({SERVICE: f"{EMULATOR}/", KEY: "k"}, (EMULATOR, "devstoreaccount1", "k")),
        ({SERVICE: "https://blobs.example", NAME: "acct", SAS: "sig=s"}, ("https://blobs.example", "acct", "SAS sig=s")),
        ({NAME: "acct", KEY: "k", SAS: "sig=s", MODE: "login"}, (PUBLIC, "acct", None)),
        ({NAME: "acct", KEY: "k", MODE: "key"}, (PUBLIC, "acct", "k")),
        ({CONNECTION: string_of(key="c"), MODE: "Login"}, (PUBLIC, "acct", None)),
    ],
)
def test_the_environment_tells_what_is_not_given(environment, found):
    assert find("az://con", environment) == found


@pytest.mark.parametrize(
    ("environment", "credential"),
    [
        ({NAME: "acct", KEY: "k"}, "k"),
        ({KEY: "k"}, "k"),
        ({NAME: "other", KEY: "k"}, None),
        ({NAME: "other", SAS: "sig=s"}, None),
        ({CONNECTION: string_of(key="c")}, "c"),
        ({CONNECTION: string_of("other")}, None),
    ],
)
def test_credentials_of_the_environment_are_used_for_their_own_account_only(environment, credential):
    assert find("az://con@acct", environment) == (PUBLIC, "acct", credential)


@pytest.mark.parametrize(
    ("options", "credential"),
    [
        ({"account_key": "given"}, "given"),
        ({"sas_token": "?sig=given"}, "SAS sig=given"),
        ({"anon": True}, azure_account.ANONYMOUS),
        ({"connection_string": string_of(key="given")}, "given"),
    ],
)
def test_credentials_that_are_given_win_and_the_account_may_still_come_from_the_environment(options, credential):
    environment = {NAME: "acct", KEY: "around", SAS: "around"}
    assert find("az://con", environment, **options) == (PUBLIC, "acct", credential)
    assert find("az://con@acct", {CONNECTION: "not one"}, **options) == (PUBLIC, "acct", credential)


def test_a_credential_object_is_used_as_it_is():
    tokens = Tokens()
    assert find("az://con@acct", {KEY: "k"}, credential=tokens).credential is tokens


@pytest.mark.parametrize(
    ("url", "options", "why"),
    [
        ("az://con/p", {}, "'az://con/p' names no account; write az://container@account/prefix"),
        ("az://con@acct", {"account_name": "other"}, "'az://con@acct' names the account already"),
        ("az://con@acct", {"endpoint_url": PUBLIC}, "leave out account_name and endpoint_url"),
        ("az://con@acct", {"account_key": "k", "sas_token": "s"}, "account_key and sas_token are given together"),
        ("az://con@acct?anon=true", {"account_key": "k"}, "account_key and anon are given together"),
        ("az://con@acct", {"connection_string": string_of("other")}, "that of the account 'other', not of 'acct'"),
        ("az://con", {"connection_string": "no such thing"}, "neither AccountName nor BlobEndpoint"),
        ("az://con?endpoint_url=https://blobs.example", {"account_key": "k"}, "add account_name"),
        ("az://con?endpoint_url=http://azurite:10000/a", {"account_key": "k"}, "use https, or allow_http=true"),
        ("az://con", {"connection_string": string_of(DefaultEndpointsProtocol="http")}, "use https, or allow_http=true"),
        (f"az://con?endpoint_url={EMULATOR}", {}, "tokens of Azure are sent over https only"),
        (f"az://con?endpoint_url={EMULATOR}", {"credential": Tokens()}, "tokens of Azure are sent over https only"),
        (f"az://con?endpoint_url={EMULATOR}", {"account_key": "k", "customer_key": object()}, "over https only"),
        ("az://c1@acct", {}, "no container can be called 'c1': 3 to 63 letters a-z"),
        ("az://Con?account_name=acct", {}, "no container can be called 'Con'"),
        ("az://a--b?account_name=acct", {}, "no container can be called 'a--b'"),
        ("az://a.b?account_name=acct", {}, "no container can be called 'a.b'"),
        (f"az://{64 * 'a'}@acct", {}, "no container can be called"),
        ("az://con@acct?tier=Archive", {}, "tier in 'az://con@acct' must be one of Hot, Cool, Cold"),
    ],
)
def test_what_can_not_be_is_refused_when_the_store_is_opened(monkeypatch, url, options, why):
    for name in (NAME, KEY):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(InvalidURLError, match=re.escape(why)):
        open_store(url, **options)


@pytest.mark.parametrize("host", ["127.0.0.1:10000", "localhost:10000", "[::1]:10000"])
def test_plain_http_on_this_machine_is_fine(host):
    find(f"az://con?endpoint_url=http://{host}/devstoreaccount1", account_key="k")


@pytest.mark.parametrize(
    ("url", "text", "create_only"),
    [
        ("abfss://con@acct.dfs.core.windows.net/p", "az://con@acct.blob.core.windows.net/p", "yes"),
        ("https://acct.blob.core.chinacloudapi.cn/con/p", "az://con@acct.blob.core.chinacloudapi.cn/p", "yes"),
        ("az://con/p?account_name=acct", "az://con@acct.blob.core.windows.net/p", "yes"),
        ("az://con@acct.z12.blob.storage.azure.net/p", "az://con@acct.z12.blob.storage.azure.net/p", "yes"),
        (f"az://con/p?endpoint_url={EMULATOR}", "az://con/p", "probe"),
        ("az://con/p?endpoint_url=https://acct.blob.core.windows.net:8443", "az://con/p", "probe"),
        ("az://con/p?endpoint_url=https://blobs.example&account_name=acct", "az://con/p", "probe"),
    ],
)
def test_a_store_names_its_account_where_it_is_one_of_azures_own(url, text, create_only):
    with open_store(url, account_key="k") as store:
        assert str(store) == text
        able = store._container.driver.capabilities
        assert (able.create_only, able.start_after, able.delete_batch) == (create_only, False, 256)
    if create_only == "yes":
        with open_store(str(store), account_key="k") as again:
            assert str(again) == text


def test_every_setting_is_documented():
    text = (Path(__file__).parents[2] / "docs/urls.md").read_text().partition("\n## az\n")[2].partition("\n## ")[0]
    for setting in SETTINGS:
        assert [each for each in (setting.name, *setting.aliases) if f"`{each}`" not in text] == []


def test_without_any_credential_azures_own_chain_is_asked(monkeypatch):
    for name in (NAME, KEY):
        monkeypatch.delenv(name, raising=False)
    made = []
    monkeypatch.setattr("azure.identity.DefaultAzureCredential", lambda: made.append(1) or Tokens())
    with open_store("az://con@acct", engine="sdk") as store:
        assert made == []
        store._container.driver._shared.get()
    assert made == [1]


def test_a_missing_azure_identity_is_named_with_the_command_that_installs_it(monkeypatch):
    from transcript_backends import MissingExtraError

    for name in (NAME, KEY):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setitem(__import__("sys").modules, "azure.identity", None)
    with (
        open_store("az://con@acct") as store,
        pytest.raises(MissingExtraError, match=re.escape("pip install 'transcript-backends[azure]'")),
    ):
        next(store.list_refs())
