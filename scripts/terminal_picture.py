"""Draw docs/figures/terminal-compare.svg: what `coterie compare` prints, from a real comparison (about two minutes on two cores).

python scripts/terminal_picture.py           # runs the comparison in a temporary folder
python scripts/terminal_picture.py FOLDER    # takes one that was run before
"""

import io
import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from coterie.analysis.comparison import open_comparison
from coterie.cli.console import PlainConsole, make_bold
from coterie.cli.tables import print_comparison

PICTURE = Path(__file__).resolve().parents[1] / "docs" / "figures" / "terminal-compare.svg"
DATA = "digits/rotated(clients=40,groups=4)"
METHODS = ["fedgroup(groups=4,pretrain=20)", "fesem(groups=4,warmup=20)", "fedsim(clusters=4)"]
TRAINING = ["--rounds", "15", "--cohort", "20", "--epochs", "10", "--lr", "0.1", "--seeds", "0-1"]
COMMAND = ["coterie", "compare", *METHODS, "--data", DATA, *TRAINING]  # that of `make demo`
WIDTH = "80"


def draw(folder: Path) -> str:
    """The SVG: the command and what it prints. It names no font of the web, so that it looks the same offline."""
    os.environ["COLUMNS"] = WIDTH
    console = PlainConsole()
    console.record, console.file = True, io.StringIO()
    lines = [METHODS[:2], [*METHODS[2:], "--data", DATA], [*TRAINING, "--out", "runs/demo"]]
    words = ["$ coterie compare " + shlex.join(lines[0]), *map(shlex.join, lines[1:])]
    console.print(make_bold(" \\\n    ".join(words)))
    print_comparison(open_comparison(folder), console)
    text = console.export_svg(title="coterie compare", unique_id="compare")
    text = re.sub(r"\s*@font-face \{.*?\}", "", text, flags=re.DOTALL)
    return text.replace("Fira Code", "monospace").replace("<!-- Generated with Rich https://www.textualize.io -->", "")


def main() -> None:
    """Run the comparison where there is none, and draw it."""
    with tempfile.TemporaryDirectory() as work:
        folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(work) / "digits"
        if not folder.exists():
            subprocess.run([sys.executable, "-m", *COMMAND, "--out", str(folder)], check=True)
        PICTURE.parent.mkdir(exist_ok=True)
        PICTURE.write_text(draw(folder), encoding="utf-8")


if __name__ == "__main__":
    main()
