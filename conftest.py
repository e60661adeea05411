"""Settings shared by all tests: generated volumes go to the test cache, not to the user's."""

import os
from pathlib import Path

os.environ["AUTOFEDAVG_CACHE"] = str(Path(__file__).parent / ".pytest_cache" / "autofedavg")
