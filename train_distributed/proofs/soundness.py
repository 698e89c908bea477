"""Probability that a vector beyond the bound passes for one within it."""

import math
from collections import Counter
from collections.abc import Sequence

from train_distributed.proofs.circuits import Layout
from train_distributed.proofs.field import MODULUS
from train_distributed.proofs.linear_proof import Circuit, degree_bound


def forgery_log2(layout: Layout, circuits: Sequence[Circuit]) -> float:
    """log2 of the probability that one forged report passes; a circuit comes once for each proof.

    A sum over the ways: all proofs of a circuit have a zero where they are looked at, or a vector
    that wraps around passes enough tests, each with probability at most 1/2 (PINE, Lemma 3.3). A
    polynomial of degree n has at most n zeros: the gadget's has degree 2(P-1), those of the joint
    randomness have as many coefficients as there are bits, tests and conditions.

    A user may draw tests and joint randomness again, at the price of hashing its vector each time,
    but knows nothing of the query points, of which it has one draw for each report that it sends.
    """
    enough = range(layout.successes, layout.tests + 1)
    ways = [math.log2(sum(math.comb(layout.tests, n) for n in enough)) - layout.tests]
    for circuit, proofs in Counter(circuits).items():
        places, zeros = degree_bound(circuit), 2 * (degree_bound(circuit) - 1)
        if circuit.joint_randomness:
            zeros += (layout.shared - layout.dimension - 1) + (layout.tests - 1) + 3
        ways.append(proofs * (math.log2(zeros) - math.log2(MODULUS - places)))
    return math.log2(sum(2**way for way in ways))
