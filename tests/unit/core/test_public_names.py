"""Every name that the package exports can be imported, and is what it says."""

import importlib
import subprocess
import sys

import pytest

import autofedavg
from autofedavg import methods
from autofedavg.core import errors

USERS = ["federate", "LoaderSite", "Machine", "Training"]
USERS += ["read_study", "run_study", "resume", "predict"]
AUTHORS = ["Federation", "Method", "Round", "setting"]


@pytest.mark.parametrize("name", autofedavg.__all__)
def test_every_exported_name_resolves(name: str) -> None:
    found = getattr(autofedavg, name)
    assert found.__name__ == name
    home = importlib.import_module(found.__module__)
    assert getattr(home, name) is found


def test_users_authors_methods_and_errors_are_exported() -> None:
    kinds = [kind.__name__ for kind in vars(errors).values() if isinstance(kind, type)]
    tree = [name for name in kinds if issubclass(getattr(errors, name), errors.AutoFedAvgError)]
    ours = [methods.METHODS[name].__name__ for name in methods.METHODS]
    assert {*USERS, *AUTHORS, *ours, *tree} <= {*autofedavg.__all__}
    assert len(tree) == 9


@pytest.mark.parametrize("name", AUTHORS)
def test_authors_find_their_names_in_methods(name: str) -> None:
    assert name in methods.__all__
    assert getattr(methods, name) is getattr(autofedavg, name)


@pytest.mark.parametrize("module", [autofedavg, methods])
def test_an_unknown_name_is_an_attribute_error(module) -> None:
    with pytest.raises(AttributeError, match=f"module '{module.__name__}' has no attribute 'nope'"):
        module.nope  # noqa: B018 - the access is the test


@pytest.mark.process
def test_the_names_have_types(tmp_path) -> None:
    script = tmp_path / "typed.py"
    script.write_text(
        "from autofedavg import FedAvg, federate, read_study\n"
        "from autofedavg.methods import Method\n"
        "method: Method = FedAvg()\n"
        "study: int = read_study('demo')\n"
        "federate(1)\n"
    )
    command = [sys.executable, "-m", "mypy", "--follow-imports=silent", "--no-error-summary"]
    command += ["--config-file=", f"--cache-dir={tmp_path}", "--ignore-missing-imports"]
    done = subprocess.run([*command, str(script)], capture_output=True, text=True, timeout=280)
    assert [line.split("error: ")[1] for line in done.stdout.splitlines() if "error: " in line] == [
        'Incompatible types in assignment (expression has type "Study", variable has type "int")'
        "  [assignment]",
        'Missing positional arguments "loss", "sites", "score" in call to "federate"  [call-arg]',
        'Argument 1 to "federate" has incompatible type "int"; expected "Callable[[], Module]"'
        "  [arg-type]",
    ], done.stdout + done.stderr
