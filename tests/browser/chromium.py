"""A headless Chromium: what a page says on its console, and how it is laid out at some width."""

import json
import re
import shutil
import subprocess
import tempfile
from html import escape, unescape
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--enable-logging=stderr",
    "--virtual-time-budget=5000",
)
TIMEOUT_S = 120
# The page is measured in a frame of the wanted width: the window of a browser has a least width of its own.
MEASURE = """<!DOCTYPE html><body style="margin:0">
<iframe id="page" style="border:0;width:{width}px;height:4000px" srcdoc="{page}"></iframe>
<pre id="measured"></pre><script>
document.getElementById("page").onload = (event) => {{
  const inside = event.target.contentDocument, style = (each) => event.target.contentWindow.getComputedStyle(each);
  const told = [...inside.querySelectorAll("text, p, td, th, b, span, h1, h2")];
  const texts = told.filter((each) => each.textContent.trim());
  document.getElementById("measured").textContent = JSON.stringify({{
    width: inside.documentElement.scrollWidth,
    charts: [...inside.querySelectorAll("svg")].map((each) => ({{
      name: each.getAttribute("aria-label") || "graph",
      width: each.getBoundingClientRect().width, height: each.getBoundingClientRect().height,
      shapes: each.querySelectorAll("rect, circle, polyline, line").length,
    }})),
    smallest: Math.min(...texts.map((each) => parseFloat(style(each).fontSize))),
    headings: [...inside.querySelectorAll("h2")].map((each) => each.textContent),
  }});
}};
</script>"""


def chromium_path() -> str:
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        raise FileNotFoundError("no Chromium: run .ci/chromium")
    return found


class Chromium:
    def __init__(self) -> None:
        self._path = chromium_path()

    def console(self, page: str) -> list[str]:
        """The messages of the page, or the browser about it, on its console."""
        _, said = self._run(page, "--dump-dom")
        return re.findall(r"CONSOLE.*?\] (.*)", said)

    def measured(self, page: str, width: int) -> Any:
        shown, _ = self._run(MEASURE.format(width=width, page=escape(page)), "--dump-dom")
        (found,) = re.findall(r'<pre id="measured">(.*?)</pre>', shown, re.DOTALL)
        return json.loads(unescape(found))

    def _run(self, page: str, *flags: str) -> tuple[str, str]:
        with tempfile.TemporaryDirectory(prefix="m4cast-browser-") as folder:
            file = Path(folder) / "page.html"
            file.write_text(page, encoding="utf-8")
            command = [self._path, *FLAGS, f"--user-data-dir={folder}/profile", *flags, file.as_uri()]
            done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
        return done.stdout, done.stderr
