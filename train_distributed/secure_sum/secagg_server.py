"""The server of `secagg`, as a state machine: bytes in, bytes out, one vector of memory."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from train_distributed.secure_sum import errors
from train_distributed.secure_sum.conviction import (
    EXPOSED_BYTES,
    ComplaintResolver,
    Recall,
    Recovery,
    opened,
)
from train_distributed.secure_sum.journal import Journal
from train_distributed.secure_sum.keys import KEY_BYTES, PrivateKeys, exchange_key
from train_distributed.secure_sum.opening import Opened
from train_distributed.secure_sum.packets import HASH_BYTES, KEY, SEED, hash_shares, packet_bytes
from train_distributed.secure_sum.prg import WORD, add_stream, subtract_stream
from train_distributed.secure_sum.roster import Made, Mail, Roster
from train_distributed.secure_sum.secagg import (
    ADVERTISE_BYTES,
    AGREED_BYTES,
    COMPLAINT_BYTES,
    SERVER,
    Advert,
    SecAgg,
    pair_seed,
    read_entries,
)
from train_distributed.secure_sum.shamir import SHARE_BYTES
from train_distributed.secure_sum.wire import (
    STATEMENT_BYTES,
    WITNESS_BYTES,
    Envelope,
    Kind,
    read,
    signature_of,
    write,
)

_ROUNDS = (
    Kind.ADVERTISE,
    Kind.KEY_SHARES,
    Kind.MASKED,
    Kind.DEFENCE,  # only if somebody complains
    Kind.AGREED,
    Kind.REVEAL,
    Kind.EXPOSED,  # only if a dealer's shares are false
)
_PLACE = {kind: place for place, kind in enumerate(_ROUNDS)} | {Kind.COMPLAINT: 2}


class SecAggServer:
    """Collects one message per user and round; `advance` ends a round.

    Attributes:
        culprits: user -> what it did that no honest user does, in words; it is out of the session.

    It takes no messages of users to `exclude`, such as an earlier session's culprits. `recall`
    gives messages of this session once more; without it a dealer of false shares ends the session.

    Raises:
        ValueError: keys that are not those the session pins.
    """

    def __init__(
        self,
        setup: SecAgg,
        keys: PrivateKeys,
        journal: Journal,
        exclude: Collection[int] = (),
        recall: Recall | None = None,
    ) -> None:
        if setup.session.servers[SERVER] != keys.public:
            raise ValueError("keys must be those that the session pins for the server")
        self._setup, self._session, self._keys, self._journal = setup, setup.session, keys, journal
        self._round, self._open = 0, True
        self._invited = frozenset(self._session.users) - frozenset(exclude)
        self._here: set[int] = set()
        self.culprits: dict[int, str] = {}
        self._roster = Roster(setup)
        self._mail = Mail(self._roster)
        self._sharing = self._statement = b""  # who shared keys (a bitmap); what users sign
        self._told: dict[int, bytes] = {}  # who sent a masked vector -> its word on it
        self._total = np.zeros(self._session.dimension, np.uint64)
        self._complaints = ComplaintResolver(lambda dealer, u: self._mail.packet(dealer, u))
        self._agreed: dict[int, bytes] = {}
        self._unmasking = Unmasking(self._roster, frozenset(), self._mail.hashes)
        self._recall, self._secrets = recall, dict[int, bytes]()
        self._recovery: Recovery | None = None  # where dealers' shares are false
        self._sizes = longest_to_server(setup)
        self._take: dict[Kind, Callable[[Envelope, bytes], None]] = {
            Kind.ADVERTISE: lambda e, m: self._roster.add(e.sender, Advert.read(e.payload), m),
            Kind.KEY_SHARES: lambda e, _: self._mail.post(e.sender, e.payload),
            Kind.MASKED: self._take_masked,
            Kind.COMPLAINT: self._complaints.complain,
            Kind.DEFENCE: lambda e, _: self._complaints.defend(e.sender, e.payload),
            Kind.AGREED: self._take_agreed,
            Kind.REVEAL: lambda e, _: self._unmasking.reveal(e.sender, e.payload),
            Kind.EXPOSED: lambda e, _: self._recovered.expose(e.sender, e.payload),
        }

    @property
    def expects(self) -> Kind:
        """The kind of message that this round takes; REVEAL ends with `convict` or `finish`."""
        return _ROUNDS[self._round]

    @property
    def waiting_for(self) -> frozenset[int]:
        """Users that this round's message was asked of and has not come from."""
        return self._invited - self._here

    def receive(self, message: bytes) -> None:
        """Takes one user's message of the current round.

        Raises:
            ProtocolError: the message is refused; nothing has changed, except that a user which
                signed what no honest user signs is now a culprit.
        """
        envelope = read(self._session, message, SERVER, self._sizes)
        kind, user, place = envelope.kind, envelope.sender, _PLACE[envelope.kind]
        if not self._open or place > self._round:
            raise errors.OutOfOrder(
                f"{kind.name} does not belong to the round of {self.expects.name}"
            )
        if place < self._round or user in self._here:
            raise errors.ReplayedMessage(f"{kind.name} of user {user} came late or again")
        if user not in self._invited:
            raise errors.WrongSender(f"user {user} has dropped out, got {kind.name}")
        try:
            self._take[kind](envelope, message)
        except errors.ProtocolError as error:
            self._expel({user: f"{kind.name}: {type(error).__name__}: {error}"})
            raise
        self._here.add(user)

    def advance(self) -> Mapping[int, bytes]:
        """Ends the round; whoever has not answered has dropped out.

        Returns:
            User -> the message for it, made when it is read, in this round.

        Raises:
            TooFewUsers: the session cannot be completed; it is closed, nothing is released.
            Misbehaviour: likewise, for the fault of users that a session can do without.
            OutOfOrder: the last round is ended by `finish`.
        """
        if not self._open or self.expects is Kind.REVEAL:
            raise errors.OutOfOrder("advance must come before the last round")
        ends = {
            Kind.ADVERTISE: self._send_neighbours,
            Kind.KEY_SHARES: self._send_inboxes,
            Kind.MASKED: self._send_accusations,
            Kind.DEFENCE: self._send_survivors,
            Kind.AGREED: self._send_unmask,
        }
        try:
            messages = ends[self.expects]()
        except errors.ProtocolError:
            self._open = False
            raise
        self._invited, self._here = frozenset(messages), set()
        self._round += 1
        return messages

    def convict(self) -> Mapping[int, bytes]:
        """Ends the round of REVEAL where shares of dealers are false.

        Returns:
            User -> the proof, for it to expose its masks with them; nobody: `finish` is next.

        Raises:
            OutOfOrder: before the round of REVEAL, or a second time.
            TooFewUsers: too few shares of some secret; nothing is released.
            Misbehaviour: without `recall`; nothing is released.
        """
        if not self._open or self.expects is not Kind.REVEAL:
            raise errors.OutOfOrder("convict must come once, after the last round")
        try:
            self._secrets, false = self._unmasking.secrets()
            if false:
                self._recover(false)
        except errors.ProtocolError:
            self._open = False
            raise
        self._round += 1
        asked = [] if self._recovery is None else self._recovery.asked
        messages = self._messages_of(Kind.CONVICTED, asked, lambda u: self._recovered.request(u))
        self._invited, self._here = frozenset(messages), set()
        return messages

    def finish(self) -> Opened:
        """Takes all masks off the sum of the survivors; once per session, ever.

        Raises:
            OutOfOrder: before the last round, or a second time.
            TooFewUsers: too few shares of some secret; nothing is released.
            Misbehaviour: dealers of false shares, and not all that share masks with them are there
                to expose these; nothing is released.
            AlreadyOpened: this session was opened before.
        """
        if self._open and self.expects is Kind.REVEAL:
            self.convict()
        if not self._open or self.expects is not Kind.EXPOSED:
            raise errors.OutOfOrder("finish must come once, after the last round")
        self._open = False
        if self._recovery is not None:
            if self.waiting_for:
                raise errors.Misbehaviour(self.culprits)
            self._recovery.take_off(self._total)
        masks = self._unmasking.masks(self._secrets)
        self._journal.claim(self._session.digest, "open", self._statement)
        self._total -= masks
        return Opened(self._total, self._unmasking.survivors)

    def _recover(self, false: dict[int, dict[int, bytes]]) -> None:
        """Goes on without dealers of false shares."""
        liars = dict.fromkeys(false, "REVEAL: the shares it dealt do not give what it advertised")
        self._expel(liars)
        before = self._unmasking.survivors
        if self._recall is None or len(before - false.keys()) < self._setup.graph.signers:
            raise errors.Misbehaviour(liars)
        self._recovery = Recovery(self._roster, before, false, self._told, self._recall)
        self._unmasking.survivors = before - false.keys()

    @property
    def _recovered(self) -> Recovery:
        if self._recovery is None:
            raise errors.OutOfOrder("EXPOSED must answer a proof")
        return self._recovery

    def _take_masked(self, envelope: Envelope, message: bytes) -> None:
        content = envelope.content
        errors.check_bytes(self._sizes[Kind.MASKED], MASKED=content)
        if content[:STATEMENT_BYTES] != self._setup.told(self._sharing):
            raise errors.SetMismatch("users must mask with the users named to them")
        self._total += np.frombuffer(content, WORD, offset=STATEMENT_BYTES)
        self._told[envelope.sender] = envelope.rest + signature_of(message)

    def _take_agreed(self, envelope: Envelope, message: bytes) -> None:
        if envelope.payload != self._statement:
            raise errors.SetMismatch("users must sign the survivors named to them")
        self._agreed[envelope.sender] = signature_of(message)

    def _send_neighbours(self) -> Mapping[int, bytes]:
        roster, here = self._roster, self._enough(self._here)
        messages, users = roster.messages_of(here), roster.connected(here)
        roster.pair(users)
        self._mail = Mail(roster)
        return self._messages_of(
            Kind.NEIGHBOURS, users, lambda user: [messages[roster.partners(user)].tobytes()]
        )

    def _send_inboxes(self) -> Mapping[int, bytes]:
        users = self._enough(self._roster.connected(self._here))
        self._roster.share(users)
        self._sharing, among = self._session.bitmap(users), self._roster.among(users)
        return self._messages_of(
            Kind.INBOX, users, lambda user: [self._sharing, self._mail.inbox(user, among)]
        )

    def _send_accusations(self) -> Mapping[int, bytes]:
        """Asks for defences; if there is no need, the round after the next begins at once."""
        accused = self._complaints.accusations()
        if accused:
            return self._messages_of(Kind.ACCUSED, accused, lambda user: [accused[user]])
        messages = self._send_survivors()
        self._round += 1
        return messages

    def _send_survivors(self) -> Mapping[int, bytes]:
        self._complaints.close()
        self._expel(self._complaints.liars | self._complaints.guilty)
        if self._complaints.guilty:
            raise errors.Misbehaviour(self._complaints.guilty)
        survivors = self._enough(self._told)
        self._roster.check_lists(survivors)
        self._unmasking = Unmasking(self._roster, survivors, self._mail.hashes)
        self._mail.clear()
        bitmap = self._session.bitmap(survivors)
        self._statement = self._setup.agreed(self._sharing, bitmap)
        return self._messages_of(Kind.SURVIVORS, survivors, lambda user: [bitmap])

    def _send_unmask(self) -> Mapping[int, bytes]:
        ready = self._enough(self._agreed)
        request = self._unmasking.requests(self._agreed, self._told)
        return self._messages_of(Kind.UNMASK, ready, request)

    def _messages_of(
        self, kind: Kind, users: Collection[int], parts: Callable[[int], list[bytes]]
    ) -> Mapping[int, bytes]:
        session, signing = self._session, self._keys.signing
        return Made(
            sorted(users), lambda u: write(session, kind, SERVER, u, b"".join(parts(u)), signing)
        )

    def _enough(self, users: Iterable[int]) -> frozenset[int]:
        left = frozenset(users)
        what = f"users after {self.expects.name}"
        errors.check_enough(len(left), self._setup.graph.signers, what)
        return left

    def _expel(self, culprits: dict[int, str]) -> None:
        self.culprits |= culprits
        self._invited -= culprits.keys()


class Unmasking:
    """Collects shares, opens one secret per user, and gives the masks that are in the total.

    All lists of the roster are known, the total is of the survivors' vectors, and `hashes` (w·k,)
    is what each list's owner showed of both shares, per slot.
    """

    def __init__(self, roster: Roster, survivors: frozenset[int], hashes: NDArray[np.void]) -> None:
        self._roster, self._setup, self.survivors = roster, roster.setup, survivors
        owners = roster.held // roster.degree
        self._dealers = roster.identities[owners]  # of each share that is held, by holder
        self._which = np.where(roster.among(survivors)[owners], SEED, KEY)
        shown = hashes.view(f"V{HASH_BYTES}").reshape(len(hashes), 2)
        self._hashes = shown[roster.held, self._which]
        self._shares = np.zeros(len(owners), f"V{SHARE_BYTES}")
        self._taken = np.zeros(len(owners), bool)

    def requests(
        self, agreed: Mapping[int, bytes], told: Mapping[int, bytes]
    ) -> Callable[[int], list[bytes]]:
        """Payload of UNMASK for a user: both sets, and a quorum's signatures on them.

        `agreed` has at least `signers` users' signatures on the story, `told` all survivors'
        witnesses of their vectors' statements, which are shown where a dealer is no signer.
        """
        roster, bitmap = self._roster, self._setup.session.bitmap
        signers = sorted(agreed)[: self._setup.graph.signers]
        dropped = roster.sharing - self.survivors
        story = bitmap(self.survivors) + bitmap(dropped) + bitmap(signers)
        signed = b"".join(agreed[user] for user in signers)
        others = sorted(self.survivors.difference(signers))
        among, shown = roster.among(others), np.zeros(len(roster.identities), f"V{WITNESS_BYTES}")
        shown[among] = np.frombuffer(b"".join([told[user] for user in others]), shown.dtype)

        def request(user: int) -> list[bytes]:
            dealers = roster.held[roster.holding(user)] // roster.degree
            witnesses = dealers[among[dealers]]
            users = bitmap(roster.identities[witnesses].tolist())
            return [story, users, signed, shown[witnesses].tobytes()]

        return request

    def reveal(self, holder: int, payload: bytes) -> None:
        """Takes one holder's shares, of all users that dealt it some, as `pack_entries` joins them.

        Raises:
            MalformedMessage: not such entries.
            SetMismatch: other dealers than those.
            InconsistentShares: a share that its dealer did not deal; none is taken.
        """
        entries, held = read_entries(payload, SHARE_BYTES), self._roster.holding(holder)
        dealers = self._dealers[held]
        if not np.array_equal(entries["user"], dealers):
            wrong = np.setxor1d(entries["user"], dealers)[:10].tolist()
            raise errors.SetMismatch(
                f"user {holder} must reveal one share per dealer, differs in {wrong}"
            )
        shares, dealt = entries["value"], self._hashes[held]
        found = hash_shares(self._setup, dealers, holder, self._which[held], shares)
        if found != dealt.tobytes():
            dealer = dealers[np.frombuffer(found, dealt.dtype) != dealt][0]
            raise errors.InconsistentShares(f"share of user {dealer} must be the one that it dealt")
        self._shares[held], self._taken[held] = shares, True

    def secrets(self) -> tuple[dict[int, bytes], dict[int, dict[int, bytes]]]:
        """A survivor's self-mask seed or a dropped user's masking key; and whose are false.

        Of these, holder -> share, of those that prove it.

        Raises:
            TooFewUsers: too few shares of some secret.
        """
        secrets, wrong, setup = {}, {}, self._setup
        for user, shares in self._shares_by_dealer():
            advert, which = self._roster.adverts[user], SEED if user in self.survivors else KEY
            try:
                secrets[user] = opened(setup, user, advert, which, shares)
            except errors.InconsistentShares:
                holders = setup.list_of(user, advert.list_seed)
                wrong[user] = {holders[x - 1]: share for x, share in shares.items()}
            except errors.TooFewUsers as error:
                raise errors.TooFewUsers(f"secret of user {user}: {error}") from error
        return secrets, wrong

    def masks(self, secrets: Mapping[int, bytes]) -> NDArray[np.uint64]:
        """(d,) all masks in the sum of the survivors' vectors, by all users' `secrets`.

        Of a survivor its own; of a dropped user those that survivors share with it, as they stand
        in their vectors.
        """
        session, roster = self._setup.session, self._roster
        total = np.zeros(session.dimension, np.uint64)
        for user, secret in secrets.items():
            if user in self.survivors:
                add_stream(total, secret)
                continue
            key = exchange_key(secret)
            for peer in roster.identities[roster.partners(user)].tolist():
                if peer in self.survivors:
                    seed = pair_seed(session.digest, key, roster.adverts[peer].masking, user, peer)
                    (add_stream if peer < user else subtract_stream)(total, seed)
        return total

    def _shares_by_dealer(self) -> Iterator[tuple[int, dict[int, bytes]]]:
        """Shares by point of each user that shared keys, no more than are needed."""
        slots = self._roster.held[self._taken]
        rising = np.argsort(slots)
        octets = self._shares[self._taken][rising].tobytes()
        owners, nth = np.divmod(slots[rising], self._roster.degree)
        points = (nth + 1).tolist()
        for user in sorted(self._roster.sharing):
            place = self._setup.session.place[user]
            start, end = np.searchsorted(owners, (place, place + 1)).tolist()
            needed = range(start, min(end, start + self._setup.graph.threshold))
            yield (
                user,
                {points[i]: octets[i * SHARE_BYTES : (i + 1) * SHARE_BYTES] for i in needed},
            )


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
