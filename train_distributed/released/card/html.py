"""A card as one HTML file: no script, no network, pictures inside it."""

from base64 import b64encode
from importlib.resources import files

from jinja2 import Environment, StrictUndefined

from train_distributed.released.card.content import Card

TEMPLATE = "card.html.jinja"


def as_html(card: Card) -> str:
    """The page; whatever a name or a report holds appears as text, never as markup."""
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["data_uri"] = _data_uri
    template = files(__package__ or "").joinpath(TEMPLATE).read_text("utf-8")
    return environment.from_string(template).render(card=card)


def _data_uri(png: bytes) -> str:
    return "data:image/png;base64," + b64encode(png).decode("ascii")
