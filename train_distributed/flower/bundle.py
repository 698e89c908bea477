"""The Flower app that the operator submits: two pipes, no logic; the source is this package's."""

import shutil
from pathlib import Path

SOURCES = {"client_app.py": "relay_client.py", "server_app.py": "relay_server.py"}

_PROJECT = """\
[project]
name = "blind-averaging-relay"
version = "1.0.0"
description = "Carries the messages of a secure sum; holds no keys and no data."
license = { text = "Apache-2.0" }
dependencies = ["flwr>=1.41"]

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "blind-averaging"

[tool.flwr.app.components]
serverapp = "relay_server:app"
clientapp = "relay_client:app"

[tool.flwr.app.config]
desk = ""
"""


def write_bundle(folder: Path) -> None:
    """Fills a new folder with the app that `flwr run` builds and submits."""
    folder.mkdir(parents=True)
    (folder / "pyproject.toml").write_text(_PROJECT)
    for source, name in SOURCES.items():
        shutil.copyfile(Path(__file__).with_name(source), folder / name)
