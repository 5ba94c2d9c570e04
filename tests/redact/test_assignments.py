"""Values beside names: shell, JSON, YAML, headers, queries, connection strings; and where each of them ends."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spanfold.redact import redact
from tests.redact.samples import SENSITIVE, secret_values

A = "(REDACTED-assignment)"
H = "(REDACTED-header)"


@pytest.mark.contract("AI-094")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # shell, dotenv, Dockerfile, INI, systemd (row 63)
        ("DB_PASSWORD=S1x", f"DB_PASSWORD={A}"),
        ("export API_KEY='a b' # x", f"export API_KEY='{A}' # x"),
        ('ENV CLIENT_SECRET="a b"', f'ENV CLIENT_SECRET="{A}"'),
        ("Environment=DB_PASSWORD=abc", f"Environment=DB_PASSWORD={A}"),
        ("password = hunter2", f"password = {A}"),
        ("PGPASSWORD=abc psql -h x", f"PGPASSWORD={A} psql -h x"),
        ("a=1 SECRET=abc&b=2", f"a=1 SECRET={A}&b=2"),
        ("TOKEN=abc, next", f"TOKEN={A}, next"),
        ("TOKEN=abc. Next", f"TOKEN={A}. Next"),
        # JSON, YAML, TOML, Python and JavaScript literals (row 64)
        ('{"password": "x y", "n": 1}', f'{{"password": "{A}", "n": 1}}'),
        ("{'api_key': 'x', 'n': 1}", f"{{'api_key': '{A}', 'n': 1}}"),
        ("password: s3cr3tpass\nuser: x", f"password: {A}\nuser: x"),
        ("password: 'a'", f"password: '{A}'"),
        ('api_key: str = "abc"', f'api_key: str = "{A}"'),
        ('client = C(api_key="abc", x=1)', f'client = C(api_key="{A}", x=1)'),
        ("password=b'abc', x", f"password=b'{A}', x"),
        ('os.environ["API_KEY"] = "xyz"', f'os.environ["API_KEY"] = "{A}"'),
        ("'secret' => 'abc'", f"'secret' => '{A}'"),
        ('if token == "abc":', f'if token == "{A}":'),
        ('token = """abc"""', f'token = """{A}"""'),
        ('{"token": 123456789}', f'{{"token": "{A}"}}'),
        # escapes: JSON in a string, an escaped quote inside the value, an escaped separator (6.10)
        (r'"{\"password\": \"x\", \"n\": 1}"', rf'"{{\"password\": \"{A}\", \"n\": 1}}"'),
        (r'"{\\\"password\\\": \\\"x\\\"}"', rf'"{{\\\"password\\\": \\\"{A}\\\"}}"'),
        (r'{"password": "ab\"cd"}', f'{{"password": "{A}"}}'),
        (r'{"password": "ab\\"}', f'{{"password": "{A}"}}'),
        (r"line\npassword=abc\nline", rf"line\npassword={A}\nline"),
        (r"x\u0026token=abc\u0026y=1", r"x\u0026token=(REDACTED-url-query)\u0026y=1"),
        ("next%3Ftoken%3Dabc%26x", f"next%3Ftoken%3D{A}%26x"),
        ("\x1b[1mtoken\x1b[0m=\x1b[32mabc\x1b[0m", f"\x1b[1mtoken\x1b[0m=\x1b[32m{A}\x1b[0m"),
        # headers (rows 56 to 58)
        ("Authorization: Basic dXNlcjpwdw==", f"Authorization: Basic {H}"),
        ("Authorization: Bearer abc123def\nAccept: */*", f"Authorization: Bearer {H}\nAccept: */*"),
        ("Proxy-Authorization: Basic dXNlcjpwdw==", f"Proxy-Authorization: Basic {H}"),
        ('{"Authorization": "Bearer x"}', f'{{"Authorization": "Bearer {H}"}}'),
        ('{"authorization": "opaque value"}', f'{{"authorization": "{H}"}}'),
        ('Authorization: Digest username="b", response="a1"', f"Authorization: Digest {H}"),
        (r'"Authorization: Digest username=\"b\", response=\"a1\""', f'"Authorization: Digest {H}"'),
        ("curl -H 'X-Api-Key: abcd1234' url", f"curl -H 'X-Api-Key: {H}' url"),
        ("X-Vault-Token: abcdefghijklmnopqrst", f"X-Vault-Token: {H}"),
        ("Cookie: a=b; c=d\nHost: x", f"Cookie: {H}\nHost: x"),
        ("-H 'Set-Cookie: sid=1; Path=/' x", f"-H 'Set-Cookie: {H}' x"),
        # queries and connection strings (rows 6, 7, 10, 11, 61, 62)
        ("https://h/?access_token=abc&x=1#f", "https://h/?access_token=(REDACTED-url-query)&x=1#f"),
        ("https://h/?id_token=abc#f", "https://h/?id_token=(REDACTED-url-query)#f"),
        ("https://h/b?sv=1&sig=a%2Fb&x=1", "https://h/b?sv=1&sig=(REDACTED-azure-sas)&x=1"),
        ("https://h/b?X-Amz-Signature=ab12&x", "https://h/b?X-Amz-Signature=(REDACTED-aws-session)&x"),
        ("Server=s;Password=a(b,c)d;Database=d", "Server=s;Password=(REDACTED-connection);Database=d"),
        ("DRIVER={x};UID=sa;PWD=abc;", "DRIVER={x};UID=sa;PWD=(REDACTED-connection);"),
        ("AccountName=n;AccountKey=ab+/cd==;E=x", "AccountName=n;AccountKey=(REDACTED-azure-key);E=x"),
        ("host=h user=u password=abc dbname=d", f"host=h user=u password={A} dbname=d"),
        ("aws_secret_access_key = abcdEFGH/12+x", "aws_secret_access_key = (REDACTED-aws-secret)"),
        ("aws_session_token=abc", "aws_session_token=(REDACTED-aws-session)"),
        ("//registry.example/:_authToken=abc", "//registry.example/:_authToken=(REDACTED-npm)"),
        # pairs (6.10)
        ('[{"name": "API_KEY", "value": "x y"}]', f'[{{"name": "API_KEY", "value": "{A}"}}]'),
        (r'{\"name\":\"API_KEY\",\"value\":\"x\"}', rf'{{\"name\":\"API_KEY\",\"value\":\"{A}\"}}'),
    ],
)  # fmt: skip
def test_the_value_is_replaced_and_everything_around_it_stays(text: str, expected: str) -> None:
    assert redact(text) == expected


@pytest.mark.contract("AI-105")
@pytest.mark.parametrize(("name", "token"), [("token:", A), ("Authorization:", H)])
def test_only_a_short_value_without_quotes_is_ever_taken_for_prose(name: str, token: str) -> None:
    """A long one would be read again for each name in it."""
    short, long = "a/" * 250, f"a/{name}" * 50 + "a/" * 250

    assert redact(f"{name}{short} end") == f"{name}{short} end"
    assert redact(f"{name}{long} end") == f"{name}{token} end"


@pytest.mark.contract("AI-101")
@pytest.mark.parametrize(
    "text",
    ['{"a": "TOKEN=", "b": 1}', '["TOKEN="]', '{"a":"TOKEN="}', '{"TOKEN=": 1}', '"TOKEN="', '{"a": "token: ", "b": "c"}',
     r'{\"a\":\"TOKEN=\",\"b\":1}', r'"{\"a\":\"TOKEN=\"}"', "TOKEN=", "TOKEN= ", "password:\n", 'run --token ", "b'],
)  # fmt: skip
def test_a_name_without_a_value_changes_nothing(text: str) -> None:
    assert redact(text) == text


@pytest.mark.contract("AI-102")
@given(value=secret_values(), name=st.sampled_from(["password", "api_key", "token"]))
def test_a_value_before_an_escaped_quote_keeps_the_backslash_and_the_quote(value: str, name: str) -> None:
    text = json.dumps(json.dumps({"command": f'run "{name}={value}" now', "n": 1}))

    redacted = redact(text)

    assert value not in redacted
    assert json.loads(json.loads(redacted)) == {"command": f'run "{name}={A}" now', "n": 1}


@given(value=secret_values(), name=st.sampled_from(SENSITIVE), depth=st.integers(0, 3))
def test_a_value_in_json_is_found_at_every_depth_of_strings(value: str, name: str, depth: int) -> None:
    text = json.dumps({name: value, "next": [1]})
    for _ in range(depth):
        text = json.dumps(text)

    redacted = redact(text)

    assert value not in redacted
    for _ in range(depth):
        redacted = json.loads(redacted)
    document = json.loads(redacted)
    assert document["next"] == [1]
    assert document[name].startswith("(REDACTED-")


@pytest.mark.contract("AI-099")
@pytest.mark.parametrize(
    "text",
    [
        # prose
        "the password is wrong", "bearer of news", "Authorization: the process of granting access", "a secret: nobody knows",
        "cookie: a small text file", "The signature: valid", "use --token to pass one", "set --api-key NAME", "token: yes",
        # code
        "token = get_token()", "token = next(it)", "password: string", "token: Optional[str] = None", "def f(token: str) -> int:",
        "for token in tokens:", "token = tokens[0]", "self.token = token", "f(api_key=settings.api_key, token=token)",
        "password=args.password", "secret = os.environ['X']", "signature = sha256", "token=self._token,", "std::token::kind",
        # counts and settings
        "max_tokens=4096", '"input_tokens": 12, "output_tokens": 3', "tokens: 12345678", "token=5", "cache_key=abcdef123456",
        # shell
        "TOKEN=$OTHER", "password: ${PW}", 'curl -H "Authorization: Bearer $TOKEN"', "cd /x; PWD=/tmp/a; OLDPWD=/b", "PWD=/home/x",
        # queries
        "?code=404", "&code=en", "https://h/?sort=token&x=1",
    ],
)  # fmt: skip
def test_what_holds_no_secret_stays(text: str) -> None:
    assert redact(text) is text


@given(value=secret_values())
def test_an_odbc_password_is_no_folder(value: str) -> None:
    assert redact(f"Driver=x;Uid=sa;PWD={value};") == "Driver=x;Uid=sa;PWD=(REDACTED-connection);"
