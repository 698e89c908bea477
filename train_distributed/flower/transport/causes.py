"""Why a node is not let in, in one line that names the cause and the remedy."""

import datetime
import re
from email.utils import parsedate_to_datetime

CLOCK_SECONDS = (
    290.0  # by which clocks must differ for a signed time to be refused: Flower says 300
)
_TLS = {  # words of OpenSSL -> ours
    "has expired": "the operator's certificate has expired, or this machine's clock is ahead: "
    "the operator runs `federation renew`",
    "not yet valid": "the operator's certificate is not valid yet: this machine's clock is behind",
    "mismatch": "the operator's certificate is not for this address: `federation renew --hosts`",
}
_OTHER = "the operator's certificate is not this ca.pem's: another operator, or a new authority"


def of_tls(text: str) -> str:
    """The cause of a failed TLS handshake, from OpenSSL's words."""
    found = next((ours for theirs, ours in _TLS.items() if re.search(theirs, text)), _OTHER)
    return f"{found} ({text})"


def of_unauthorized(date: str | None, now: datetime.datetime) -> str:
    """The cause of a refusal of a signed request: the key, or the time that was signed with it.

    Args:
        date: the answer's Date header, the operator's clock.
        now: this machine's clock.
    """
    try:
        away = (now - parsedate_to_datetime(date or "")).total_seconds()
    except (ValueError, TypeError, IndexError):
        away = 0.0
    if abs(away) > CLOCK_SECONDS:
        ahead = "ahead of" if away > 0 else "behind"
        return f"this machine's clock is {abs(away):.0f} s {ahead} the operator's: set it"
    return "this node's key is not registered with the operator: it has another invitation, or keys"
