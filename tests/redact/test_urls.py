"""Secrets in URLs and bearer tokens in running text."""

import pytest
from hypothesis import given

from spanfold.redact import redact
from tests.redact.samples import secret_values, words

U = "(REDACTED-url-userinfo)"
LONG = "a1B2c3D4e5F6g7H8i9J0k1"


@pytest.mark.contract("AI-094")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("postgres://u:p4ss@h/db?x=1", f"postgres://u:{U}@h/db?x=1"),
        ("redis://:p4ss@h:6379/0", f"redis://:{U}@h:6379/0"),
        ("mongodb+srv://u:p4ss@h,h2/db", f"mongodb+srv://u:{U}@h,h2/db"),
        ("https://u:p@ss@h/", f"https://u:{U}@h/"),
        ('"https:\\/\\/u:p4ss@h\\/x"', f'"https:\\/\\/u:{U}@h\\/x"'),
        (f"https://{LONG}@h/x", f"https://{U}@h/x"),
        (f"https://{LONG}:p4ss@h/x", f"https://{U}:{U}@h/x"),
        (f"https://hooks.slack.com/services/T01/B01/{LONG}?x", "https://hooks.slack.com/services/(REDACTED-webhook)?x"),
        (f"https://discord.com/api/webhooks/1234567890/{LONG} y", "https://discord.com/api/webhooks/1234567890/(REDACTED-webhook) y"),
        (f"https://x.webhook.office.com/webhookb2/{LONG}/y", "https://x.webhook.office.com/webhookb2/(REDACTED-webhook)"),
        ("https://h/cb?code=abcd1234&state=x", "https://h/cb?code=(REDACTED-url-query)&state=x"),
        (f"say Bearer {LONG}. Then", "say Bearer (REDACTED-bearer). Then"),
        (f"auth=bearer%20{LONG}&x", "auth=bearer%20(REDACTED-bearer)&x"),
        (r"\nBearer a1b2c3d4e5f6g7h8", r"\nBearer (REDACTED-bearer)"),
    ],
)  # fmt: skip
def test_the_secret_part_is_replaced_and_the_rest_of_the_url_stays(text: str, expected: str) -> None:
    assert redact(text) == expected


@pytest.mark.contract("AI-099")
@pytest.mark.parametrize(
    "text",
    ["https://host.example:8443/a/b?x=1&y=2#part", "git@host.example:owner/repo.git", "ssh://git@host.example/x",
     "mail a.b@host.example", "https://host/@scope/package@1.2.3", "https://u:${PASSWORD}@h", "https://u:$PW@h/",
     "https://<user>:<password>@h", "https://u:***@h", "https://u:(REDACTED-url-userinfo)@h", "https://(REDACTED-github)@h",
     "bearer of bad news and worse", "Bearer authentication-is-required", "https://hooks.slack.com/docs", "?code=SHORT"],
)  # fmt: skip
def test_urls_without_secrets_stay(text: str) -> None:
    assert redact(text) is text


@pytest.mark.case("C-061", "C-066")
@given(password=secret_values().filter(lambda text: "/" not in text))
def test_any_password_in_a_url_is_replaced(password: str) -> None:
    assert (
        redact(f"cannot reach postgres://user:{password}@host/db now")
        == f"cannot reach postgres://user:{U}@host/db now"
    )


@given(user=words(least=1, most=19))
def test_a_short_user_without_a_password_stays(user: str) -> None:
    assert redact(f"ssh://{user}@host/x") == f"ssh://{user}@host/x"
