"""Fully linear proofs for circuits of one gadget (Boneh et al. 2019, Thm 4.3; VDAF draft 11).

The prover interpolates each input wire of the gadget over its calls, a random element first, and
sends the polynomial that the gadget makes of the wires' polynomials. Every step of a verifier is
linear in its shares of input and proof, so two verifiers each hold a share of the answer. The
gadget's polynomial is checked at one random point: a wrong one of degree 2(P-1) passes with
probability at most 2(P-1)/q.
"""

import math
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import Protocol

import numpy as np

from train_distributed.proofs import field, transforms
from train_distributed.proofs.circuits import Layout, Measurement
from train_distributed.proofs.field import MODULUS, Elements, InvalidShare


class Circuit(Protocol):
    """Linear functions around the calls of one gadget of degree 2."""

    arity: int  # inputs of the gadget
    groups: tuple[int, ...]  # calls of the gadget, in groups whose results are added
    joint_randomness: int  # elements that prover and verifiers draw alike

    def inputs(self, measurement: Measurement, joint: list[int], shares: int) -> Elements:
        """(calls, arity) inputs of the gadget, from a share of the measurement."""
        ...

    def output(
        self, measurement: Measurement, sums: list[int], joint: list[int], shares: int
    ) -> int:
        """Share of an element that is zero if the measurement is valid; a sum for each group."""
        ...

    def gadget(self, wires: Elements) -> Elements:
        """(arity, n) -> (n,) the gadget in n places."""
        ...


def degree_bound(circuit: Circuit) -> int:
    """P, the number of places of a wire: a power of two above its calls."""
    return 1 << sum(circuit.groups).bit_length()


def proof_length(circuit: Circuit) -> int:
    """Elements of a proof: a seed per wire and the gadget's polynomial."""
    return circuit.arity + 2 * degree_bound(circuit) - 1


def verifier_length(circuit: Circuit) -> int:
    """Elements of a verifier's answer: output, wires and the gadget's polynomial at a point."""
    return circuit.arity + 2


def prove(
    circuit: Circuit, measurement: Measurement, seeds: Elements, joint: list[int]
) -> Elements:
    """The proof (proof_length,), from the whole measurement and a random seed per wire."""
    places = degree_bound(circuit)
    wires = _wires(circuit, circuit.inputs(measurement, joint, 1), seeds)
    coefficients = np.zeros((circuit.arity, 2 * places), np.uint64)
    coefficients[:, :places] = transforms.interpolate(wires)
    polynomial = transforms.interpolate(circuit.gadget(transforms.evaluate(coefficients)))
    return np.concatenate([seeds, polynomial[:-1]])


def query(
    circuit: Circuit,
    measurement: Measurement,
    proof: Elements,
    point: int,
    joint: list[int],
    shares: int,
) -> Elements:
    """Share of the answer (verifier_length,) of one verifier, from its shares.

    Raises:
        InvalidShare: the point is one of the places, where the answer would show an input.
    """
    places = degree_bound(circuit)
    if pow(point, places, MODULUS) == 1:
        raise InvalidShare(f"query point must be no {places}-th root of unity, got {point}")
    seeds, polynomial = proof[: circuit.arity], proof[circuit.arity :]
    sums = field.dot(_sum_weights(circuit.groups, places), polynomial).tolist()
    output = circuit.output(measurement, sums, joint, shares)
    wires = _wires(circuit, circuit.inputs(measurement, joint, shares), seeds)
    at_point = field.dot(wires, transforms.lagrange(point, places))
    value = transforms.at(polynomial, point)
    return np.concatenate([_element(output), at_point, _element(value)])


def decide(circuit: Circuit, verifier: Elements) -> bool:
    """Whether the sum of all shares of an answer proves the measurement valid."""
    output, wires, value = verifier[0], verifier[1:-1], verifier[-1]
    return bool(output == 0 and circuit.gadget(wires[:, None])[0] == value)


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


def _wires(circuit: Circuit, inputs: Elements, seeds: Elements) -> Elements:
    """(arity, P) the wires' values: seed, inputs of all calls, zeros."""
    wires = np.zeros((circuit.arity, degree_bound(circuit)), np.uint64)
    wires[:, 0] = seeds
    wires[:, 1 : len(inputs) + 1] = inputs.T
    return wires


@lru_cache(maxsize=64)
def _sum_weights(groups: tuple[int, ...], places: int) -> Elements:
    """(groups, 2P-1) weights of a polynomial's coefficients in the sum of its values in a group."""
    among = np.zeros((len(groups), places), np.uint64)
    ends = np.cumsum((1, *groups))
    for row, begin, end in zip(among, ends, ends[1:], strict=False):
        row[begin:end] = 1
    return np.tile(transforms.evaluate(among), 2)[:, :-1]  # symmetric, and powers have period P


def _element(value: int) -> Elements:
    return np.array([value], np.uint64)
