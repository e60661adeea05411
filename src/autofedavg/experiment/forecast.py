"""What a study will cost before it is run: traffic, memory, and where each value comes from."""

from __future__ import annotations

from typing import Any

from autofedavg.core.bank import Layout
from autofedavg.experiment.config import Study
from autofedavg.experiment.oracle import times_asked
from autofedavg.experiment.private_rows import budget_lines
from autofedavg.experiment.rows import RunConfig
from autofedavg.experiment.selection import local_tests, where_tested
from autofedavg.experiment.traffic import traffic
from autofedavg.experiment.words import size
from autofedavg.federation.settings import Reach
from autofedavg.tasks.base import Progress

WHO: dict[Reach, str] = {
    "nobody": "nobody: they travel in masked sums",
    "server": "the server alone",
    "sites": "the server and all other sites",
}
MIXED = "the server, and as mixtures, from which they can be computed, to all other sites"


def forecast(study: Study, progress: Progress | None = None) -> dict[str, Any]:
    """Every row's values with origins, its traffic and its memory, as plain values.

    Data is read only where a setting was left to it, and where patients must be counted for
    differential privacy.
    """
    for run, _, _ in study.jobs():
        run.task.check()
    return {
        "study": study.name,
        "title": study.title,
        "seeds": list(study.seeds),
        "baseline": study.baseline,
        "folds": list(study.folds),
        "rows": [_row(run.resolved(progress), progress) for run in study.runs],
    }


def forecast_text(seen: dict[str, Any]) -> str:
    """The forecast for people."""
    folds = f", folds {seen['folds']}" if seen["folds"] else ""
    lines = [f"{seen['study']}: {seen['title']}", f"seeds {seen['seeds']}{folds}"]
    for row in seen["rows"]:
        moved, memory, scored = row["traffic"], row["memory"], row["evaluations"]
        lines += ["", f"[{row['name']}] {row['label']}"]
        width = max(len(item["setting"]) for item in row["settings"])
        values = [str(item["value"]) for item in row["settings"]]
        wide = min(34, max(len(value) for value in values))
        for item, value in zip(row["settings"], values, strict=True):
            lines.append(f"  {item['setting']:<{width}}  {value:<{wide}}  {item['origin']}")
        lines += [
            f"  model {size(row['model_bytes'])} ({row['parameters']:,} numbers, "
            f"{row['layers']} layers); {row['sites']} sites; data {row['data']}",
            f"  {_moved(moved, row['rounds'])}",
            *_ways(moved["ways"]),
            f"  evaluations: at most {scored['a_round']} a round, {scored['at_the_end']} after the "
            f"last: {scored['own_models']} of sites' own models "
            f"(test_local = {scored['test_local']})",
            f"  a site's own models go to "
            f"{MIXED if row['models_mixed'] else WHO[row['models_reach']]}",
            f"  memory about {size(memory['bank'])} for the models, "
            f"{size(memory['per_worker'])} per worker, {size(memory['data'])} for the data",
            *(f"  {line}" for line in budget_lines(row["privacy"])),
            *(f"  between institutions: {caution}" for caution in row["cautions"]),
            *([f"  same as FedAvg: {row['equals_fedavg']}"] if row["equals_fedavg"] else []),
            *([f"  warning: {row['unsuited']}"] if row["unsuited"] else []),
        ]
    return "\n".join([*lines, "", "the study is valid"])


def _moved(moved: dict[str, Any], rounds: int) -> str:
    """What a run moves between server and sites."""
    most = "at most " if moved["bound"] else ""
    first = f", {size(moved['first'])} for the first model, which travels whole"
    return (
        f"traffic {most}{size(moved['total'])} over {rounds} rounds: "
        f"{size(moved['fedavg_a_round'])} a round as FedAvg, "
        f"{most}{100 * moved['extra']:.1f} % more for learning the weights, "
        f"{size(moved['validation_a_round'])} a round to validate and test"
        f"{first if moved['first'] > 0 else ''}; "
        f"models as {moved['down']} down, {moved['up']} up"
    )


def _ways(ways: dict[str, float]) -> list[str]:
    """What learning the weights adds to FedAvg's traffic, in each way of learning."""
    said = ", ".join(f"{way} {100 * extra:.1f} %" for way, extra in ways.items())
    return [f"  learning the weights adds to FedAvg's traffic: {said}"] if ways else []


def _row(run: RunConfig, progress: Progress | None) -> dict[str, Any]:
    network = run.task.network()
    run.check_network(network)
    layout = Layout.of(network)
    sites = len(run.task.site_names())
    layers = layout.layers("module").P
    calls = run.method.calls(run.T, layout)
    held = 2 if calls["differentiate"] else 1  # learned at the server: every client's gradient too
    spent = run.budgets(layout, run.task.problem(progress).sites) if run.privacy.on else {}
    states = 2 if run.training.optimiser == "adam" else 1
    return {
        "name": run.name,
        "label": run.label,
        "rounds": run.T,
        "sites": sites,
        "parameters": layout.size,
        "layers": layers,
        "model_bytes": layout.nbytes,
        "data": run.task.where(),
        "settings": [
            {"setting": path, "value": value, "origin": origin, "help": text}
            for path, value, origin, text in run.origins()
        ],
        "privacy": {name: budget.plain for name, budget in spent.items()},
        "models_reach": run.models_reach(sites),
        "models_mixed": _mixed(run, sites),
        "cautions": run.cautions(sites),
        "equals_fedavg": run.method.equals_fedavg(sites, layout, run.training),
        "unsuited": run.method.unsuited(run.training, run.T),
        "traffic": traffic(run, layout, sites, calls),
        "evaluations": _evaluations(run, calls["evaluate"], sites),
        "memory": {
            "bank": held * (sites + 1) * layout.nbytes,
            "per_worker": (2 + states) * layout.nbytes,
            "data": run.task.memory(),
        },
    }


def _mixed(run: RunConfig, sites: int) -> bool:
    """Whether a site's own models reach other sites in mixtures alone."""
    if run.models_reach(sites) != "sites" or run.tested_everywhere(sites):
        return False
    return run.method.mixes_models or run.method.models_reach == "server"


def _evaluations(run: RunConfig, asked: int, sites: int) -> dict[str, Any]:
    """How many times a model is scored on a site's cases.

    Args:
        run: the run.
        asked: times a site scores a global model, or one of the method's, on validation cases.
        sites: all sites.
    """
    shown = sites if asked else 0  # sites that score a global model
    alone = sites if run.method.shows_models else 0  # and those that score their own
    validated = alone + shown * max(1.0, asked / run.T) if run.task.has("validation") else 0
    tested = shown / run.general.test_every if run.general.test_every else 0
    where = where_tested(run.general.test_local, sites) if alone and run.general.test else "none"
    own = local_tests(where, sites)
    last = shown if run.general.select == "best" else 0  # beside the best global model
    final = shown + last if run.general.test else 0
    rounds = len(run.general.ceiling)
    return {
        "a_round": round(validated + tested),
        "at_the_end": final + own + rounds * times_asked("evaluate", 1, sites) * sites,
        "own_models": own,
        "test_local": where,
    }
