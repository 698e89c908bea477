"""Commands and options that have left, and what to do instead: refused in one line."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True)
class Retired:
    """An option that has left some commands; one without a name: the commands themselves."""

    commands: tuple[str, ...]  # in full, such as "federation init"
    option: str  # such as "--alpha", "--method class-sums" for a value, or ""
    instead: str  # what to do

    def typed(self, command: str, arguments: Sequence[str]) -> bool:
        """Whether it is among the words that follow the command."""
        if command not in self.commands:
            return False
        name, _, value = self.option.partition(" ")
        words = [word for each in arguments for word in _split(each)]
        if value:
            return any(pair == (name, value) for pair in pairwise(words))
        return not name or name in words

    def line(self, command: str) -> str:
        """What is said when it is typed."""
        return f"{f'{command} {self.option}'.strip()} has been retired: {self.instead}"


METHODS = ("run", "audit", "federation init")  # commands that take a method and its options
FITS = ("run", "embed fit-transform")  # commands that fit a transform
BY_RULE = "leave it out, as a public rule decides"
RETIRED = (
    Retired(
        ("embed exclude",), "--private", "give the private set as --embeddings; it alone is changed"
    ),
    Retired(("federation adder",), "", "type federation aggregator"),
    Retired(("federation window",), "--adders", "type --aggregators"),
    Retired(METHODS, "--method class-sums", "take --method discriminant"),
    Retired(METHODS, "--method least-squares", "take --method discriminant"),
    Retired(METHODS, "--alpha", BY_RULE),
    Retired(METHODS, "--class-code", "leave it out"),
    Retired(METHODS, "--ridge", BY_RULE),
    Retired(METHODS, "--public-share", BY_RULE),
    Retired(METHODS, "--shrinkage", BY_RULE),
    Retired(METHODS, "--moments", "leave it out; second moments are sent unless users are clipped"),
    Retired(METHODS, "--centre", "type --sums 2 for a private centre, --sums 1 for a public one"),
    Retired(METHODS, "--keep", BY_RULE),
    Retired(METHODS, "--discriminants", BY_RULE),
    Retired(METHODS, "--descent-above", BY_RULE),
    Retired(("run",), "--most-bytes", "type --components, which bounds the bytes of a user"),
    Retired(("run",), "--clip-quantile", "type embed fit-transform --clip-quantile"),
    Retired(("run",), "--constant", "type embed fit-transform --constant"),
    Retired(FITS, "--classifier", "leave it out; with --text-encoder it joins by itself"),
    Retired(FITS, "--alike", "give --text-encoder, or --examples"),
    *(
        Retired(FITS, option, BY_RULE)
        for option in ("--directions", "--leading", "--whiten", "--no-whiten")
    ),
    *(
        Retired(("embed fit-transform",), option, BY_RULE)
        for option in ("--centre", "--clip-norm", "--discriminants", "--shrinkage")
    ),
    Retired(("audit",), "--pipeline", "run tests/benchmarks/search_neighbours.py"),
    Retired(("demo",), "--components", BY_RULE),
    *(
        Retired(("sweep",), f"--{name}", "leave it out; the experiments that took it have left")
        for name in ("classifier", "examples", "lineup", "rounds", "tasks", "text-encoder")
    ),
)


def refuse_retired(command: str, arguments: Sequence[str]) -> None:
    """Ends with exit code 2 and one line if the command or one of its options has been retired."""
    for each in RETIRED:
        if each.typed(command, arguments):
            print(each.line(command), file=sys.stderr)
            raise SystemExit(2)


def _split(word: str) -> list[str]:
    """An argument as typed, its name in the spelling of the help and its value apart."""
    if not word.startswith("--"):
        return [word]
    name, equals, value = word.partition("=")
    return [name.replace("_", "-"), *([value] if equals else [])]
