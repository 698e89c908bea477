"""Method, options and promise as a file, which `rehearse` or a user writes."""

import json
import math
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Union, get_args, get_type_hints

import msgspec

from embed.encoding import Encoding
from pretrain import check
from pretrain.cli.json_text import parsed
from train_distributed.one_shot.registry import METHODS, SettledOptions
from train_distributed.privacy.promise import Privacy


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
    def read(cls, path: Path) -> "RunConfig":
        """Reads what `text` gave.

        Raises:
            ValueError: missing, damaged, or with other fields.
        """
        try:
            fields = parsed(path.read_text("utf-8"))
            fields["privacy"]["epsilon"] = float(fields["privacy"]["epsilon"])
            public_hash = fields.pop("public_hash", None)
            encoding = fields.pop("encoding", None)
            options = {
                name: tuple(value) if isinstance(value, list) else value
                for name, value in dict(fields.pop("options")).items()
            }
            _check_types(SettledOptions, options)
            check.one_of(METHODS, method=fields["method"])
            return cls(
                method=str(fields.pop("method")),
                options=options,
                privacy=msgspec.convert(vars(Privacy(**fields.pop("privacy"))), Privacy),
                public_hash=None if public_hash is None else str(public_hash),
                encoding=None if encoding is None else Encoding.from_json(encoding),
                **fields,
            )
        except (
            *(OSError, ValueError, TypeError, KeyError, AttributeError),
            msgspec.ValidationError,
        ) as error:
            raise ValueError(f"config must be what rehearse wrote, got {path}: {error}") from error

    @classmethod
    def settled(cls, path: Path | None, default: "RunConfig", **typed: Any) -> "RunConfig":
        """The file's method, options and promise, or the default's where there is no file.

        Args:
            path: of the file; None: none was given.
            default: what holds without a file.
            **typed: method and fields of the promise as typed, None for what was not. They go
                before the default, and must agree with what a file says.

        Raises:
            ValueError: a bad file, or one that says something else.
        """
        found = default if path is None else cls.read(path)
        given = check.present(**typed)
        if path is not None:
            said = check.present(**vars(found.privacy), method=found.method)
            for name in given.keys() & said.keys():
                if given[name] != said[name]:
                    raise ValueError(
                        f"{name} must be {said[name]} as config says, or be left out, got "
                        f"{given[name]}"
                    )
        method = given.pop("method", found.method)
        return replace(found, method=method, privacy=replace(found.privacy, **given))


def _check_types(options: type, given: dict[str, Any]) -> None:
    """Raises ValueError for a name that the options have not, or a value of another type."""
    hints = get_type_hints(options)
    for name, value in given.items():
        if name not in hints:
            raise ValueError(f"{name} is no option, those are {', '.join(hints)}")
        # JSON has no paths: what a prior's file would hold stands in its place
        shares = (dict[str, float],) if name == "prior" else ()
        kinds = (*(kind for kind in get_args(hints[name]) if kind is not Path), *shares)
        try:
            msgspec.convert(value, Union[kinds])  # noqa: UP007
        except msgspec.ValidationError as error:
            raise ValueError(f"{name}: {error}") from error


def jsonable(value: Any) -> Any:
    """Nested settings with paths and infinities as words."""
    if isinstance(value, dict):
        return {name: jsonable(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(each) for each in value]
    if isinstance(value, float) and math.isinf(value):
        return "inf"
    return str(value) if isinstance(value, Path) else value
