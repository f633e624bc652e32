"""`python -m headatlas` is the command line."""

from .circuits.cli import main

if __name__ == "__main__":
    main()
