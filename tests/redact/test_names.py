"""Which names are sensitive, and which values are plain under them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spanfold.redact import Redactor, redact, redact_dict

REDACTOR = Redactor()

SENSITIVE = (
    "password passwords passwd passphrase pwd secret secrets token api_key apikey api-key apiKey API_KEY access_key "
    "access_key_id accessKeyId secret_key private_key signing_key encryption_key account_key AccountKey shared_access_key "
    "credential credentials client_secret clientSecret auth_token authToken refresh_token session_token webhook_url "
    "connection_string connectionString dsn cookie Set-Cookie sig signature authorization Authorization "
    "OPENAI_API_KEY db.password my-token AWSToken azure_ad_token Pwd PGPASSWORD MYSQL_ROOT_PASSWORD rootpassword "
    "API_KEY_2 password1 _auth //registry.example/:_authToken Ocp-Apim-Subscription-Key"
).split()

HARMLESS = (
    "PWD OLDPWD SSH_AUTH_SOCK XAUTHORITY TOKENIZERS_PARALLELISM max_tokens output_tokens input_tokens total_tokens "
    "gen_ai.usage.input_tokens gen_ai.token.type public_key primary_key cache_key author tokenizer keyboard token_type "
    "password_hint_shown secretary passwordless design assign signed monkey sort_key key api access mytoken cookie_count "
    "authorized_by session id name description"
).split()


@pytest.mark.contract("AI-097")
@pytest.mark.parametrize("name", SENSITIVE)
def test_names_of_secrets_are_sensitive(name: str) -> None:
    assert REDACTOR.is_sensitive_name(name)


@pytest.mark.contract("AI-097")
@pytest.mark.case("C-064")
@pytest.mark.parametrize("name", HARMLESS)
def test_names_that_only_sound_like_secrets_are_not_sensitive(name: str) -> None:
    assert not REDACTOR.is_sensitive_name(name)


@given(name=st.text())
def test_any_text_can_be_asked_about(name: str) -> None:
    assert REDACTOR.is_sensitive_name(name) in (True, False)


@pytest.mark.contract("AI-098")
@pytest.mark.parametrize(
    "value",
    ["", "null", "None", "nil", "true", "False", "undefined", "***", "x", "xxx", "XXXXXX", "...", "$TOKEN", "${TOKEN}",
     "{{ secrets.TOKEN }}", "<token>", "<your key>", "%TOKEN%", "(REDACTED-github)", "(REDACTED-x)rest", "YOUR_API_KEY",
     "your-token-here", "changeme", "xxxx", "1.2.3", "v2.0", "404", "12", "string", "replace-with-your-key", "$(pass show x)"],
)  # fmt: skip
def test_placeholders_stay_under_a_sensitive_name(value: str) -> None:
    if value == "x":
        return  # one x may be a secret
    for text in (f'API_KEY="{value}"', f'{{"api_key": "{value}"}}', f"api_key: '{value}'"):
        assert redact(text) == text
    assert redact_dict({"api_key": value}) == {"api_key": value}


@pytest.mark.contract("AI-098")
@pytest.mark.parametrize(
    "value", ["$TOKEN", "${TOKEN}", "<token>", "***", "null", "404", "(REDACTED-x)", "{{ x }}", "%X%"]
)
def test_bare_placeholders_stay_under_a_sensitive_name(value: str) -> None:
    for text in (f"API_KEY={value}", f"api_key: {value}", f"?api_key={value}&x=1"):
        assert redact(text) == text
