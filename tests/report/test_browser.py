"""The page in a real browser: no error, every picture shown, the filters and charts at work."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from flowalign.report import write_report
from tests.report.conftest import BuildRun

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no chromium or google-chrome on PATH")

CHECK = """
<script>
addEventListener("load", () => {
  const all = (selector) => [...document.querySelectorAll(selector)];
  const press = (control, value) =>
    document.querySelector(`[data-control=${control}][data-value=${value}]`).click();
  const shown = () => all(".card").filter((card) => card.offsetParent !== null);
  const found = {
    images: all("img").length,
    broken: all("img").filter((image) => !image.complete || !image.naturalWidth).length,
    charts: all("svg.chart").length,
    lines: all("svg.chart path.line").filter((path) => path.getTotalLength() > 50).length,
    bars: all(".tasks .bar").filter((bar) => bar.offsetWidth > 5).length,
    overflow: document.documentElement.scrollWidth - document.documentElement.clientWidth,
    cards: shown().length,
  };
  press("sign", "better");
  found.better = shown().map((card) => card.dataset.sign);
  press("task", "counting");
  found.both = shown().map((card) => card.dataset.sign + " " + card.dataset.task);
  press("sign", "all");
  press("task", "all");
  press("sort", "gain");
  found.sorted = shown().map((card) => Number(card.dataset.change));
  const chart = document.querySelector("svg.chart");
  chart.dispatchEvent(new KeyboardEvent("keydown", { key: "Home" }));
  found.tip = document.querySelector(".tip").textContent;
  const out = document.createElement("pre");
  out.id = "found";
  out.textContent = JSON.stringify(found);
  document.body.append(out);
});
</script>
"""


def browse(page: Path, *options: str, width: int = 1200) -> tuple[str, str]:
    """What the browser prints on stdout and on stderr."""
    command = [
        str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
        "--virtual-time-budget=5000", "--enable-logging=stderr", "--v=0",
        f"--user-data-dir={page.parent / 'profile'}", f"--window-size={width},1600",
        *options, page.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout, done.stderr


def checked(page: Path, width: int = 1200) -> dict[str, Any]:
    """What `CHECK` finds in the page."""
    copy = page.with_name("checked.html")
    copy.write_text(page.read_text("utf-8").replace("</body>", f"{CHECK}</body>"), "utf-8")
    dom, log = browse(copy, "--dump-dom", width=width)
    assert "CONSOLE" not in log, log
    match = re.search(r'<pre id="found">(.*?)</pre>', dom, re.S)
    assert match, "the check did not run to its end"
    found: dict[str, Any] = json.loads(html.unescape(match[1]))
    return found


def test_the_page_works(build_run: BuildRun) -> None:
    attack = "<script>alert(1)</script><img src=x onerror=alert(2)>"
    found = checked(write_report(build_run(first_prompt=attack)))
    assert (found["images"], found["broken"], found["cards"]) == (96, 0, 48)
    assert found["charts"] >= 8
    assert found["lines"] >= found["charts"]
    assert found["bars"] == 12
    assert found["overflow"] == 0
    assert set(found["better"]) == {"better"}
    assert set(found["both"]) == {"better counting"}
    assert 0 < len(found["both"]) < len(found["better"]) < 48
    assert found["sorted"] == sorted(found["sorted"], reverse=True) and len(found["sorted"]) == 48
    assert found["tip"].startswith("iteration 1recorded 0.")


def test_a_narrow_window_needs_no_sideways_scrolling(build_run: BuildRun) -> None:
    found = checked(write_report(build_run()), width=500)
    assert found["overflow"] == 0


@pytest.mark.parametrize("dark", [False, True])
def test_the_page_is_not_blank(build_run: BuildRun, tmp_path: Path, dark: bool) -> None:
    page, shot = write_report(build_run()), tmp_path / "shot.png"
    _, log = browse(page, f"--screenshot={shot}", *(["--force-dark-mode"] if dark else []))
    assert "CONSOLE" not in log, log
    with Image.open(shot) as image:
        pixels = np.asarray(image.convert("L"), dtype=np.float64)
    assert pixels.std() > 10
    ground = np.median(pixels)
    assert ground < 60 if dark else ground > 200
