"""A card in a real browser, where there is one: nothing sticks out of a narrow screen."""

import html
import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from embed import EmbeddingSet
from train_distributed import Privacy, release
from train_distributed.released.card import card

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FRAME = """<iframe id="page" width="{width}" height="800" srcdoc="{page}"></iframe>
<pre id="found"></pre>
<script>
onload = () => {{
  const page = document.getElementById("page").contentDocument;
  const wide = page.documentElement.clientWidth;
  const out = [...page.querySelectorAll("body *")].filter(
    (each) => !each.closest(".scroll table") && each.getBoundingClientRect().right > wide + 1);
  const broken = [...page.images].filter((each) => !each.naturalWidth);
  document.getElementById("found").textContent = JSON.stringify({{
    width: page.documentElement.scrollWidth - wide,
    out: out.map((each) => each.tagName), pictures: page.images.length, broken: broken.length}});
}};
</script>"""


@pytest.mark.slow
@pytest.mark.parametrize("width", [320, 1280])
def test_nothing_sticks_out(width: int, tmp_path: Path) -> None:
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        pytest.skip(f"needs one of {', '.join(BROWSERS)}")
    names = [f"class {k} " + "x" * (4 * k) for k in range(40)]
    labels = np.arange(800) % 40
    rows = np.eye(40, dtype=np.float32)[labels]
    split = np.repeat([0, 1], [400, 400]).astype(np.uint8)
    meta = {"class_names": names}
    users = np.arange(800) % 20
    held = EmbeddingSet(embeddings=rows, labels=labels, users=users, split=split, meta=meta)
    made = release(held, "discriminant", Privacy(1.0, 1e-5), noise="float", sums=1)
    files = {"model.safetensors": "0a" * 32, "y" * 90: "0b" * 32}
    command = "blind-averaging run --embeddings " + "z" * 200
    page = card(made, markup="html", name="w" * 80, files=files, command=command)
    outer = tmp_path / "outer.html"
    outer.write_text(FRAME.format(width=width, page=html.escape(page, quote=True)))
    typed = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--window-size=1400,1000"]
    typed += ["--virtual-time-budget=10000", "--dump-dom", outer.as_uri()]
    said = subprocess.run(typed, capture_output=True, text=True, timeout=300, check=True).stdout
    found = re.search(r'<pre id="found">(.+?)</pre>', said)
    assert found is not None
    expected = {"width": 0, "out": [], "pictures": 2, "broken": 0}
    assert json.loads(html.unescape(found[1])) == expected
