"""A site's ledger: what counts, what is free, what is refused."""

import pytest

from autofedavg.core.accountant import Mechanism, composed, epsilon, epsilon_of, parallel
from autofedavg.federation.ledger import BudgetError, Entry, Ledger, Limit

FIRST = Entry("job", "local_train", 1, 0, "train", 0.1, 2.0, 50, "digest-1")


def entry(**changes):
    return FIRST._replace(**changes)


def test_a_repeated_request_costs_nothing():
    ledger = Ledger(Limit(delta=1e-4))
    ledger.spend(FIRST)
    once = ledger.epsilon()
    assert once == epsilon(0.1, 2.0, 50, 1e-4)
    ledger.spend(FIRST)
    ledger.spend(FIRST._replace(t=1))
    assert ledger.epsilon() == once
    ledger.spend(entry(digest="digest-2", t=2))
    assert ledger.epsilon() == epsilon(0.1, 2.0, 100, 1e-4)


def test_disjoint_patients_of_a_job_count_in_parallel_and_the_same_ones_together():
    apart, together = Ledger(), Ledger()
    step = entry(call="update_beta", s=1, q=0.5, steps=4, digest="digest-2")
    apart.spend(FIRST)
    apart.spend(step._replace(group="validation"))
    together.spend(FIRST)
    together.spend(step)
    spent = [{Mechanism(0.1, 2.0): 50}, {Mechanism(0.5, 2.0): 4}]
    assert apart.epsilon() == epsilon_of(parallel(spent), 1e-3)
    assert together.epsilon() == pytest.approx(epsilon_of(sum(map(composed, spent)), 1e-3))
    assert together.epsilon() > apart.epsilon()


def test_jobs_count_one_on_top_of_the_other_whatever_their_splits():
    ledger = Ledger()
    ledger.spend(FIRST)
    ledger.spend(entry(job="next", group="validation", digest="digest-2"))
    assert ledger.epsilon() == pytest.approx(epsilon(0.1, 2.0, 100, 1e-3))
    assert ledger.epsilon(job="next") == epsilon(0.1, 2.0, 50, 1e-3)


def test_beyond_the_limit_nothing_is_released_or_recorded():
    most = epsilon(0.1, 2.0, 120, 1e-3)
    ledger = Ledger(Limit(most))
    for t in (1, 2):
        ledger.spend(entry(t=t, digest=f"digest-{t}"))
    spent = ledger.epsilon()
    with pytest.raises(BudgetError, match=r"local_train of round 3 would make epsilon 2\.251 at"):
        ledger.spend(entry(t=3, digest="digest-3"))
    assert ledger.epsilon() == spent <= most
    ledger.spend(FIRST)  # the same answer once more
    ledger.spend(entry(t=3, steps=20, digest="digest-4"))
    assert ledger.epsilon() == pytest.approx(most)


def test_a_step_that_is_asked_for_again_from_another_model():
    step = entry(call="update_beta", s=2, digest="digest-2")
    other = step._replace(digest="digest-3")
    strict, lenient = Ledger(Limit(replays="refuse")), Ledger(Limit(replays="count"))
    for ledger in (strict, lenient):
        ledger.spend(step)
    with pytest.raises(BudgetError, match="update_beta of round 1, step 2 was answered before"):
        strict.spend(other)
    strict.spend(step)
    strict.spend(other._replace(s=3))
    strict.spend(other._replace(job="next", digest="digest-4"))
    before = lenient.epsilon()
    lenient.spend(other)
    assert lenient.epsilon() > before
