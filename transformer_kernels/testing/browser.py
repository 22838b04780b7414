# SPDX-License-Identifier: MIT
"""Lays pages out in a browser, on a telephone and on a desk."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

_BROWSERS = ("chromium", "chromium-browser", "google-chrome")
BROWSER = next(filter(None, map(shutil.which, _BROWSERS)), None)
WIDTHS = (390, 1440)

# The faults of the layout of a page: it scrolls sideways, or elements are cut off.
_FAULTS = """
const root = page.documentElement, all = [...page.querySelectorAll("main *")];
const faults = {
  width: root.clientWidth,
  scrolls: root.scrollWidth - root.clientWidth,
  outside: all.filter((e) => e.getBoundingClientRect().right > root.clientWidth + 0.5)
    .map((e) => e.tagName + " " + e.className),
  hidden: all.filter((e) => e.scrollWidth > e.clientWidth + 1 && e.clientWidth)
    .filter((e) => !e.ownerSVGElement)
    .map((e) => e.tagName + " " + e.textContent.slice(0, 40)),
};
"""


def measured(page: str, script: str, folder: Path) -> list[dict[str, Any]]:
    """Lays a page out in frames of each width, and runs a script in each.

    Args:
        page: HTML.
        script: the body of a JavaScript function of ``page``, a document, and ``all``, its
            elements; returns an object, to which the faults of the layout are added.
        folder: for files.
    """
    source = html.escape(page, quote=True)
    frames = "".join(
        f'<iframe style="border: 0; width: {width}px; height: 900px" srcdoc="{source}"></iframe>'
        for width in WIDTHS
    )
    body = (
        '[...document.querySelectorAll("iframe")].map((frame) => frame.contentDocument)'
        f".map((page) => {{ {_FAULTS} const found = (() => {{ {script} }})();"
        " return {...faults, ...found}; })"
    )
    shown = f'document.body.textContent = "measured " + JSON.stringify({body}) + " end";'
    file = folder / "frames.html"
    file.write_text(
        f"<!doctype html><body>{frames}<script>window.onload = () => {{ {shown} }}</script>",
        encoding="utf-8",
    )
    assert BROWSER is not None
    command = [
        BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
        f"--user-data-dir={folder}", "--window-size=2000,1000", "--dump-dom", file.as_uri(),
    ]  # fmt: skip
    text = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
    found = re.search(r"measured (\[.*\]) end", text, re.DOTALL)
    assert found, text[-2000:]
    return list(json.loads(html.unescape(found[1])))


def check_layout(seen: dict[str, Any], width: int) -> None:
    """Fails where something of a page is cut off, or it scrolls sideways."""
    assert seen["width"] == width
    assert (seen["scrolls"], seen["outside"], seen["hidden"]) == (0, [], [])
