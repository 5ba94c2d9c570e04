"""Secrets on command lines quoted in running text: `--password V`, `mysql -pV`, `curl -u user:V`.

Real argument lists go through `redact_argv` (`_structure`), which knows where an argument ends. Here a value must look
like one, since prose speaks of options too. Texts come in as one character per UTF-8 byte.
"""

import re
from functools import lru_cache
from typing import Final

from spanfold.redact._names import WORDS, is_plain_value, is_sensitive_name, token

PASSWORD_PROBE: Final = r"(?:sshpass|mysql|mariadb|redis-cli|login)[ -~\s]*[ \\t\"]-[pa]"
"""Necessary condition of a password behind `-p` or `-a`, in a text or in a list, for the pre-filter."""

PROBES: Final = (
    rf"-[A-Za-z0-9_\-]*(?i:{WORDS})[0-9_\-]*[ \t\\]",
    r"-u(?:ser)?(?:[= \t]|\\)[ \\t\"']*[^ \"':\\]*:",
)
"""Necessary conditions of the other rules here, for the pre-filter."""

_COMMAND_BEFORE: Final = 256
"""How far before an option its command is looked for."""

_REGISTRIES: Final = ("docker", "podman", "nerdctl", "buildah", "skopeo", "crane", "oras", "helm", "az ", "oc ", "cf ")

_VALUE: Final = (
    r"(?:(?P<opening>\\*+[\"'])(?![\s,:\]}\\]|\Z)(?P<quoted>[^\"'\\\r\n]*+)"
    r"|(?P<bare>[^\x00-\x20\x7f\"'`\\,;&|()\[\]{}<>]++))"
)


def redact_commands(text: str) -> str:
    """Replace the values of options that carry passwords and tokens."""
    if "-" not in text:
        return text
    text = _long_option().sub(_replace_long_option, text)
    text = _password_option().sub(_replace_password_option, text)
    return _user_option().sub(_replace_user_option, text)


def takes_password(option: str, command: str, *, attached: bool = False) -> bool:
    """Tell whether `-p` or `-a` carries a password, by the part of the command line before it."""
    if option == "-a":
        return "redis-cli" in command and not attached
    if "sshpass" in command:
        return True
    if attached:
        return "mysql" in command or "mariadb" in command
    return "login" in command and any(registry in command for registry in _REGISTRIES)


def takes_user(option: str, command: str) -> bool:
    """Tell whether the option carries `user:password`, by the part of the command line before it."""
    return option == "--proxy-user" or any(client in command for client in ("curl", "wget", "http", "xh "))


@lru_cache(maxsize=1)
def _long_option() -> re.Pattern[str]:
    return re.compile(rf"(?<![\w-])(--?(?P<name>[A-Za-z][\w-]*+)[ \t]++)(?!-){_VALUE}", re.ASCII)


@lru_cache(maxsize=1)
def _password_option() -> re.Pattern[str]:
    return re.compile(rf"(?<=[ \t])((?P<option>-[pa])[ \t]*+)(?!-){_VALUE}")


@lru_cache(maxsize=1)
def _user_option() -> re.Pattern[str]:
    # As long as a user's name may be: it would be read to the end of the word again for each option in it.
    user = r"(?P<user>[^\x00-\x20\x7f\"':\\]{0,4096}+):(?P<password>[^\x00-\x20\x7f\"'\\,;&|()\[\]{}<>]++)"
    return re.compile(rf"(?<![\w-])((?P<option>-u|--user|--proxy-user)(?:[ \t]++|=)(?:\\*+[\"'])?+){user}", re.ASCII)


def _replace_long_option(match: re.Match[str]) -> str:
    if len(match["name"]) < 3 or not is_sensitive_name(match["name"]):
        return match[0]
    if match["bare"] and not _looks_secret(match["bare"]):
        return match[0]
    return _replaced(match)


def _replace_password_option(match: re.Match[str]) -> str:
    attached = match.end("option") == match.end(1)
    if not takes_password(match["option"], _command_before(match), attached=attached):
        return match[0]
    return _replaced(match)


def _replace_user_option(match: re.Match[str]) -> str:
    password = match["password"]
    if is_plain_value(password) or password.startswith(("$", "//")):
        return match[0]
    if not takes_user(match["option"], _command_before(match)):
        return match[0]
    return f"{match[1]}{match['user']}:{token('assignment')}"


def _replaced(match: re.Match[str]) -> str:
    value = match["bare"] or match["quoted"]
    if is_plain_value(value) or value.startswith("$"):
        return match[0]
    return match[1] + (match["opening"] or "") + token("assignment")


def _command_before(match: re.Match[str]) -> str:
    before = match.string[max(0, match.start() - _COMMAND_BEFORE) : match.start()]
    for end in "|;&\n":
        before = before.rpartition(end)[2]
    return before


def _looks_secret(value: str) -> bool:
    """Tell a value from the next word of a sentence and from the name of a variable in a synopsis."""
    word = value.rstrip(".:!?")
    letters = word.replace("_", "").replace("-", "")
    if letters.isalpha() and letters.isupper():
        return False
    return len(word) >= 16 or not (word.isalpha() and word[1:].islower())
