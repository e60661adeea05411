"""`python -m autofedavg.studies.run_one`: one run in a process of its own, for `abreast`.

Its only argument is JSON: the run's folder, the machine, and the file that is to say why it failed.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from autofedavg.core.errors import AutoFedAvgError, error_facts
from autofedavg.studies.launch import resume
from autofedavg.studies.machine import Machine


def main() -> None:
    """Begins the run, or goes on with it."""
    what = json.loads(sys.argv[1])
    folder = Path(what["folder"])
    try:
        resume(folder, Machine(**what["machine"]))
    except AutoFedAvgError as error:
        facts = error_facts(error)
        if str(folder) not in facts["where"]:
            facts["where"] = f"{folder}: {facts['where']}".removesuffix(": ")
        Path(what["answer"]).write_text(json.dumps(facts))
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
