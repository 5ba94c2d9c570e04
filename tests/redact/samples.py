"""Secrets made up from the shapes of the rules, so that none is stored here, and texts to hide them in."""

import json
import random
import re
from re import _parser  # type: ignore[attr-defined]  # the only parser of Python's own syntax
from typing import Any

import orjson
from hypothesis import strategies as st

from spanfold.redact._tokens import SHAPES, TokenShape

WORD = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
TOKEN = re.compile(r"\(REDACTED-[a-z0-9-]{1,32}\)")


def sample(pattern: str, source: random.Random) -> str:
    """Return a random text that the pattern matches as a whole; hypothesis has `from_regex`, which is far slower."""
    return _sample(_parser.parse(pattern), source)


def _sample(parsed: Any, source: random.Random) -> str:
    return "".join(_piece(str(operation), argument, source) for operation, argument in parsed)


def _piece(operation: str, argument: Any, source: random.Random) -> str:
    match operation:
        case "LITERAL":
            return chr(argument)
        case "IN":
            return source.choice([c for item in argument for c in _members(*item)])
        case "MAX_REPEAT":
            least, most, inner = argument
            return "".join(_sample(inner, source) for _ in range(source.randint(least, min(most, least + 4))))
        case "SUBPATTERN":
            return _sample(argument[3], source)
        case "BRANCH":
            return _sample(source.choice(argument[1]), source)
    raise NotImplementedError(operation)


def _members(operation: Any, argument: Any) -> list[str]:
    first, last = argument if str(operation) == "RANGE" else (argument, argument)
    return [chr(code) for code in range(first, last + 1)]


def shaped(shape: TokenShape) -> st.SearchStrategy[str]:
    return st.integers(0, 2**32).map(lambda seed: sample(shape.start + shape.rest, random.Random(seed)))


def words(alphabet: str = WORD, *, least: int, most: int | None = None) -> st.SearchStrategy[str]:
    return st.text(alphabet, min_size=least, max_size=most or least + 8)


def secret_values() -> st.SearchStrategy[str]:
    """Values no placeholder looks like: a marker, and odd characters around it that end no value."""
    return st.tuples(words(least=3), st.sampled_from(["7!", "8+/", "9=", "4_-", "5%"]), words(least=4)).map("".join)


def json_web_tokens() -> st.SearchStrategy[str]:
    part = words(WORD + "_-", least=6)
    return st.tuples(part, part, part).map(lambda parts: "eyJ" + ".".join(parts))


def private_keys() -> st.SearchStrategy[str]:
    def block(drawn: tuple[str, list[str], str, str]) -> str:
        label, lines, last, line_break = drawn
        body = line_break.join([*lines, last])
        rule = "-" * 5
        return f"{rule}BEGIN {label}PRIVATE KEY{rule}{line_break}{body}{line_break}{rule}END {label}PRIVATE KEY{rule}"

    label = st.sampled_from(["", "RSA ", "EC ", "OPENSSH ", "ENCRYPTED "])
    lines = st.lists(st.text(WORD + "+/", min_size=64, max_size=64), min_size=1, max_size=4)
    last = words(WORD + "+/", least=5).map(lambda text: text + "==")
    return st.tuples(label, lines, last, st.sampled_from(["\n", "\r\n", r"\n"])).map(block)


SENSITIVE = (
    *(
        "password",
        "API_KEY",
        "apiKey",
        "api-key",
        "clientSecret",
        "AWS_SECRET_ACCESS_KEY",
        "token",
        "X-Auth-Token",
        "dsn",
    ),
    *(
        "PGPASSWORD",
        "refresh_token",
        "Authorization",
        "authorization",
        "Cookie",
        "sig",
        "connection_string",
        "pwd",
        "Pwd",
    ),
    *("credentials", "webhook_url", "private_key", "DB_PASSWORD_2", "SharedAccessKey", "_authToken", "access_key_id"),
)
HARMLESS = (
    "max_tokens",
    "output_tokens",
    "author",
    "tokenizer",
    "public_key",
    "cache_key",
    "name",
    "value",
    "PWD",
    "key",
)
SEPARATORS = (
    "=",
    ": ",
    ":",
    " = ",
    " : ",
    "=>",
    ":=",
    '": "',
    '":"',
    "': '",
    '" : "',
    '\\": \\"',
    "%3D",
    "\\u003d",
    "\t=\t",
)
FILLERS = (
    *(
        "\n",
        "\r\n",
        "\t",
        " ",
        "  ",
        ",",
        ";",
        "&",
        "|",
        '"',
        "'",
        "`",
        "\\",
        "\\n",
        '\\"',
        '\\\\\\"',
        "(",
        ")",
        "[",
        "]",
    ),
    *(
        "{",
        "}",
        "<",
        ">",
        "%20",
        "%26",
        "\\u0026",
        "\x1b[31m",
        "\x1b[0m",
        "\x00",
        "\x7f",
        "é",
        "\u2028",
        "😀",
        "-",
        "_",
        "=",
    ),
    *(
        "://",
        "@",
        "https://host.example/",
        "?",
        "#",
        "$",
        "${X}",
        "null",
        "***",
        "(REDACTED-github)",
        "(REDACTED-",
        "x",
    ),
    *(
        "the password is wrong ",
        "bearer of news ",
        "Bearer ",
        "curl ",
        "mysql ",
        "sshpass ",
        "docker login ",
        " -p",
        " -p ",
    ),
    *(" -u ", "-H ", "--", "Basic ", '"name": ', '"value": ', "def f(x): return x[0]\n", "-----BEGIN PRIVATE KEY-----"),
    *("Private-Lines: 2\n", "sk-", "ghp_", "eyJ", "key-", "SK", ".", "code=", "us1", "\ud800"),
)


def assignments() -> st.SearchStrategy[str]:
    return st.tuples(
        st.sampled_from(["", "export ", "--", "?", "&", "\\u0026", ";", '{"', "{'", '{\\"', "spring."]),
        st.sampled_from(SENSITIVE + HARMLESS),
        st.sampled_from(SEPARATORS),
        st.sampled_from(["", "Bearer ", "Basic ", '"', "'", '\\"', "b'"]),
        secret_values(),
        st.sampled_from(["", '"', "'", '\\"', '"}', ";", "&x=1", " ", ";Database=x"]),
    ).map("".join)


def urls() -> st.SearchStrategy[str]:
    user = st.sampled_from(["", "user", "x-access-token"])
    return st.one_of(
        st.tuples(st.just("postgres://"), user, st.just(":"), secret_values(), st.just("@host/db")).map("".join),
        words(least=24).map(lambda text: f"https://{text}@host/"),
        words(least=24).map(lambda text: f"https://hooks.slack.com/services/T01/B02/{text}"),
        words(least=12).map(lambda text: f"https://host/cb?code={text}&state=1"),
        words(least=18).map(lambda text: f"Bearer 7{text}"),
    )


def commands() -> st.SearchStrategy[str]:
    return st.tuples(
        st.sampled_from(
            ["tool --password ", "tool --api-key ", "mysql -uroot -p", "sshpass -p ", "curl -u bob:", "x --token '"]
        ),
        secret_values(),
    ).map("".join)


def secrets() -> st.SearchStrategy[str]:
    tokens = st.sampled_from(SHAPES).flatmap(shaped)
    return st.one_of(tokens, json_web_tokens(), assignments(), urls(), commands(), private_keys())


def texts(*extra: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Random mixtures of secrets, parts of secrets, separators, quotes, escapes and replacement tokens."""
    part = st.one_of(
        secrets(), st.sampled_from(FILLERS), st.sampled_from(SENSITIVE), st.sampled_from(SEPARATORS), *extra
    )
    return st.lists(part, min_size=1, max_size=7).map("".join)


def documents(*extra: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    """Nested JSON documents with sensitive and harmless keys."""
    leaves = st.one_of(
        st.none(), st.booleans(), st.integers(-(2**53), 2**53), st.floats(allow_nan=False, allow_infinity=False),
        texts(*extra), secret_values(), st.sampled_from(SENSITIVE), *extra,
    )  # fmt: skip
    keys = st.one_of(st.sampled_from(SENSITIVE + HARMLESS), secrets(), st.text(max_size=5), *extra)
    pair = st.tuples(st.sampled_from(SENSITIVE), secret_values()).map(lambda pair: {"name": pair[0], "value": pair[1]})
    argv = st.lists(
        st.one_of(
            secret_values(), st.sampled_from(["-u", "--token", "-p", "mysql", "curl", "-H", "a:b7c8d9", "-psecret7"])
        ),
        max_size=6,
    )
    return st.recursive(
        st.one_of(leaves, pair, argv),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4),
        max_leaves=12,
    )


def escaped(text: str) -> list[bytes]:
    """The ways a text stands in a serialised line: as it is, escaped once, and escaped twice."""
    once = [json.dumps(text)]
    if text.isprintable() or not any("\ud800" <= character <= "\udfff" for character in text):
        once.append(orjson.dumps(text).decode())
    forms = [
        text,
        *once,
        *(json.dumps(form) for form in once),
        *(json.dumps(form, ensure_ascii=False) for form in once),
    ]
    return [form.encode("utf-8", "surrogatepass") for form in forms]
