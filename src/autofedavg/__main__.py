"""`python -m autofedavg`: the command line."""

from autofedavg.cli import main

if __name__ == "__main__":
    main()
