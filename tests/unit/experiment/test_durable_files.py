"""What a run has written outlives a loss of power: each file, and the name of each new one."""

from autofedavg.experiment.folder_writer import RunFolder, write_atomically
from synced import synced_to


def test_a_file_is_whole_on_the_disk_before_it_takes_another_ones_place(tmp_path, monkeypatch):
    path = tmp_path / "status.json"
    path.write_bytes(b"before")
    found = synced_to(monkeypatch)
    write_atomically(path, b"after")
    (partial, content), folder = found
    assert partial.startswith("status.json.")
    assert partial.endswith(".part")
    assert (content, folder) == (b"after", (tmp_path.name, b""))
    assert path.read_bytes() == b"after"


def test_every_round_is_on_the_disk_before_the_next_one(tmp_path, monkeypatch):
    (tmp_path / "rounds.jsonl").touch()
    found = synced_to(monkeypatch)
    RunFolder(tmp_path).append_round({"t": 1})
    assert [(name, content.count(b"\n")) for name, content in found] == [("rounds.jsonl", 1)]
