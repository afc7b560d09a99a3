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
COMMAND = ["coterie", "compare", "fesem", "ifca", "fedgroup", "--data", DATA, "--rounds", "15", "--seeds", "0-1", "--lr", "0.1"]
WIDTH = "80"


def draw(folder: Path) -> str:
    """The SVG: the command and what it prints. It names no font of the web, so that it looks the same offline."""
    os.environ["COLUMNS"] = WIDTH
    console = PlainConsole()
    console.record, console.file = True, io.StringIO()
    data, rest = COMMAND.index("--data"), COMMAND.index("--rounds")
    words = [f"$ {shlex.join(COMMAND[:data])}", shlex.join(COMMAND[data:rest]), shlex.join([*COMMAND[rest:], "--out", "runs/digits"])]
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
