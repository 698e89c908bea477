"""PINE: a user shows two aggregators that its shared vector is no longer than a bound.

Pine64HmacSha256Aes128 of draft-chen-cfrg-vdaf-pine (Rothblum, Omri, Chen, Talwar 2024, "PINE:
Efficient norm-bound verification for secret-shared vectors"), with the names of the draft of
verifiable distributed aggregation functions that it builds on (draft-irtf-cfrg-vdaf-11):

    user           shard            vector -> public share, an input share for each aggregator
    aggregators    prepare_init     own input share -> prepare share, sent to the other
                   prepare_message  both prepare shares -> a message, if the proof holds
                   prepare_next     the message -> own out share
                   field.add        out shares -> aggregate share
    collector      unshard          both aggregate shares -> the sum

An aggregator learns nothing of a vector while the other one is honest. A vector that is too long
passes with a probability of at most 2^-80 a try (`forgery_log2`); users must not know the verify
key, which both aggregators share.
"""

import hmac
import math
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from pretrain import check
from train_distributed.proofs import field, linear_proof
from train_distributed.proofs.circuits import Layout, Measurement, NormBound, NormEquality, to_bits
from train_distributed.proofs.field import ELEMENT_BYTES, MODULUS, Elements, InvalidShare
from train_distributed.proofs.linear_proof import Circuit, forgery_log2
from train_distributed.proofs.streams import SEED_BYTES, Stream, Usage, derive_seed, sign_products

SHARES = 2
NONCE_BYTES = 16
RAND_BYTES = 7 * SEED_BYTES  # helper: share, proofs, two blinds; leader: two blinds; prover
PUBLIC_BYTES = HELPER_BYTES = 4 * SEED_BYTES
MOST_FORGERY_LOG2 = -80  # of terms that `for_bound` makes


@dataclass(frozen=True)
class PrepareState:
    """State that an aggregator keeps from its prepare share until the message arrives."""

    out_share: Elements  # (d,)
    seeds: bytes  # that the message must repeat


@dataclass(frozen=True, kw_only=True)
class Pine:
    """One configuration; both aggregators and all users must have the same.

    Raises:
        ValueError: a number below 1.
    """

    layout: Layout
    chunk: int  # products that one call of the gadget of `NormBound` adds
    chunk_norm_equality: int  # squares that one call of the gadget of `NormEquality` adds
    proofs: int = 2  # of `NormBound`
    proofs_norm_equality: int = 2  # of `NormEquality`

    def __post_init__(self) -> None:
        check.within("[1, 255]", proofs=self.proofs, proofs_norm_equality=self.proofs_norm_equality)
        check.at_least(1, chunk=self.chunk, chunk_norm_equality=self.chunk_norm_equality)

    @classmethod
    def for_bound(cls, *, dimension: int, norm_bound: int) -> "Pine":
        """The configuration with the shortest proofs for vectors (d,) of integers, ||v|| <= B.

        Raises:
            ValueError: sizes for which a forgery is likelier than 2^-80.
        """
        layout = Layout(dimension=dimension, norm_bound=norm_bound)
        made = cls(
            layout=layout,
            chunk=_shortest(NormBound, layout),
            chunk_norm_equality=_shortest(NormEquality, layout),
        )
        check.at_most(MOST_FORGERY_LOG2, forgery_log2=forgery_log2(layout, made.circuits))
        return made

    @cached_property
    def circuits(self) -> list[Circuit]:
        """The circuit of every proof, in their order."""
        equality: Circuit = NormEquality(self.layout, self.chunk_norm_equality)
        bound: Circuit = NormBound(self.layout, self.chunk)
        return [*[equality] * self.proofs_norm_equality, *[bound] * self.proofs]

    @cached_property
    def leader_bytes(self) -> int:
        """Length of the leader's input share."""
        return (
            ELEMENT_BYTES * (self.layout.shared + self._total(linear_proof.proof_length))
            + 2 * SEED_BYTES
        )

    @cached_property
    def prepare_bytes(self) -> int:
        """Length of a prepare share."""
        return ELEMENT_BYTES * self._total(linear_proof.verifier_length) + 2 * SEED_BYTES

    def shard(
        self, vector: NDArray[np.int64], nonce: bytes, rand: bytes | None = None
    ) -> tuple[bytes, tuple[bytes, bytes]]:
        """Splits a vector (d,) int64 of L2 norm <= B; `nonce`: 16 bytes, fresh for each report.

        Returns:
            The public share, and the input shares of leader and helper.

        Raises:
            ValueError: another shape, a vector that is too long, or too few successful tests, which
                fresh randomness mends (100 of 100 fail with probability < 2^-100).
        """
        layout = self.layout
        check.shape((layout.dimension,), vector=vector)
        check.equal(np.int64, vector_type=vector.dtype)
        check.byte_length(NONCE_BYTES, nonce=nonce)
        rand = secrets.token_bytes(RAND_BYTES) if rand is None else rand
        check.byte_length(RAND_BYTES, rand=rand)
        seeds = [rand[start : start + SEED_BYTES] for start in range(0, RAND_BYTES, SEED_BYTES)]
        share_seed, proof_seed, *helper_blinds = seeds[:4]
        leader_blinds, prover_seed = seeds[4:6], seeds[6]
        blinds = (leader_blinds, helper_blinds)

        head = np.concatenate([field.from_integers(vector), self._norm_bits(vector)])
        helper = self.helper_share(share_seed)
        leader_head = field.subtract(head, helper[: layout.norm_end])
        heads = (leader_head, helper[: layout.norm_end])
        signs = [
            self._part(Usage.SIGNS_PART, j, blinds[j][0], nonce, heads[j]) for j in range(SHARES)
        ]
        results = self._results(head, self._seed(Usage.SIGNS_SEED, signs))
        measurement = np.concatenate([head, self._test_bits(results)])
        leader = np.concatenate(
            [leader_head, field.subtract(measurement[layout.norm_end :], helper[layout.norm_end :])]
        )
        parts = [
            self._part(Usage.JOINT_PART, j, blinds[j][1], nonce, share)
            for j, share in enumerate((leader, helper))
        ]
        joint = self._joint(self._seed(Usage.JOINT_SEED, parts))
        whole = Measurement(layout, np.append(measurement, results))
        proofs = self._prove(whole, prover_seed, joint)
        proofs = field.subtract(proofs, self._helper_proofs(proof_seed))
        encoded = field.encode(leader) + field.encode(proofs) + b"".join(leader_blinds)
        return b"".join(signs + parts), (encoded, b"".join(seeds[:4]))

    def prepare_init(
        self, verify_key: bytes, aggregator: int, nonce: bytes, public: bytes, share: bytes
    ) -> tuple[PrepareState, bytes]:
        """Prepares an input share; aggregator 0 is the leader, 1 the helper.

        Returns:
            The state to keep, and the prepare share for the other aggregator.

        Raises:
            InvalidShare: shares of another length, or elements outside the field.
            ValueError: a nonce that is not 16 bytes, or a verify key that is not 32.
        """
        layout = self.layout
        check.byte_length(NONCE_BYTES, nonce=nonce)
        check.byte_length(SEED_BYTES, verify_key=verify_key)
        field.check_length(PUBLIC_BYTES, public_share=public)
        field.check_length(HELPER_BYTES if aggregator else self.leader_bytes, input_share=share)
        signs_blind, blind = share[-2 * SEED_BYTES : -SEED_BYTES], share[-SEED_BYTES:]
        if aggregator:
            measurement = self.helper_share(share[:SEED_BYTES])
            proofs = self._helper_proofs(share[SEED_BYTES : 2 * SEED_BYTES])
        else:
            elements = field.decode(share[: -2 * SEED_BYTES])
            measurement, proofs = np.split(elements, [layout.shared])
        head = measurement[: layout.norm_end]
        sent = [public[start : start + SEED_BYTES] for start in range(0, PUBLIC_BYTES, SEED_BYTES)]
        signs, parts = sent[:SHARES], sent[SHARES:]
        signs[aggregator] = self._part(Usage.SIGNS_PART, aggregator, signs_blind, nonce, head)
        parts[aggregator] = self._part(Usage.JOINT_PART, aggregator, blind, nonce, measurement)
        signs_seed, joint_seed = (
            self._seed(Usage.SIGNS_SEED, signs),
            self._seed(Usage.JOINT_SEED, parts),
        )
        whole = Measurement(layout, np.append(measurement, self._results(head, signs_seed)))
        answer = self._query(whole, proofs, verify_key, nonce, self._joint(joint_seed))
        state = PrepareState(measurement[: layout.dimension], signs_seed + joint_seed)
        return state, field.encode(answer) + signs[aggregator] + parts[aggregator]

    def prepare_message(self, leader: bytes, helper: bytes) -> bytes:
        """Checks the proofs; returns the message for both aggregators.

        Raises:
            InvalidShare: a share of another length, or the proof does not hold.
        """
        field.check_length(self.prepare_bytes, leader=leader, helper=helper)
        end = self.prepare_bytes - 2 * SEED_BYTES
        answer = field.add(field.decode(leader[:end]), field.decode(helper[:end]))
        verifiers = self._split(answer, linear_proof.verifier_length)
        for circuit, verifier in zip(self.circuits, verifiers, strict=True):
            if not linear_proof.decide(circuit, verifier):
                raise InvalidShare(f"proof of {type(circuit).__name__} must hold, does not")
        signs = [share[end : end + SEED_BYTES] for share in (leader, helper)]
        parts = [share[end + SEED_BYTES :] for share in (leader, helper)]
        return self._seed(Usage.SIGNS_SEED, signs) + self._seed(Usage.JOINT_SEED, parts)

    def prepare_next(self, state: PrepareState, message: bytes) -> Elements:
        """Returns the out share (d,), which may be added once both aggregators agree.

        Raises:
            InvalidShare: the user named other parts of the randomness than the shares give.
        """
        if not hmac.compare_digest(message, state.seeds):
            raise InvalidShare("joint randomness must be that of the shares, is not")
        return state.out_share

    def unshard(self, leader: Elements, helper: Elements) -> NDArray[np.int64]:
        """The sum (d,) of all vectors, if its entries are smaller than q/2."""
        return field.to_integers(field.add(leader, helper))

    def _total(self, length: Callable[[Circuit], int]) -> int:
        return sum(length(circuit) for circuit in self.circuits)

    @cached_property
    def _counts(self) -> bytes:
        return bytes([self.proofs_norm_equality, self.proofs])

    def helper_share(self, seed: bytes) -> Elements:
        """The helper's share of a measurement, of which the first d are its out share."""
        return Stream(seed, Usage.SHARE, b"\x01").elements(self.layout.shared)

    def _helper_proofs(self, seed: bytes) -> Elements:
        return Stream(seed, Usage.PROOF, self._counts + b"\x01").elements(
            self._total(linear_proof.proof_length)
        )

    def _part(self, usage: Usage, j: int, blind: bytes, nonce: bytes, share: Elements) -> bytes:
        return derive_seed(blind, usage, bytes([j]) + nonce + field.encode(share))

    def _seed(self, usage: Usage, parts: list[bytes]) -> bytes:
        return derive_seed(bytes(SEED_BYTES), usage, b"".join(parts))

    def _split(self, values: Elements, length: Callable[[Circuit], int]) -> list[Elements]:
        """The values of each proof, one proof after the other."""
        return np.split(values, np.cumsum([length(circuit) for circuit in self.circuits])[:-1])

    def _drawn(self, stream: Stream, length: Callable[[Circuit], int]) -> list[Elements]:
        return self._split(stream.elements(self._total(length)), length)

    def _joint(self, seed: bytes) -> list[list[int]]:
        stream = Stream(seed, Usage.JOINT, bytes([self.proofs]))
        return [part.tolist() for part in self._drawn(stream, lambda each: each.joint_randomness)]

    def _results(self, head: Elements, seed: bytes) -> Elements:
        stream = Stream(seed, Usage.SIGNS, b"")
        return sign_products(head[: self.layout.dimension], self.layout.tests, stream)

    def _norm_bits(self, vector: NDArray[np.int64]) -> Elements:
        """Bits of the squared norm and of what is left to the bound."""
        squared, most = sum(entry * entry for entry in vector.tolist()), self.layout.norm_bound**2
        check.at_most(most, squared_norm=squared)
        return to_bits([squared, most - squared], self.layout.norm_bits).ravel()

    def _test_bits(self, results: Elements) -> Elements:
        """Bits of v and g of every test; a test beyond those that are needed counts as failed."""
        layout, columns, left = self.layout, [], self.layout.successes
        for result in results.tolist():
            v = (result + layout.test_bound - 1) % MODULUS
            in_range = v < 2 * layout.test_bound
            counted = int(in_range and left > 0)
            left -= counted
            columns.append((v if in_range else 0, counted))
        if left:
            raise ValueError(f"wraparound tests must pass {layout.successes} times, {left} did not")
        bits = to_bits([v for v, _ in columns], layout.test_bits)
        flags = np.array([flag for _, flag in columns], np.uint64)
        return np.column_stack([bits, flags]).ravel()

    def _prove(self, whole: Measurement, seed: bytes, joint: list[list[int]]) -> Elements:
        seeds = self._drawn(Stream(seed, Usage.PROVE, self._counts), lambda each: each.arity)
        each = zip(self.circuits, seeds, joint, strict=True)
        return np.concatenate([linear_proof.prove(c, whole, own, r) for c, own, r in each])

    def _query(
        self, whole: Measurement, proofs: Elements, key: bytes, nonce: bytes, joint: list[list[int]]
    ) -> Elements:
        points = Stream(key, Usage.QUERY, self._counts + nonce).elements(len(self.circuits))
        split = self._split(proofs, linear_proof.proof_length)
        each = zip(self.circuits, split, points.tolist(), joint, strict=True)
        return np.concatenate(
            [linear_proof.query(c, whole, proof, point, r, SHARES) for c, proof, point, r in each]
        )


def _shortest(circuit: Callable[[Layout, int], Circuit], layout: Layout) -> int:
    """The chunk that makes the shortest proof; about the square root of what is in chunks."""
    chunks = range(1, 4 * math.isqrt(layout.shared) + 2)
    return min(chunks, key=lambda chunk: linear_proof.proof_length(circuit(layout, chunk)))
