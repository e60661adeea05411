"""The committed tiny study is what this version computes: byte for byte on the same processor."""

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file
from tests_tiny import run_tiny

TIMES = {"time", "seconds"}


def untimed(value):
    """JSON without what a clock said."""
    if isinstance(value, dict):
        return {key: untimed(entry) for key, entry in value.items() if key not in TIMES}
    return [untimed(entry) for entry in value] if isinstance(value, list) else value


def files(home: Path, pattern: str) -> dict[str, Path]:
    return {path.relative_to(home).as_posix(): path for path in home.glob(pattern)}


@pytest.fixture(scope="module")
def tiny_now(tmp_path_factory) -> Path:
    return run_tiny(tmp_path_factory.mktemp("tiny-now"))


@pytest.fixture(scope="module")
def same_processor(tiny_home, tiny_now) -> bool:
    then, now = (
        json.loads((home / "fedavg/seed-0/environment.json").read_text())
        for home in (tiny_home, tiny_now)
    )
    return then["processor"] == now["processor"]


@pytest.mark.parametrize("pattern", ["*/*/config.toml", "*/*/scores.csv", "*/*/rounds.jsonl",
                                     "*/*/checkpoints/*.safetensors"])  # fmt: skip
def test_the_committed_study_is_what_this_version_computes(
    tiny_home, tiny_now, same_processor, pattern
):
    """Elsewhere the folder has the same files, and models agree to rounding."""
    wanted, found = files(tiny_home, pattern), files(tiny_now, pattern)
    assert wanted
    if not same_processor and "checkpoints" not in pattern:
        pytest.skip("another processor than the one that ran the committed study")
    if same_processor:
        assert set(found) == set(wanted)
    for name in set(wanted) & set(found):
        if pattern.endswith("jsonl"):
            then, now = (
                [untimed(json.loads(line)) for line in home[name].read_text().splitlines()]
                for home in (wanted, found)
            )
            assert now == then, name
        elif same_processor:
            assert found[name].read_bytes() == wanted[name].read_bytes(), name
        else:
            then, now = load_file(wanted[name]), load_file(found[name])
            assert all(now[key].allclose(value, atol=1e-3) for key, value in then.items()), name
