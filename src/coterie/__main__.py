"""``python -m coterie``: the command line, where its script is not on the path."""

from coterie.cli import main

if __name__ == "__main__":
    main()
