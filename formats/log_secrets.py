"""Takes secrets out of text that is logged: those of the environment, those of addresses, and what looks like one.

A pattern may take out a harmless word that follows `key=`; the price of the other mistake is higher.
"""

import os
import re
import urllib.parse
from collections.abc import Mapping
from typing import Any

__all__ = ["without_secrets"]

_SHORTEST = 8  # characters of a value of the environment; shorter ones would take out ordinary words
_NAMES = re.compile(r"(^|_)(TOKEN|KEY|SECRET|PASSWORD|PASSWD|PASSPHRASE|SIGNATURE)$", re.IGNORECASE)
_WORDS = "signature|token|secret|password|passwd|credential|api[-_]?key|key"
_PATTERNS = (
    (re.compile(rf"([?&;](?:[\w.%-]*(?:{_WORDS})|sig|pwd)=)[^&;#\s'\"]+", re.IGNORECASE), r"\1***"),
    (re.compile(r"\b((?:AccountKey|SharedAccessSignature|SharedAccessKey)=)[^;\s'\"]+", re.IGNORECASE), r"\1***"),
    (re.compile(r"(\b[a-z][a-z0-9+.-]*://)[^/\s@:]*:[^/\s@]*@", re.IGNORECASE), r"\1***@"),
    (re.compile(r"(\bhttps?://)[^/\s@:]+@", re.IGNORECASE), r"\1***@"),
    (re.compile(r"\b(bearer\s+)[\w.~+/=-]{8,}", re.IGNORECASE), r"\1***"),
    (re.compile(r"\b(?:hf_|gh[opsur]_|github_pat_)\w{16,}|\bya29\.[\w.-]+"), "***"),
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL), "***"),
)


def without_secrets(value: Any, environment: Mapping[str, str] | None = None) -> Any:
    """A text, or a JSON value of texts, with `***` in place of each token, key, password and signature.

    Args:
        value: text, number, None, or lists and dictionaries of them; anything else is turned to text first.
        environment: where variables named like secrets are looked up; None takes that of the process.
    """
    known = _values(os.environ if environment is None else environment)
    return _cleaned(value, known)


def _values(environment: Mapping[str, str]) -> list[str]:
    """The secrets of an environment, as they are and as an address would spell them, longest first."""
    found = {value for name, value in environment.items() if _NAMES.search(name) and len(value) >= _SHORTEST}
    found |= {urllib.parse.quote(value, safe="") for value in found}
    return sorted(found, key=len, reverse=True)


def _cleaned(value: Any, known: list[str]) -> Any:
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if value - value == 0 else None  # JSON has no other numbers
    if isinstance(value, Mapping):
        return {str(name): _cleaned(entry, known) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_cleaned(entry, known) for entry in value]
    text = str(value)
    for secret in known:
        text = text.replace(secret, "***")
    for pattern, shown in _PATTERNS:
        text = pattern.sub(shown, text)
    return text
