"""Names that options offer; their code is loaded when a command runs, not for `--help`.

Methods of one sum are those of the registry when this module is loaded: who adds one does so before
the command is parsed.
"""

from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

import tyro

from train_distributed.one_shot.registry import MANY_ROUNDS, METHODS, RIVALS, MethodOptions

# The help has a title of it; the name of the field would make it "options options".
MethodGroup = Annotated[MethodOptions, tyro.conf.arg(name="method")]
Noise = Literal["discrete", "float"]
Scheme = Literal["own", "iid", "one-class", "dirichlet"]
Cost = Literal["megabits", "seconds"]
if TYPE_CHECKING:
    PrivateMethodName: TypeAlias = str
    MethodName: TypeAlias = str
else:
    PrivateMethodName = Literal[(*METHODS, *RIVALS, *MANY_ROUNDS)]
    MethodName = Literal[tuple(METHODS)]
