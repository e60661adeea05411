"""A controller for tests: asks what `probe.json` lists, and records the replies.

Told by `probe.json` in the server's runs folder: which verbs, in which limit, how often.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from autofedavg.core.bank import Layout
from autofedavg.engines.flare.controller import AutoFedAvgController
from autofedavg.engines.flare.export import JOB_FILE, read_job_text
from autofedavg.engines.flare.transport import FlareTransport
from autofedavg.engines.remote.job import Job
from autofedavg.federation.messages import Message, NoReply, arrays_of

PATH = "flare_probe.ProbeController"


class ProbeController(AutoFedAvgController):
    def control_flow(self, abort_signal, fl_ctx) -> None:
        runs = Path(os.environ["AUTOFEDAVG_RUNS"])
        listed = json.loads((runs / "probe.json").read_text())
        config = fl_ctx.get_engine().get_workspace().get_app_config_dir(fl_ctx.get_job_id())
        job = Job.read(read_job_text(Path(config)), JOB_FILE)
        transport = FlareTransport(self, fl_ctx, abort_signal, job.sites)
        layout = Layout.of(job.row.task.network())
        model = arrays_of(layout.read(job.row.task.network()))
        messages = {
            "local_train": Message(model, {"t": 1, "T": 3}),
            "evaluate": Message(model, {"t": 1, "split": "validation"}),
            "hello": Message({}, {}),
        }
        with (runs / "probed.jsonl").open("a") as out:
            while True:
                heard = transport.ask("hello", dict.fromkeys(job.sites, messages["hello"]), 30.0)
                if not any(isinstance(answer, NoReply) for answer in heard.values()):
                    break
                time.sleep(0.5)
            for verb, within, times in listed:
                for _ in range(times):
                    if times > 1:  # so often only a server that begins anew is answered
                        transport.ask("hello", dict.fromkeys(job.sites, messages["hello"]), 30.0)
                    started = time.monotonic()
                    line: dict = {"verb": verb, "at": time.time()}
                    if verb == "waiting":
                        line["waiting"] = sorted(transport.waiting())
                    elif verb == "sleep":
                        time.sleep(within)
                    else:
                        answers = transport.ask(
                            verb, dict.fromkeys(job.sites, messages[verb]), within
                        )
                        line["answers"] = {
                            site: f"lost: {answer.reason}"
                            if isinstance(answer, NoReply)
                            else str(answer.facts.get("error", "ok"))
                            for site, answer in answers.items()
                        }
                    line["seconds"] = time.monotonic() - started
                    out.write(json.dumps(line) + "\n")
                    out.flush()
