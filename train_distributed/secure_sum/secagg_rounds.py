"""Protocol `secagg`'s rounds in their order, and the longest payload of every message."""

from train_distributed.secure_sum.conviction import EXPOSED_BYTES, MOST_CONVICTED, proof_bytes
from train_distributed.secure_sum.keys import KEY_BYTES, SIGNATURE_BYTES
from train_distributed.secure_sum.packets import packet_bytes
from train_distributed.secure_sum.prg import WORD
from train_distributed.secure_sum.secagg import (
    ADVERTISE_BYTES,
    AGREED_BYTES,
    COMPLAINT_BYTES,
    SecAgg,
)
from train_distributed.secure_sum.session import set_bytes
from train_distributed.secure_sum.shamir import SHARE_BYTES
from train_distributed.secure_sum.wire import OVERHEAD, STATEMENT_BYTES, WITNESS_BYTES, Kind

ROUNDS = (
    Kind.ADVERTISE,
    Kind.KEY_SHARES,
    Kind.MASKED,
    Kind.DEFENCE,  # only if somebody complains
    Kind.AGREED,
    Kind.REVEAL,
    Kind.EXPOSED,  # only if a dealer's shares are false
)
PLACE = {kind: place for place, kind in enumerate(ROUNDS)} | {Kind.COMPLAINT: 2}


def longest_to_server(setup: SecAgg) -> dict[Kind, int]:
    """Longest payload, in bytes, of each kind of message that users send."""
    partners = len(setup.session.order) - 1
    return {
        Kind.ADVERTISE: ADVERTISE_BYTES,
        Kind.KEY_SHARES: partners * packet_bytes(True),
        Kind.MASKED: STATEMENT_BYTES + WORD.itemsize * setup.session.dimension,
        Kind.COMPLAINT: COMPLAINT_BYTES,
        Kind.DEFENCE: partners * (4 + KEY_BYTES),
        Kind.AGREED: AGREED_BYTES,
        Kind.REVEAL: partners * (4 + SHARE_BYTES),
        Kind.EXPOSED: EXPOSED_BYTES,
    }


def longest_to_user(setup: SecAgg) -> dict[Kind, int]:
    """Longest payload, in bytes, of each kind of message that the server sends."""
    sets, partners = set_bytes(setup.session), len(setup.session.order) - 1
    signatures = setup.graph.signers * SIGNATURE_BYTES
    return {
        Kind.NEIGHBOURS: partners * (OVERHEAD + ADVERTISE_BYTES),
        Kind.INBOX: sets + partners * packet_bytes(True),
        Kind.SURVIVORS: sets,
        Kind.UNMASK: 4 * sets + signatures + partners * WITNESS_BYTES,
        Kind.ACCUSED: partners * (OVERHEAD + COMPLAINT_BYTES),
        Kind.CONVICTED: MOST_CONVICTED * (4 + proof_bytes(setup)),
    }
