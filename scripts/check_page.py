"""Check pages in a real browser: drawn whole, offline, readable at several sizes; keep screenshots.

python scripts/check_page.py PAGE.html ... [--shots FOLDER] [--expect TEXT ...] [--inspection]

Needs chromium (Debian: apt-get install chromium). A copy of each page is opened with a probe that measures it from within: every chart is
drawn and names its axes, no script failed, nothing is loaded from elsewhere, nothing is wider than the window, no labels overlap, text has
a contrast of at least 4.5, no table is cut off on a laptop. The first screen of a report, on a laptop and on a phone, holds verdict,
recommendation and plot. With --inspection the page is one of `coterie inspect`: its questions and its charts' axes are known by name.
Ends with 1 and a list of what is wrong, or with 0.
"""

import argparse
import html
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Axes = Mapping[str, tuple[str, ...]]  # words that charts must show, by the id of their figure
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
SIZES = {"laptop": (1280, 800), "desktop": (1920, 1080), "phone": (390, 844)}
FIRST_SCREENS = ("laptop", "phone")  # sizes at which verdict, recommendation and plot of a report are seen without scrolling
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--virtual-time-budget=60000",
    "--host-resolver-rules=MAP * ~NOTFOUND",  # offline
)
DARK = "--blink-settings=preferredColorScheme=0"
PATIENCE = 120  # seconds
QUESTIONS = (
    "Do clients differ more than chance?",
    "Beyond their label proportions?",
    "Distinct groups, or a continuum?",
    "Would grouping help?",
    "what leaves the client",
)
AXES = {  # of each chart of an inspection, where they are the same whatever was found
    "similarity": ("clients in dendrogram order",),
    "map": ("first shared direction",),
    "curves": ("number of groups", "share of the variance; agreement", "this federation"),
    "pilot": ("accuracy, %", "one model", "groups", "random groups of the same sizes"),
    "gains": ("clients, from worst to best", "gain over one model, points"),
}
OUTSIDE = re.compile(r"""<(?:script|img|iframe|link)[^>]*\b(?:src|href)\s*=\s*(?!["']?data:)|@import|url\(\s*["']?https?:""", re.IGNORECASE)

PROBE = r"""<script>
const faults = [];
addEventListener("error", (event) => faults.push("script: " + event.message));
addEventListener("unhandledrejection", (event) => faults.push("script: " + event.reason));
function overlaps(group) {
  const boxes = [...group.querySelectorAll("text")].filter((t) => t.textContent && t.getAttribute("opacity") !== "0")
    .map((t) => t.getBoundingClientRect()).filter((b) => b.width > 0);
  return boxes.some((a, i) => boxes.slice(i + 1).some((b) =>
    Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1 && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 3));
}
const light = (rgb) => {
  const [r, g, b] = rgb.map((c) => { c /= 255; return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const channels = (colour) => (colour.match(/[\d.]+/g) || []).map(Number);
function ground(element) {
  for (let at = element; at; at = at.parentElement) {
    const found = channels(getComputedStyle(at).backgroundColor);
    if (found.length === 3 || found[3] > 0.99) return found.slice(0, 3);
  }
  return [255, 255, 255];
}
function contrast(element) {
  const style = getComputedStyle(element), ink = channels(element.closest("svg") ? style.fill : style.color).slice(0, 3);
  const [one, two] = [light(ink), light(ground(element))];
  return (Math.max(one, two) + 0.05) / (Math.min(one, two) + 0.05);
}
function faint() {
  const texts = [...document.querySelectorAll("body *:not(script):not(style)")].filter((e) => e.checkVisibility() &&
    [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim()));
  return texts.filter((e) => contrast(e) < 4.5).map((e) => e.textContent.trim().slice(0, 40) + " (" + contrast(e).toFixed(1) + ")");
}
function crossing(selector) {
  const range = document.createRange();
  const boxes = [...document.querySelectorAll(selector)].filter((e) => e.checkVisibility() && e.textContent.trim()).map((e) => {
    range.selectNodeContents(e);
    const tip = e.querySelector(".tip");
    if (tip) range.setEndBefore(tip);
    return [e, range.getBoundingClientRect()];
  });
  return boxes.flatMap(([e, a], i) => boxes.slice(i + 1).filter(([, b]) =>
    Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1 && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 3)
    .map(([f]) => e.textContent.slice(0, 25) + " / " + f.textContent.slice(0, 25)));
}
function firstScreen() {
  const parts = {verdict: ".answer", recommendation: ".do", plot: ".forest"};
  for (const [name, selector] of Object.entries(parts)) {
    const end = Math.round(document.querySelector(selector).getBoundingClientRect().bottom + scrollY);
    if (end > HEIGHT) faults.push("first screen: the " + name + " ends at " + end + " of " + HEIGHT);
  }
  if (!document.querySelectorAll(".forest tbody td.plot > b").length) faults.push("first screen: the plot has no marks");
}
async function measure() {
  if (document.querySelector(".forest") && HEIGHT) firstScreen();
  for (const text of faint()) faults.push("contrast below 4.5: " + text);
  for (const pair of crossing(".forest th, .forest td:not(.plot), .forest tfoot span, .legend span")) faults.push("text overlaps: " + pair);
  for (const entry of performance.getEntriesByType("resource")) if (!entry.name.startsWith("data:")) faults.push("loads " + entry.name);
  for (const closed of document.querySelectorAll("details:not(.vega-embed details)")) closed.open = true;
  for (const button of document.querySelectorAll("button[aria-controls]")) {
    button.click();
    const details = document.getElementById(button.getAttribute("aria-controls"));
    if (!details.checkVisibility()) faults.push("details do not open: " + button.textContent);
  }
  for (const text of faint()) faults.push("contrast below 4.5: " + text);
  for (const figure of document.querySelectorAll("figure")) {
    if (!figure.querySelector("svg")) faults.push(figure.id + ": not drawn");
    for (const group of figure.querySelectorAll(".role-axis-label, .role-legend")) {
      if (overlaps(group)) faults.push(figure.id + ": labels overlap");
    }
  }
  for (const figure of document.querySelectorAll("figure")) {
    const name = figure.querySelector(".role-legend-label text"), lines = () => [...figure.querySelectorAll(".mark-line path")];
    if (!name || !lines().length || !JSON.parse(figure.querySelector("script").textContent).params) continue;
    const faint = () => lines().filter((line) => parseFloat(line.getAttribute("opacity") || "1") < 0.5).length;
    const before = faint();
    name.dispatchEvent(new MouseEvent("click", {bubbles: true}));
    await new Promise((done) => setTimeout(done, 200));
    if (faint() <= before) faults.push(figure.id + ": a click on " + name.textContent + " does not switch it off");
  }
  for (const table of document.querySelectorAll(".table")) {
    const hidden = table.scrollWidth - table.clientWidth;
    if (innerWidth > 1000 && hidden > 1) faults.push("a table is cut off: " + table.textContent.slice(0, 40));
  }
  const wide = document.documentElement.scrollWidth - innerWidth;
  if (wide > 1) faults.push("the page is " + wide + " pixels wider than the window");
  const texts = [...document.querySelectorAll("figure")].map((f) => [f.id, [...f.querySelectorAll("svg text")].map((t) => t.textContent)]);
  const out = document.createElement("pre");
  out.id = "probe"; out.hidden = true;
  out.textContent = JSON.stringify({faults: [...new Set(faults)], width: innerWidth, height: document.documentElement.scrollHeight,
    charts: document.documentElement.dataset.charts || "none", texts: Object.fromEntries(texts)});
  document.body.append(out);
}
const wait = setInterval(() => { if (document.documentElement.dataset.charts) { clearInterval(wait); setTimeout(measure, 200); } }, 50);
</script>"""


def main() -> int:
    """Check every page at every size."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pages", nargs="+", type=Path)
    parser.add_argument(
        "--shots", type=Path, help="a folder for screenshots: at every size, at laptop size also dark and of the whole page"
    )
    parser.add_argument("--expect", action="append", default=[], help="a text that the page must show")
    parser.add_argument("--inspection", action="store_true", help="the pages are of `coterie inspect`: ask for its questions and axes")
    given = parser.parse_args()
    browser = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if browser is None:
        print("No browser: install chromium (Debian: apt-get install chromium).", file=sys.stderr)
        return 2
    expected, axes = [*given.expect, *(QUESTIONS if given.inspection else ())], AXES if given.inspection else {}
    troubles = [f"{page}: {trouble}" for page in given.pages for trouble in check(browser, page, expected, axes, given.shots)]
    print("\n".join(troubles) or f"{len(given.pages)} pages in order at {', '.join(f'{w} x {h}' for w, h in SIZES.values())}.")
    return 1 if troubles else 0


def check(browser: str, page: Path, expected: list[str], axes: Axes, shots: Path | None) -> list[str]:
    """What is wrong with a page that should show the `expected` texts, and in its charts the words that `axes` has for them."""
    text = page.read_text(encoding="utf-8")
    troubles = ["loads something from elsewhere: " + found.group(0)[:80] for found in OUTSIDE.finditer(_without_scripts(text))]
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "page.html"
        for name, size in SIZES.items():
            probe = PROBE.replace("HEIGHT", str(size[1] if name in FIRST_SCREENS else 0))
            copy.write_text(text.replace("<head>", "<head>" + probe, 1), encoding="utf-8")
            shown, dom = _open(browser, copy, size)
            troubles += [f"at {name} size: {fault}" for fault in _faults(shown, dom, text, expected, axes)]
            if name == "laptop":
                dark, dom = _open(browser, copy, size, DARK)
                troubles += [f"dark: {fault}" for fault in _faults(dark, dom, text, [], {}) if "contrast" in fault or dark is None]
            if shots is not None and shown is not None:
                shots.mkdir(parents=True, exist_ok=True)
                stem = f"{page.parent.name}-{page.stem}-{name}"
                _shoot(browser, page, size, shots / f"{stem}.png")
                if name == "laptop":
                    _shoot(browser, page, (size[0], shown["height"]), shots / f"{stem}-whole.png")
                    _shoot(browser, page, size, shots / f"{stem}-dark.png", DARK)
    return troubles


def _faults(shown: dict[str, Any] | None, dom: str, text: str, expected: list[str], axes: Axes) -> list[str]:
    if shown is None:
        return ["the page did not finish drawing"]
    found = [*shown["faults"], *([shown["charts"]] if shown["charts"].startswith("failed") else [])]
    for figure, spec in _specs(text).items():
        missing = _axis_titles(spec) - set(shown["texts"].get(figure, []))
        found += [f"{figure}: the axis title {title!r} is not shown" for title in sorted(missing)]
    for figure, wanted in axes.items():
        found += [f"{figure}: the words {word!r} are not shown" for word in wanted if word not in shown["texts"].get(figure, [])]
    words = html.unescape(dom)
    return found + [f"the text {wanted!r} is not shown" for wanted in expected if wanted not in words]


def _specs(text: str) -> dict[str, Any]:
    """The charts that a page holds, by the id of their figure."""
    pattern = re.compile(r'<figure id="([^"]+)">.*?<script type="application/json">(.*?)</script>', re.DOTALL)
    return {name: json.loads(body) for name, body in pattern.findall(text)}


def _axis_titles(tree: Any) -> set[str]:
    """The titles that a chart gives its axes."""
    if isinstance(tree, list):
        return set().union(*map(_axis_titles, tree)) if tree else set()
    if not isinstance(tree, dict):
        return set()
    own = {tree[axis]["title"] for axis in ("x", "y") if isinstance(tree.get(axis), dict) and tree[axis].get("title")}
    return own.union(*(_axis_titles(value) for key, value in tree.items() if key not in ("data", "datasets")))


def _without_scripts(text: str) -> str:
    """The page's own markup: the library's code names addresses that it never loads."""
    return re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL)


def _open(browser: str, page: Path, size: tuple[int, int], *more: str) -> tuple[dict[str, Any] | None, str]:
    dom = _run(browser, page, size, "--dump-dom", *more).decode("utf-8", "replace")
    found = re.search(r'<pre id="probe"[^>]*>(.*?)</pre>', dom, re.DOTALL)
    return (json.loads(html.unescape(found.group(1))) if found else None), dom


def _shoot(browser: str, page: Path, size: tuple[int, int], path: Path, *more: str) -> None:
    _run(browser, page, size, f"--screenshot={path.resolve()}", *more)


def _run(browser: str, page: Path, size: tuple[int, int], *words: str) -> bytes:
    """Run the browser to its end. It hangs once in a while: then it is stopped with all its children and asked once more."""
    for _ in range(2):
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
            command = [browser, *FLAGS, f"--user-data-dir={profile}", f"--window-size={size[0]},{size[1]}", *words, page.resolve().as_uri()]
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True, env={**os.environ, "HOME": profile}
            )
            try:
                return process.communicate(timeout=PATIENCE)[0]
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    return b""


if __name__ == "__main__":
    sys.exit(main())
