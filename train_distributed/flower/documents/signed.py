"""Files of one party that others carry: signed over all their fields."""

import json
import re
from collections.abc import Mapping
from typing import Any

from train_distributed.flower.documents.document import Document
from train_distributed.secure_sum.errors import BadSignature
from train_distributed.secure_sum.keys import SIGNATURE_BYTES, sign, verify

SIGNATURE = "signature"
_PATTERN = re.compile(f"[0-9a-f]{{{2 * SIGNATURE_BYTES}}}")


def with_signature(values: Mapping[str, Any], what: str, signing: bytes) -> dict[str, Any]:
    """The fields and their signature; `what` names the kind of file, which is signed as well."""
    return {**values, SIGNATURE: sign(signing, _signed(values, what)).hex()}


def check_signature(document: Document, what: str, verifying: str, whose: str) -> None:
    """Refuses a file that is not signed by this key (hexadecimal).

    Raises:
        ValueError: naming the file, and whose signature is missing.
    """
    given = document.text(SIGNATURE, _PATTERN, f"{SIGNATURE_BYTES} bytes in hexadecimal")
    values = {name: value for name, value in document.values.items() if name != SIGNATURE}
    try:
        verify(bytes.fromhex(verifying), bytes.fromhex(given), _signed(values, what))
    except BadSignature as error:
        document.refuse(SIGNATURE, whose, str(error))


def _signed(values: Mapping[str, Any], what: str) -> bytes:
    head = f"blind averaging, {what}, version 1\n"
    return head.encode() + json.dumps(dict(values), sort_keys=True).encode()
