"""`python -m autofedavg`: a short demonstration; with arguments, the command line."""

import sys

from autofedavg.cli import main

if __name__ == "__main__":
    if len(sys.argv) == 1:
        from autofedavg.cli.demo import demonstrate

        demonstrate()
    else:
        main()
