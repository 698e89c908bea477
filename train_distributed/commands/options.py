"""Options that commands share: names to choose from, files of settings, public side, users."""

import json
import math
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    TypeAlias,
    Union,
    get_args,
    get_type_hints,
)

import msgspec

from embed.encoding import Encoding
from embed.options import Knowledge
from pretrain import check
from pretrain.cli.json_text import read_object
from pretrain.cli.menu import part_of
from train_distributed.one_shot.registry import MANY_ROUNDS, METHODS, RIVALS, SettledOptions
from train_distributed.privacy.promise import Privacy

if TYPE_CHECKING:  # what works is imported by the command that runs
    import torch

    from embed import EmbeddingSet, PublicTransform
    from train_distributed.partition import Partition

Noise = Literal["discrete", "float"]
Scheme = Literal["own", "iid", "one-class", "dirichlet"]
Cost = Literal["megabits", "seconds"]
if TYPE_CHECKING:
    PrivateMethodName: TypeAlias = str
    MethodName: TypeAlias = str
else:
    PrivateMethodName = Literal[(*METHODS, *RIVALS, *MANY_ROUNDS)]
    MethodName = Literal[tuple(METHODS)]


@dataclass(frozen=True)
class RunConfig:
    """Configuration: `rehearse` writes it; `run`, `federation init` and `audit` read it."""

    method: str
    options: dict[str, Any]
    privacy: Privacy  # promise that it was chosen for
    public_hash: str | None = None  # hash of the set it was chosen on; None: by hand
    encoding: Encoding | None = None  # of that set; None: unknown

    def text(self) -> str:
        """JSON; an infinite ε is the word "inf"."""
        fields: dict[str, Any] = asdict(self)
        fields["encoding"] = self.encoding and self.encoding.to_json()
        if math.isinf(self.privacy.epsilon):
            fields["privacy"]["epsilon"] = "inf"
        return json.dumps(fields, indent=1, allow_nan=False) + "\n"

    @classmethod
    def read(cls, path: Path, methods: Collection[str] = tuple(METHODS)) -> "RunConfig":
        """Reads what `text` gave.

        Raises:
            ValueError: missing, damaged, with other fields, or of none of these methods.
        """
        try:
            fields = read_object(path)
            if fields["privacy"]["epsilon"] == "inf":
                fields["privacy"]["epsilon"] = math.inf
            public_hash = fields.pop("public_hash", None)
            encoding = fields.pop("encoding", None)
            # JSON has no paths: what a prior's file would hold stands in its place
            options = converted(SettledOptions, dict(fields.pop("options")), prior=dict[str, float])
            check.one_of(methods, method=fields["method"])
            return cls(
                method=str(fields.pop("method")),
                options=options,
                privacy=msgspec.convert(vars(Privacy(**fields.pop("privacy"))), Privacy),
                public_hash=msgspec.convert(public_hash, str | None),
                encoding=None if encoding is None else Encoding.from_json(encoding),
                **fields,
            )
        except (
            *(OSError, ValueError, TypeError, KeyError, AttributeError),
            msgspec.ValidationError,
        ) as error:
            raise ValueError(f"config must be what rehearse wrote, got {path}: {error}") from error

    @classmethod
    def settled(
        cls,
        path: Path | None,
        default: "RunConfig",
        methods: Collection[str] = tuple(METHODS),
        **typed: Any,
    ) -> "RunConfig":
        """The file's method, options and promise, or the default's where there is no file.

        Args:
            path: of the file; None: none was given.
            default: what holds without a file.
            methods: of which the file may name one.
            **typed: method and fields of the promise as typed, None for what was not. They go
                before the default, and must agree with what a file says.

        Raises:
            ValueError: a bad file, or one that says something else.
        """
        found = default if path is None else cls.read(path, methods)
        given = check.drop_none(**typed)
        if path is not None:
            said = check.drop_none(**vars(found.privacy), method=found.method)
            for name in given.keys() & said.keys():
                if given[name] != said[name]:
                    raise ValueError(
                        f"{name} must be {said[name]} as config says, or be left out, got "
                        f"{given[name]}"
                    )
        method = given.pop("method", found.method)
        return replace(found, method=method, privacy=replace(found.privacy, **given))


def converted(options: type, given: dict[str, Any], **also: Any) -> dict[str, Any]:
    """Values from a JSON file, of the types that a dataclass's fields have.

    Args:
        options: the dataclass.
        given: name -> value.
        **also: further types that a field may have.

    Raises:
        ValueError: a name that is no field, or a value of another type.
    """
    hints, found = get_type_hints(options), dict[str, Any]()
    for name, value in given.items():
        if name not in hints:
            raise ValueError(f"{name} is no option, those are {', '.join(hints)}")
        kinds = [kind for kind in get_args(hints[name]) or (hints[name],) if kind is not Path]
        kinds += [also[name]] if name in also else []
        try:  # one by one, so that the error names the option
            found[name] = msgspec.convert(value, Union[tuple(kinds)])  # noqa: UP007
        except msgspec.ValidationError as error:
            rule = str(error).partition(" - at")[0]
            raise ValueError(f"{name}: {rule}, got {value!r:.80}") from error
    return found


def jsonable(value: Any) -> Any:
    """Nested settings with paths and infinities as words."""
    if isinstance(value, dict):
        return {name: jsonable(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(each) for each in value]
    if isinstance(value, float) and math.isinf(value):
        return "inf"
    return str(value) if isinstance(value, Path) else value


STARTS = "discriminant"  # the method that starts from what is known of the classes


@dataclass(frozen=True, kw_only=True)
class Promise(Privacy):
    """(ε, δ) for neighbours that differ by replacing records; numbers of rows n_i are public."""

    epsilon: float = 1.0
    """Privacy loss ε > 0; inf: not private."""
    delta: float = 1e-5
    """Failure probability δ in (0, 1)."""

    @property
    def privacy(self) -> Privacy:
        """The promise, without the other options of the command."""
        return part_of(self, Privacy)


@dataclass(frozen=True, kw_only=True)
class PublicRows:
    """Options for public data: embeddings, and names or examples of the private classes."""

    public: Path
    """Public embedding set, on which the transform is
    fitted; or the file of `embed fit-transform`."""


@dataclass(frozen=True, kw_only=True)
class PublicSide(Knowledge, PublicRows):
    """Options for the public transform: the set that it is fitted on, or its file."""

    def transform(
        self, private: "EmbeddingSet", settings: RunConfig, names: Sequence[str]
    ) -> "PublicTransform":
        """The transform that makes the rows.

        Args:
            private: of whose declared classes something may be known.
            settings: method, and what a configuration says of the public set.
            names: of the classes.

        Raises:
            ValueError: no public set, another one than config was chosen on, or options that do not
                serve.
        """
        from embed import EmbeddingSet, PublicTransform
        from embed.encoding import refuse_other
        from embed.guesses import added_to, examples_of
        from embed.identity import refuse_leak

        if self.public.is_file():
            check.not_set("with public a transform", **vars(part_of(self, Knowledge)))
            return PublicTransform.load(self.public)
        public = EmbeddingSet.open(self.public)
        refuse_other(settings.encoding, public.encoding, ("config", "public"))
        if settings.public_hash not in (None, public.content_hash()):
            raise ValueError(f"public must be the set config was chosen on, got {self.public}")
        refuse_leak(public, private)
        transform = PublicTransform.fit(public)
        turned_up = self.examples is None and examples_of(public, names) is not None
        if settings.method == STARTS and (self.guesses or turned_up):
            return added_to(self, transform, public, names)
        return transform


@dataclass(frozen=True, kw_only=True)
class SimulatedUsers:
    """Who holds which rows, and what noise is added."""

    users: int | None = None
    """Number of users that are made up (default: those that the set names)."""
    scheme: Scheme | None = None
    """Which rows a user holds: `iid` (default with --users), `one-class` or
    `dirichlet`; `own`: as the set says."""
    concentration: float | None = None
    """Concentration of dirichlet: small values give users few classes."""
    noise: Noise | None = None
    """`float` (default) for simulations, `discrete` as it is released."""


def simulated_partition(
    rows: "EmbeddingSet",
    part: int,
    scheme: Scheme,
    users: int | None,
    generator: "torch.Generator | None",
    *,
    concentration: float | None = None,
) -> "Partition | None":
    """Simulated partition of the rows of split `part`; None: users are the set's own.

    Args:
        rows: embedding set.
        part: its split.
        scheme: of the partition; `own`: the set's.
        users: number of simulated users; 1 for a set without users.
        generator: makes the partition reproducible; None: the operating system seeds one.
        concentration: of the dirichlet partition.

    Raises:
        ValueError: options that do not fit the set or the scheme.
    """
    import torch

    from train_distributed.partition import split

    if scheme == "own":
        if rows.users is not None or concentration is not None:
            check.not_set("for scheme 'own'", users=users, concentration=concentration)
        elif users != 1:
            raise ValueError(
                "users must be named by the embedding set, or be 1 for one user's own rows "
                f"(--users 1), or be simulated; got {users or 'none'} for {rows.directory}"
            )
        return None
    labels = torch.from_numpy(rows.labels[rows.split == part])
    if generator is None:
        generator = torch.Generator()
        generator.seed()
    return split(labels, users, scheme, concentration=concentration, generator=generator)
