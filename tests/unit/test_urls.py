from __future__ import annotations

import contextlib
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from transcript_backends import InvalidURLError, open_store
from transcript_backends.urls import Setting, StoreURL, as_root, parse, settings

CANARY = "c4n4ry"

# --- what is read -----------------------------------------------------------------------------------------------------

READ = [
    ("s3://bucket", "s3", "bucket", "", {}),
    ("s3://bucket/", "s3", "bucket", "", {}),
    ("S3://Bucket.x-1/p", "s3", "Bucket.x-1", "p/", {}),
    ("s3a://bucket/a/b/", "s3a", "bucket", "a/b/", {}),
    ("gs://bucket/p", "gs", "bucket", "p/", {}),
    ("fsspec+sftp://host/p", "fsspec+sftp", "host", "p/", {}),
    ("s3://b/p?region=eu-west-1&anon=true", "s3", "b", "p/", {"region": "eu-west-1", "anon": "true"}),
    ("s3://b?region=eu", "s3", "b", "", {"region": "eu"}),
    ("s3://b/p?", "s3", "b", "p/", {}),
    ("s3://b/p?a=x+y%20z%2Bq&b=c=d", "s3", "b", "p/", {"a": "x+y z+q", "b": "c=d"}),
    ("s3://b/p?endpoint_url=http://localhost:9000/x", "s3", "b", "p/", {"endpoint_url": "http://localhost:9000/x"}),
    ("s3://b/p?%61=1", "s3", "b", "p/", {"a": "1"}),
    ("s3://b/a%20b+c%252Fd/%E6%97%A5", "s3", "b", "a b+c%2Fd/日/", {}),
    ("s3://b/日本 x/a=b", "s3", "b", "日本 x/a=b/", {}),
    ("s3://b/%zz", "s3", "b", "%zz/", {}),
    ("s3://b/a@b:c", "s3", "b", "a@b:c/", {}),
    ("s3://b/{tenant}/{user_id}/t", "s3", "b", "{tenant}/{user_id}/t/", {}),
    ("s3://b/%7Btenant%7D", "s3", "b", "{tenant}/", {}),
    ("memory://", "memory", "", "", {}),
    ("memory:///p", "memory", "", "p/", {}),
    ("memory://name/p/q", "memory", "name", "p/q/", {}),
    ("file:///var/data", "file", "/var/data", "", {}),
    ("file:///var/data/", "file", "/var/data", "", {}),
    ("file://localhost/var/data", "file", "/var/data", "", {}),
    ("local:///var/data", "local", "/var/data", "", {}),
    ("file:/var/data", "file", "/var/data", "", {}),
    ("FILE:/var/data?conditional_writes=off", "file", "/var/data", "", {"conditional_writes": "off"}),
    ("file:///a%20b/%25", "file", "/a b/%", "", {}),
    ("file:///C:/data", "file", "/C:/data", "", {}),
    ("file:///data/{tenant}/x", "file", "/data", "{tenant}/x/", {}),
    ("file:///{tenant}", "file", "/", "{tenant}/", {}),
    ("az://container/p", "az", "container", "p/", {}),
    ("azure://container?account_name=acct", "azure", "container", "", {"account_name": "acct"}),
    ("/var/data", "file", "/var/data", "", {}),
    ("/var/data/", "file", "/var/data", "", {}),
    ("/var/a%20b/c?d=e&f#g", "file", "/var/a%20b/c?d=e&f#g", "", {}),
    ("/var/me@host/s3:", "file", "/var/me@host/s3:", "", {}),
    ("/data/{tenant}", "file", "/data", "{tenant}/", {}),
]  # fmt: skip


@pytest.mark.parametrize(("url", "scheme", "container", "root", "query"), READ)
def test_a_url_is_read(url, scheme, container, root, query):
    found = parse(url)
    assert (found.scheme, found.container, found.root, dict(found.query)) == (scheme, container, root, query)
    again = parse(str(found))
    assert (again.scheme, again.container, again.root, dict(again.query)) == (scheme, container, root, {})


WITH_ACCOUNT = [
    ("az://c1@acct.blob.core.windows.net/p", "az", "c1", "acct.blob.core.windows.net", "p/"),
    ("az://c1@acct", "az", "c1", "acct", ""),
    ("azure://c1@acct/", "azure", "c1", "acct", ""),
    ("abfs://c1@acct.dfs.core.windows.net/a@b:c", "abfs", "c1", "acct.dfs.core.windows.net", "a@b:c/"),
    ("ABFSS://c-1@Acct.DFS.core.chinacloudapi.cn/a%20b", "abfss", "c-1", "acct.dfs.core.chinacloudapi.cn", "a b/"),
    ("az://c1@acct-secondary.z12.blob.storage.azure.net", "az", "c1", "acct-secondary.z12.blob.storage.azure.net", ""),
    ("https://acct.blob.core.windows.net/c1/a/b", "https", "c1", "acct.blob.core.windows.net", "a/b/"),
    ("https://acct.dfs.core.usgovcloudapi.net/c1/", "https", "c1", "acct.dfs.core.usgovcloudapi.net", ""),
    ("HTTPS://ACCT.blob.core.windows.net/c1/{tenant}?anon=true", "https", "c1", "acct.blob.core.windows.net", "{tenant}/"),
]


@pytest.mark.parametrize(("url", "scheme", "container", "host", "root"), WITH_ACCOUNT)
def test_a_url_may_name_the_account_of_azure(url, scheme, container, host, root):
    found = parse(url)
    assert (found.scheme, found.container, found.host, found.root) == (scheme, container, host, root)
    assert parse(str(found)) == StoreURL(scheme, container, root, host=host)


segments = st.text(st.characters(exclude_categories=["Cs",
"Cc"], exclude_characters="/\\{}"), min_size=1, max_size=8).filter(lambda each: each not in (".", "..")) | st.sampled_from(
    ["{tenant}", "%2F", "%", "a%41", "+", " ", "#", "?", "@", "..."]
)  # fmt: skip
roots = st.lists(segments, max_size=4).map(lambda parts: "".join(f"{each}/" for each in parts))


@given(
    st.sampled_from(["s3", "gs", "memory"]),
    st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,9}", fullmatch=True),
    roots,
    st.booleans(),
)
def test_the_text_of_a_url_names_the_same_location(scheme, container, root, with_query):
    url = StoreURL(scheme, container, root, {"region": CANARY} if with_query else {})
    assert parse(str(url)) == StoreURL(scheme, container, root)
    assert CANARY not in str(url)


@given(
    st.sampled_from(["az", "azure", "abfs", "abfss", "https"]),
    st.from_regex(r"[a-z0-9][a-z0-9-]{2,9}", fullmatch=True),
    st.from_regex(r"[a-z0-9]{3,9}\.(blob|dfs)\.[a-z]{2,5}\.[a-z]{2,3}", fullmatch=True),
    roots,
)
def test_the_text_of_a_url_with_an_account_names_the_same_location(scheme, container, host, root):
    url = StoreURL(scheme, container, root, host=host)
    assert parse(str(url)) == url


@given(st.sampled_from(["file", "local"]), st.lists(segments, min_size=1, max_size=5))
@example("file", ["{tenant}"])
def test_the_text_of_a_directory_names_the_same_directory(scheme, parts):
    plain = next((i for i, each in enumerate(parts) if each == "{tenant}"), len(parts))
    url = StoreURL(scheme, "/" + "/".join(parts[:plain]), "".join(f"{each}/" for each in parts[plain:]))
    assert parse(str(url)) == url


@given(st.lists(segments, min_size=1, max_size=5).map(lambda parts: "/" + "/".join(parts)))
def test_a_bare_absolute_path_is_taken_literally(path):
    if path != path.strip():
        return
    found = parse(path)
    assert f"{found.container.rstrip('/')}/{found.root}".rstrip("/") == path


@given(st.text(max_size=30) | st.text("s3:/@?#%&=ab\\{}.+ ", max_size=20).map("s3://b".__add__))
def test_any_text_is_read_or_refused(text):
    found = None
    with contextlib.suppress(InvalidURLError):
        found = parse(text)
    if found:
        assert parse(str(found)) == StoreURL(found.scheme, found.container, found.root, host=found.host)


# --- what is refused --------------------------------------------------------------------------------------------------

REFUSED = [
    ("", "empty; write s3://bucket/prefix"),
    ("  ", "empty"),
    ("bucket/p", "is not a store URL; write scheme://container/prefix"),
    ("s3:bucket", "is not a store URL"),
    ("s3:/bucket/p", "is not a store URL"),
    ("://b", "is not a store URL"),
    ("3s://b", "is not a store URL"),
    ("var/data", "or an absolute path"),
    ("./data", "or an absolute path"),
    ("C:\\data", "is not a store URL"),
    ("s3://", "names no bucket or container; write s3://name/prefix"),
    ("s3:///p", "names no bucket"),
    ("s3://?region=eu", "names no bucket"),
    ("s3:// /p", "is no name for a bucket"),
    ("s3://b:9000/p", "a server's address goes into ?endpoint_url="),
    ("s3://{tenant}/p", "is no name for a bucket"),
    ("s3://b%41/p", "is no name for a bucket"),
    ("az://c1@host.example/p", "'host.example' in 'az://c1@host.example/p' is no account of Azure; write az://c1@account/prefix"),
    ("az://c1@acct.", "is no account of Azure"),
    ("az://c1@.blob.core.windows.net", "is no account of Azure"),
    ("az://c1@a.file.core.windows.net/p", "is no account of Azure"),
    ("az://-c@acct/p", "is no name for a bucket or container"),
    ("https://host.example/c1/p", "'https://host.example/c1/p' is no container of Azure; write https://account.blob.core"),
    ("https://acct.blob.core.windows.net", "is no container of Azure"),
    ("https://acct.blob.core.windows.net/", "is no container of Azure"),
    ("https://acct.blob.core.windows.net/$web/p", "is no container of Azure"),
    ("https://acct.blob.core.windows.net:443/c1", "is no container of Azure"),
    ("https://acct/c1", "is no container of Azure"),
    ("s3://-b/p", "is no name for a bucket"),
    ("s3://bü/p", "is no name for a bucket"),
    ("s3://b\\c/p", "is no name for a bucket"),
    ("s3://[::1]/p", "is no name for a bucket"),
    ("s3://b/p#x", "holds a '#'; write it as %23"),
    ("s3://b/p?region=eu#x", "holds a '#'"),
    (" s3://b", "blanks around it"),
    ("s3://b/p ", "blanks around it"),
    ("s3://b/p\n", "control characters"),
    ("s3://b/a\x00b", "control characters"),
    ("s3://b/a\x85b", "control characters"),
    ("s3://b/\ud800", "control characters"),
    ("/var/\udcff", "control characters"),
    ("s3://b/%00", "a control character"),
    ("s3://b/%0A", "a control character"),
    ("s3://b/%C2%85", "a control character"),
    ("s3://b/a//b", "an empty, '.' or '..' segment"),
    ("s3://b//a", "an empty"),
    ("s3://b//", "an empty"),
    ("s3://b/a//", "an empty"),
    ("s3://b/./a", "an empty"),
    ("s3://b/a/..", "an empty"),
    ("s3://b/%2e%2e/a", "an empty"),
    ("s3://b/%2E", "an empty"),
    ("s3://b/a%2Fb", "holds a slash, a backslash"),
    ("s3://b/a%5Cb", "holds a slash, a backslash"),
    ("s3://b/a\\b", "holds a slash, a backslash"),
    ("s3://b/x{tenant}", "mixes text and braces: a placeholder is a whole segment"),
    ("s3://b/{}", "mixes text and braces"),
    ("s3://b/{1x}", "mixes text and braces"),
    ("s3://b/{a", "mixes text and braces"),
    ("s3://b/%FF", "is not UTF-8"),
    ("s3://b/%ED%A0%80", "is not UTF-8"),
    ("s3://b?region=%FF", "is not UTF-8"),
    ("s3://b?region", "parameter 1 of 's3://b' is not of the form name=value"),
    ("s3://b?a=1&", "parameter 2 of"),
    ("s3://b?=x", "parameter 1 of"),
    ("s3://b?region=", "parameter 'region' of 's3://b' has no value"),
    ("s3://b?region=a&region=a", "parameter 'region' of 's3://b' is given twice"),
    ("s3://b?region=a&%72egion=b", "is given twice"),
    ("file://", "names no directory; write file:///absolute/path"),
    ("file:///", "names no directory"),
    ("/", "names no directory"),
    ("file://data/x", "names a host, 'data': a directory is written with three slashes and absolute, file:///data/x"),
    ("file://./x", "names a host"),
    ("file://server:80/x", "names a host"),
    ("file:data/x", "is not a store URL"),
    ("//server/x", "an empty"),
    ("file:////x", "an empty"),
    ("/var/../etc", "an empty, '.' or '..' segment"),
    ("/var//x", "an empty"),
    ("/a\\b", "a backslash"),
    ("file:///a%2F..%2Fetc", "holds a slash"),
]  # fmt: skip


@pytest.mark.parametrize(("url", "why"), REFUSED)
def test_a_url_that_means_nothing_is_refused_with_the_cause(url, why):
    with pytest.raises(InvalidURLError, match=re.escape(why)):
        parse(url)


@pytest.mark.parametrize("url", [5, b"s3://b", ["s3://b"]])
def test_a_url_that_is_no_text_is_refused_with_its_type(url):
    with pytest.raises(InvalidURLError, match=f"is text, not {type(url).__name__}"):
        parse(url)


@pytest.mark.parametrize(
    "url",
    [
        "s3://{0}@b/p",
        "s3://key:{0}@b/p",
        "s3://key:{0}/with/slashes@b/p",
        "s3://key:{0}?@b/p",
        "s3://key:a?{0}@b/p",
        "s3://{0}:#@b/p",
        "s3://key:{0}@b:9000/p?region=eu",
        "s3://key:{0}/x@b/p\n",
        "file://me:{0}@host/x",
        "https://me:{0}@host/x",
        "az://{0}:x@acct/p",
        "az://c1:{0}@acct/p",
        "az://c1@acct:{0}@host/p",
        "az://C{0}@acct/p",
        "gs://{0}@acct/p",
        "https://{0}@acct.blob.core.windows.net/c1",
        "https://acct.blob.core.windows.net/c1?sp=r&sv=1&sig={0}",
        "https://acct.blob.core.windows.net/c1?sig={0}",
        "az://c1@acct?connection_string_env={0}",
        "s3:key:{0}@b",
        "key:{0}@b/p",
        "s3://b?{0}",
        "s3://b?region=a&{0}",
        "s3://b?region=a&region={0}",
        "s3://b/p?region={0}#x",
        "s3://b//p?x={0}",
        "nope://b?x={0}",
        "s3://b?region=eu&regoin={0}",
        "s3://b?max_attempts={0}",
        "s3://b?anon={0}",
        "s3://b?addressing_style={0}",
        "s3://b?endpoint_url={0}",
        "s3://b?endpoint_url=http://u:{0}@h",
        "s3://b?endpoint_url=http://h?x={0}",
        "s3://b?secret_access_key_env={0}",
    ],
)
def test_a_refusal_never_repeats_what_may_be_a_secret(url):
    with pytest.raises(InvalidURLError) as caught:
        open_store(url.format(CANARY))
    error = caught.value
    while error:
        assert CANARY not in repr(error)
        error = error.__cause__ or error.__context__


@pytest.mark.parametrize(
    "name",
    ["key", "secret", "token", "password", "passwd", "pwd", "sas", "sas_token", "sig", "SIG", "sv", "credential", "credentials",
    "connection_string", "ConnectionString",
     "se", "sp", "sr", "st", "spr", "srt", "si", "sip", "ske", "skoid", "sktid",
     "X-Amz-Signature", "x-amz-date", "X-Goog-Credential", "account_key", "aws_secret_access_key", "session_token",
     "secret_access_key", "access_key_id", "aws_access_key_id"],
)  # fmt: skip
def test_a_secret_in_a_url_is_refused_by_its_name_and_never_shown(name):
    with pytest.raises(
        InvalidURLError, match=f"parameter '{name}' in 's3://b/p' looks like a secret.*pass it as an argument"
    ) as caught:
        open_store(f"s3://b/p?{name}={CANARY}")
    assert CANARY not in str(caught.value)


@pytest.mark.parametrize(
    ("prefix", "root"), [("", ""), ("a", "a/"), ("a/b/", "a/b/"), ("a%20b", "a%20b/"), ("{t}/x", "{t}/x/")]
)
def test_a_prefix_beside_a_client_is_taken_literally(prefix, root):
    assert as_root(prefix) == root


@pytest.mark.parametrize("prefix", ["/", "/a", "a//b", "..", "a/./b", "a\\b", "a\nb", "x{t}", "\ud800"])
def test_a_prefix_that_is_none_is_refused(prefix):
    with pytest.raises(InvalidURLError):
        as_root(prefix)


# --- settings ---------------------------------------------------------------------------------------------------------

KNOWN = (
    Setting("region", aliases=("region_name", "aws_region")),
    Setting("style", choices=("auto", "path")),
    Setting("anon", "bool", ("anonymous",)),
    Setting("attempts", "int"),
    Setting("timeout", "seconds"),
    Setting("endpoint_url", "url", ("endpoint",)),
    Setting("client", "object"),
    Setting("api_secret", aliases=("the_secret",), secret=True),
)


def read(query="", environment=None, **options):
    return settings(parse(f"s3://b/p?{query}"), options, KNOWN, environment or {})


@pytest.mark.parametrize(
    ("query", "options", "found"),
    [
        ("", {}, {}),
        ("region=a", {}, {"region": "a"}),
        ("region_name=a", {}, {"region": "a"}),
        ("region=a", {"region": "b"}, {"region": "b"}),
        ("aws_region=a", {"region_name": "b"}, {"region": "b"}),
        ("region=a", {"region": None}, {"region": "a"}),
        ("", {"region": None, "api_secret": None, "client": None, "api_secret_env": None}, {}),
        ("style=path&anon=Yes&attempts=3&timeout=0.5", {}, {"style": "path", "anon": True, "attempts": 3, "timeout": 0.5}),
        (
            "timeout=2",
            {"attempts": 2, "anon": False, "api_secret": "x"},
            {"timeout": 2.0, "attempts": 2, "anon": False, "api_secret": "x"},
        ),
        ("anon=1", {}, {"anon": True}),
        ("anon=FALSE", {}, {"anon": False}),
        ("anon=0", {}, {"anon": False}),
        ("anonymous=no", {}, {"anon": False}),
        ("", {"anon": "true", "attempts": "7", "timeout": "1.5"}, {"anon": True, "attempts": 7, "timeout": 1.5}),
        ("", {"timeout": 3}, {"timeout": 3.0}),
        ("endpoint=http://localhost:9000/", {}, {"endpoint_url": "http://localhost:9000"}),
        ("endpoint_url=https://[::1]:9000/x/", {}, {"endpoint_url": "https://[::1]:9000/x"}),
        ("api_secret_env=MY_VARIABLE", {}, {"api_secret": "from the environment"}),
        ("", {"api_secret_env": "MY_VARIABLE"}, {"api_secret": "from the environment"}),
        ("api_secret_env=MY_VARIABLE", {"api_secret": "x"}, {"api_secret": "x"}),
    ],
)
def test_settings_come_from_the_arguments_before_the_url(query, options, found):
    assert read(query, {"MY_VARIABLE": "from the environment"}, **options) == found


def test_an_object_is_passed_on_as_it_is():
    client = object()
    assert read(client=client)["client"] is client


@pytest.mark.parametrize(
    ("query", "options", "why"),
    [
        ("region=a&aws_region=a", {}, "region is given twice in 's3://b/p' (as 'aws_region' too)"),
        ("", {"region": "a", "region_name": "b"}, "region is given twice among the arguments (as 'region_name' too)"),
        ("", {"api_secret": "x", "api_secret_env": "MY_VARIABLE"}, "api_secret is given twice"),
        ("regoin=a", {}, "unknown setting 'regoin' in 's3://b/p'; did you mean region?"),
        ("", {"time_out": 1}, "unknown setting 'time_out' among the arguments; did you mean timeout?"),
        ("Region=a", {}, "did you mean region?"),
        ("zzz=a", {}, "did you mean anon, attempts, endpoint_url, region, style, timeout?"),
        ("client=x", {}, "unknown setting 'client'"),
        ("api_secret_env=UNSET", {}, "api_secret_env names an environment variable that is not set"),
        ("", {"api_secret_env": 5}, "api_secret_env names an environment variable that is not set"),
        ("region_env=MY_VARIABLE", {}, "unknown setting 'region_env'"),
        ("style=auto,path", {}, "style in 's3://b/p' must be one of auto, path"),
        ("style=Path", {}, "must be one of auto, path"),
        ("", {"region": 5}, "region among the arguments must be text"),
        ("", {"api_secret": b"x"}, "api_secret among the arguments must be text"),
        ("endpoint_url=localhost:9000", {}, "endpoint_url must be http://host[:port] or https://host[:port]"),
        ("endpoint_url=ftp://h", {}, "endpoint_url must be http"),
        ("endpoint_url=http://", {}, "endpoint_url must be http"),
        ("endpoint_url=http://:9000", {}, "endpoint_url must be http"),
        ("endpoint_url=http://h:0", {}, "endpoint_url must be http"),
        ("endpoint_url=http://h:99999", {}, "endpoint_url must be http"),
        ("endpoint_url=http://h:x", {}, "endpoint_url must be http"),
        ("endpoint_url=http://[::1", {}, "endpoint_url must be http"),
        ("", {"endpoint_url": "http://h\n"}, "endpoint_url must be http"),
        ("", {"endpoint_url": 5}, "endpoint_url among the arguments must be text"),
        ("endpoint_url=http://u:p@h", {}, "endpoint_url holds user information or parameters"),
        ("endpoint_url=http://@h", {}, "endpoint_url holds user information"),
        ("endpoint_url=http://h?x=1", {}, "endpoint_url holds user information or parameters"),
        ("", {"endpoint_url": "http://h#x"}, "endpoint_url holds user information or parameters"),
    ],
)  # fmt: skip
def test_a_setting_that_is_none_is_refused_with_the_cause(query, options, why):
    with pytest.raises(InvalidURLError, match=re.escape(why)):
        read(query, {"MY_VARIABLE": "x"}, **options)


WRONG = {
    "anon": ("must be true or false", ["2", "on", "y", "t rue", "１", 1, 0, [], 1.0]),
    "attempts": ("must be a whole number above 0", ["0", "-1", "+1", "1.5", " 1", "1_0", "١", "1e3", "x", "9" * 5000, 0, -1,
    True, 1.0, [], float("nan")]),
    "timeout": ("must be a number of seconds above 0", ["0", "-1", "+1", "nan", "inf", "1e400", " 1", "1_0", "١", "x", 0, 0.0,
    -1, True, float("nan"), float("inf"), []]),
}  # fmt: skip


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, (_, values) in WRONG.items() for value in values])
def test_a_value_of_the_wrong_kind_is_refused_and_never_shown(name, value):
    with pytest.raises(InvalidURLError, match=f"{name} among the arguments {WRONG[name][0]}$"):
        read(**{name: value})


# --- endpoints, as open_store judges them -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "endpoint", ["https://b.s3.eu-west-1.amazonaws.com", "https://B.s3.eu-west-1.amazonaws.com", "http://b.localhost:9000"]
)
def test_an_endpoint_that_names_the_bucket_is_refused(endpoint):
    with pytest.raises(InvalidURLError, match="names the bucket 'b' in its host already; leave it out"):
        open_store(f"s3://b/p?endpoint_url={endpoint}")


@pytest.mark.parametrize("url", ["s3://minio?endpoint_url=https://minio.example", "s3://b?endpoint_url=https://bb.s3.example"])
def test_an_endpoint_whose_host_merely_begins_like_the_bucket_is_fine(url):
    open_store(url).close()


@pytest.mark.parametrize("host", ["minio.example", "10.0.0.1:9000", "localhost.example", "127.0.0.1.example"])
def test_plain_http_beyond_this_machine_has_to_be_allowed(host):
    with pytest.raises(InvalidURLError, match="use https, or allow_http=true"):
        open_store(f"s3://b/p?endpoint_url=http://{host}")
    open_store(f"s3://b/p?endpoint_url=http://{host}&allow_http=true").close()


@pytest.mark.parametrize(
    "endpoint", ["http://localhost:9000", "http://127.0.0.1:9000", "http://[::1]:9000", "https://minio.example"]
)
def test_plain_http_on_this_machine_and_https_are_fine(endpoint):
    open_store(f"s3://b/p?endpoint_url={endpoint}").close()
