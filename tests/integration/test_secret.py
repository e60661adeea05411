"""`learning = "server"` on a real engine: what a site can make of the mixtures it is sent.

The attacks are those of a site that keeps every message, knows its own model, the job and the code.
"""

import math
import statistics
from pathlib import Path

import pytest
import torch
from tests_tiny import TINY

from autofedavg import Machine, read_study, resume, run_study
from autofedavg.core.constraints import Dirichlet
from autofedavg.core.errors import RunError
from autofedavg.core.seeds import Purpose, Secret, Seeds
from autofedavg.engines.remote import server as hosting
from autofedavg.engines.remote.job import Job
from autofedavg.engines.remote.server import host
from autofedavg.experiment.archive import archive
from autofedavg.experiment.archive_reader import as_folder
from autofedavg.experiment.folder import Ledger
from autofedavg.experiment.secret import kept_secret, secret_of
from deployed import InProcessTransport, assert_same_run, job_of

TEXT = TINY.partition("[[run]]")[0].replace('baseline = "fedavg"', "").replace("3\n", "2\n", 1)
TEXT += "[[run]]\nname = 'server'\nmethod = { name = 'auto-fedavg', learning = 'server' }\n"
SECRET = Secret(20261117)  # any; the test of a fresh one is below
ROOT = Path(__file__).parents[2]


@pytest.fixture
def study(tmp_path):
    (tmp_path / "tiny.toml").write_text(TEXT)
    return read_study(tmp_path / "tiny.toml")


def with_secret(folder: Path, secret: Secret = SECRET) -> Path:
    folder.mkdir(parents=True)
    (folder / ".secret").write_text(secret.text)
    return folder


class Overheard(InProcessTransport):
    """What site I is sent, and, to compare, what every site has trained."""

    def __init__(self, job):
        super().__init__(job)
        self.mixtures, self.models = {}, {}

    def _one(self, verb, site, message):
        if (verb, site) == ("differentiate", "I"):
            self.mixtures.setdefault(message.facts["t"], []).append(
                message.arrays["values"].double()
            )
        answer = super()._one(verb, site, message)
        if verb == "local_train":
            trained = self.models.setdefault(message.facts["t"], {})
            trained[site] = answer.arrays["values"].double()
        return answer

    def known(self, t):
        """What a site has to go by: (S, D) mixtures and its own model."""
        return torch.stack(self.mixtures[t]), self.models[t]["I"]

    def misses(self, found, t):
        """How far off each found model is, as a share of how far the true one is from I's own."""
        own, *true = self.models[t].values()
        return [float((f - w).norm() / (w - own).norm()) for f, w in zip(found, true, strict=True)]

    def cosines(self, found, t):
        own, *true = self.models[t].values()
        towards = torch.nn.functional.cosine_similarity
        return [float(towards(f - own, w - own, dim=0)) for f, w in zip(found, true, strict=True)]


def by_the_seed(job, mixtures, own, t):
    """Least squares with the alpha that the job's seed gives at beta0: the others' models."""
    gamma, K = Dirichlet(job.row.method.beta0), len(job.sites)
    chances = [
        Seeds(job.seed).generator("server", Purpose.ALPHA, t, s)
        for s in range(1, len(mixtures) + 1)
    ]
    alpha = torch.stack([gamma.sample(gamma.initial(K), chance) for chance in chances])
    return torch.linalg.lstsq(alpha[:, 1:], mixtures - alpha[:, :1] * own).solution


def by_their_spread(job, mixtures, own):
    """No alpha is known: mean and spread of Dir(beta0) lay out a triangle with I's own corner."""
    K = 3
    centre = mixtures.mean(dim=0)
    plane = torch.linalg.svd(mixtures - centre, full_matrices=False).Vh[: K - 1]
    points, corner = (mixtures - centre) @ plane.T, plane @ (own - centre)
    spread = torch.linalg.cholesky(points.T @ points / (len(points) - 1))
    first = torch.linalg.solve_triangular(spread, corner[:, None], upper=False)[:, 0]
    radius = math.sqrt((1 - 1 / K) * K * (K * job.row.method.beta0 + 1))
    first = radius * first / first.norm()
    half, turn = -0.5, math.sqrt(3) / 2
    turns = torch.tensor([[[half, -turn], [turn, half]], [[half, turn], [-turn, half]]])
    return centre + (turns.double() @ first) @ spread.T @ plane


def nearest(transport, found, t):
    """The order of the found models that fits best: the attack does not tell whose is which."""
    return min((found, found.flip(0)), key=lambda order: sum(transport.misses(order, t)))


@pytest.fixture(scope="module")
def overheard(tmp_path_factory):
    """A job of three sites and six calls whose secret is SECRET."""
    home = tmp_path_factory.mktemp("overheard")
    (home / "tiny.toml").write_text(TEXT)
    job = job_of(read_study(home / "tiny.toml", ["rounds=6"]), "server")
    transport = Overheard(job)
    with_secret(job.folder(home / "runs"))
    host(job, transport, home / "runs")
    return job, transport


class FromTheSeed(Seeds):
    """No secret at all."""

    text = "known to all"


def test_drawn_from_the_seed_the_models_are_found(study, tmp_path, monkeypatch):
    """The reason for a secret, and proof that the attack of the next test is one."""
    job = job_of(study, "server")
    transport = Overheard(job)
    monkeypatch.setattr(hosting, "secret_of", lambda path: FromTheSeed(job.seed))
    host(job, transport, tmp_path)
    for t in (1, 2):
        found = by_the_seed(job, *transport.known(t), t)
        assert max(transport.misses(found, t)) < 0.15
        assert min(transport.cosines(found, t)) > 0.998


def test_drawn_from_a_secret_the_seed_says_nothing(overheard):
    """What it finds is no nearer than the mean of the mixtures, which a site has anyway."""
    job, transport = overheard
    missed, middle = [], []
    for t in range(1, 7):
        mixtures, own = transport.known(t)
        others = own + 1.5 * (mixtures.mean(dim=0) - own)
        missed += transport.misses(by_the_seed(job, mixtures, own, t), t)
        middle += transport.misses([others, others], t)
    assert statistics.fmean(missed) > 0.9 * statistics.fmean(middle) > 0.4
    assert min(missed) > 0.25


def test_but_three_sites_are_found_without_any_alpha(overheard):
    """What a secret cannot mend, and the documents must say."""
    job, transport = overheard
    for t in (1, 2, 3):
        found = nearest(transport, by_their_spread(job, *transport.known(t)), t)
        assert min(transport.cosines(found, t)) > 0.98
        assert max(transport.misses(found, t)) < 0.35


def test_and_two_sites_hide_nothing(study, tmp_path):
    row = study.runs[0].resolved()
    job = Job.of(study.name, row, 0, ["I", "II"], wait=60.0, threads=1)
    transport = Overheard(job)
    with_secret(job.folder(tmp_path))
    path = host(job, transport, tmp_path)
    for t in (1, 2):
        mixtures, own = transport.known(t)
        found = [own + 2 * (mixtures.mean(dim=0) - own)]
        assert (
            transport.cosines(found, t)[0] > 0.9999
        )  # only how far to go is not known to the digit
        assert transport.misses(found, t)[0] < 0.45
    said = (path / "log.txt").read_text()
    assert "WARNING" in said
    assert "a site that tries can find it from the mixtures: with two sites" in said


def test_the_record_says_what_the_secret_does_not_do():
    record = (ROOT / "docs/decisions/0044-mixing-weights-from-a-secret.md").read_text()
    said = " ".join(record.split())
    assert "does not hide a model from a site that tries" in said
    assert "With two sites nothing is hidden" in said


@pytest.mark.parametrize("constraint", ["dirichlet", "softmax"])
def test_check_says_it_too(constraint, study, tmp_path, say):
    given = ("--set", f"method.constraint='{constraint}'")
    code, out, _ = say("check", tmp_path / "tiny.toml", *given)
    assert code == 0
    assert "a site that tries can find it from the mixtures" in out
    assert ("the softmax draws nothing" in out) == (constraint == "softmax")
    out = say("check", tmp_path / "tiny.toml", *given, "--set", "method.learning='clients'")[1]
    assert "mixtures" not in out


def test_a_secret_is_new_for_every_run_and_the_owners_alone(study, tmp_path):
    job = job_of(study, "server")
    one, other = (host(job, InProcessTransport(job), tmp_path / name) for name in ("one", "other"))
    assert (one / ".secret").stat().st_mode & 0o777 == 0o600
    assert kept_secret(one) != kept_secret(other)
    assert len(kept_secret(one).text) == 64
    assert Ledger(one).rounds()[0]["alpha"] != Ledger(other).rounds()[0]["alpha"]


def test_nothing_that_is_sent_or_published_holds_it(study, tmp_path):
    run_study(study, tmp_path / "runs")  # for its study.json
    job = job_of(study, "server")
    path = job.folder(tmp_path / "runs")
    for file in [*path.glob("*.*"), *path.glob("checkpoints/*")]:
        file.unlink()
    with_secret(tmp_path / "made")
    (tmp_path / "made" / ".secret").replace(path / ".secret")
    transport = InProcessTransport(job)
    host(job, transport, tmp_path / "runs")
    assert SECRET.text not in job.text()
    assert not any(SECRET.text.encode() in sent for sent in transport.sent)
    for file in path.rglob("*"):
        holds = file.is_file() and SECRET.text.encode() in file.read_bytes()
        assert holds == (file.name == ".secret"), file
    archive([path], tmp_path / "archive")
    (packed,) = (tmp_path / "archive").iterdir()
    assert not list(as_folder(packed).rglob(".*"))


def test_flares_download_leaves_it_out(study, tmp_path):
    controller = pytest.importorskip(
        "autofedavg.engines.flare.controller", reason="needs autofedavg[flare]"
    )
    job = job_of(study, "server")
    path = with_secret(job.folder(tmp_path / "runs"))
    (path / "config.toml").write_text("")
    controller._copy_for_download(job, tmp_path / "runs", tmp_path / "download")
    copied = [file.name for file in (tmp_path / "download").rglob("*") if file.is_file()]
    assert copied == ["config.toml"]


def test_with_one_secret_a_job_gives_the_simulators_bits(study, tmp_path):
    job = job_of(study, "server")
    for name in ("here", "there"):
        with_secret(job.folder(tmp_path / name))
    home = run_study(study, tmp_path / "here")
    host(job, InProcessTransport(job), tmp_path / "there")
    assert_same_run(home / "server" / "seed-0", job.folder(tmp_path / "there"))
    run_study(study, tmp_path / "seed")
    drawn = [Ledger(job.folder(tmp_path / name)).rounds()[0]["alpha"] for name in ("here", "seed")]
    assert drawn[0] != drawn[1]


def test_a_run_that_was_stopped_goes_on_with_its_secret(study, tmp_path):
    job = job_of(study, "server")
    asked = []

    def stop(verb, site, answer):
        asked.append(verb)
        if asked.count("local_train") > 4:
            raise KeyboardInterrupt
        return answer

    with pytest.raises(KeyboardInterrupt):
        host(job, InProcessTransport(job, spoil=stop), tmp_path / "stopped")
    path = job.folder(tmp_path / "stopped")
    secret = kept_secret(path)
    with_secret(job.folder(tmp_path / "whole"), secret)
    host(job, InProcessTransport(job), tmp_path / "stopped")
    host(job, InProcessTransport(job), tmp_path / "whole")
    assert kept_secret(path) == secret
    assert_same_run(job.folder(tmp_path / "whole"), path)


def test_and_so_it_does_in_the_simulator(study, tmp_path):
    job = job_of(study, "server")
    for name in ("stopped", "whole"):
        with_secret(job.folder(tmp_path / name))
    asked = []

    def stop(verb, site, answer):
        asked.append(verb)
        if asked.count("local_train") > 4:
            raise KeyboardInterrupt
        return answer

    with pytest.raises(KeyboardInterrupt):
        host(job, InProcessTransport(job, spoil=stop), tmp_path / "stopped")
    path = job.folder(tmp_path / "stopped")
    resume(path, Machine("simulator"))
    host(job, InProcessTransport(job), tmp_path / "whole")
    assert_same_run(job.folder(tmp_path / "whole"), path)


@pytest.mark.parametrize("content", [b"", b"12", b"x" * 64, b"\xff" * 64])
def test_a_damaged_secret_is_an_error(content, tmp_path):
    (tmp_path / ".secret").write_bytes(content)
    with pytest.raises(RunError, match=r"\.secret: the server's secret cannot be read"):
        secret_of(tmp_path)
    assert (tmp_path / ".secret").read_bytes() == content


def test_a_link_is_not_followed(tmp_path):
    (tmp_path / "elsewhere").write_text(SECRET.text)
    (tmp_path / ".secret").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RunError, match="secret cannot be read"):
        secret_of(tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_flower_draws_from_the_secret(study, tmp_path):
    pytest.importorskip("flwr", reason="needs autofedavg[flower]")
    from autofedavg.engines.flower import Loopback

    job = job_of(study, "server", wait=300.0)
    for name in ("here", "there"):
        with_secret(job.folder(tmp_path / name))
    run_study(study, tmp_path / "here")
    with Loopback(job.sites, {}, tmp_path / "there", tmp_path / "scratch") as flower:
        flower.run(job, lambda: None)
    assert_same_run(job.folder(tmp_path / "here"), job.folder(tmp_path / "there"))
