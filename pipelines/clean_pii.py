"""Masks e-mail addresses, public IP addresses and telephone numbers.

Each kind is replaced by one fixed string out of ranges that are reserved for documentation, so that masked text reads
on and names nobody:

    email   email@example.com     (RFC 2606)
    ip      192.0.2.1             (RFC 5737), 2001:db8::1 (RFC 3849)
    phone   555-0100              (numbers kept for fiction)

Private, loopback and other addresses that are not routed stay. A telephone number is taken for one only when it is
written like one: with a country code and "+", or in the groups of the North American plan. Matching is by pattern; it
finds what is written in the usual ways, and proves nothing about what it leaves.
"""

import ipaddress
import re

__all__ = ["EMAIL_MASK", "IP_MASK", "IPV6_MASK", "mask_emails", "mask_ips", "mask_phones", "PHONE_MASK"]

EMAIL_MASK = "email@example.com"
"""Stands for an e-mail address."""

IP_MASK = "192.0.2.1"
"""Stands for an IPv4 address."""

IPV6_MASK = "2001:db8::1"
"""Stands for an IPv6 address."""

PHONE_MASK = "555-0100"
"""Stands for a telephone number."""


_ATOM = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]"
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_DOMAIN = re.compile(rf"@(?:{_LABEL}\.)+[A-Za-z]{{2,63}}(?![\w@])")
_LOCAL_CHARS = 64
_LOCAL = re.compile(rf"(?<![A-Za-z0-9.@])(?:{_ATOM}|\.(?={_ATOM})){{1,{_LOCAL_CHARS}}}\Z")
_IPV4 = re.compile(r"(?<![\w.])\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}(?!\.?\d|\w)", re.ASCII)
_IPV6 = re.compile(r"(?<![\w:.])(?:[0-9A-Fa-f]{1,4}|(?=::))(?:::?[0-9A-Fa-f]{0,4}){2,8}(?![\w:.])", re.ASCII)
_IPV6_HINT = re.compile(r":[0-9A-Fa-f]{0,4}:")
_PHONE = re.compile(
    r"(?<![\w+.-])(?:"
    r"\+[1-9](?:[ .-]?\(?\d{1,4}\)?){2,6}"  # international, with a country code
    r"|\(?[2-9]\d\d(?:\) ?|[-. ])[2-9]\d\d[-. ]\d{4}"  # North American
    r")(?![\w-]|\.\d)",
    re.ASCII,
)
_FEWEST_DIGITS, _MOST_DIGITS = 8, 15


def mask_emails(text: str) -> tuple[str, int]:
    """The text with its e-mail addresses masked, and how many there were."""
    pieces: list[str] = []
    done = 0
    for domain in _DOMAIN.finditer(text):  # the rarer part first: few texts have many "@"
        at = domain.start()
        local = _LOCAL.search(text, max(done, at - _LOCAL_CHARS), at)
        if local:
            pieces += (text[done : local.start()], EMAIL_MASK)
            done = domain.end()
    return "".join([*pieces, text[done:]]) if pieces else text, len(pieces) // 2


def mask_ips(text: str) -> tuple[str, int]:
    """The text with its public IP addresses masked, and how many there were."""
    found = 0

    def masked(match: re.Match[str]) -> str:
        nonlocal found
        try:
            address = ipaddress.ip_address(match[0])
        except ValueError:
            return match[0]
        if not address.is_global:
            return match[0]
        found += 1
        return IP_MASK if address.version == 4 else IPV6_MASK

    text = _IPV4.sub(masked, text)
    if _IPV6_HINT.search(text):
        text = _IPV6.sub(masked, text)
    return text, found


def mask_phones(text: str) -> tuple[str, int]:
    """The text with its telephone numbers masked, and how many there were."""
    found = 0

    def masked(match: re.Match[str]) -> str:
        nonlocal found
        if not _FEWEST_DIGITS <= sum(map(str.isdigit, match[0])) <= _MOST_DIGITS:
            return match[0]
        found += 1
        return PHONE_MASK

    return _PHONE.sub(masked, text), found
