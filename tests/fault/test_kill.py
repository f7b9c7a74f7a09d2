# SPDX-License-Identifier: Apache-2.0
"""kill -9 of any process at any moment: the others end and name it, nothing is left running, and the
same command run again ends in the very bits of a run that was never disturbed."""
import random
import signal

import pytest
import runs

RANKS = 3
SEEDS = runs.seeds(6, 30)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, noise):
    return runs.train(tmp_path_factory.mktemp("undisturbed"), runs.busy_job(noise, RANKS), "calm")


def assert_ends_undisturbed(run, undisturbed):
    assert run.final() == undisturbed.final()
    assert run.losses() == undisturbed.losses()
    verify = runs.weft("ckpt", "verify", str(run.stores()[0]))
    assert verify.code == 0, verify


def draw_moment(rng, run, victim):
    """A condition and its description."""
    kind = rng.choice(["start", "step", "step", "step", "ckpt", "saved", "last"])
    if kind == "start":
        return "starting", run.at(victim, state="starting")
    if kind == "ckpt":
        def writing():
            return any(next(s.glob(".tmp-step-*"), None) for s in run.stores()) and run.page(victim)

        return "a checkpoint is open", writing
    if kind == "saved":
        return "a checkpoint is committed", run.saved(victim)
    if kind == "last":
        return "the last checkpoint", run.at(victim, state="saving")
    step, phase = rng.randint(2, runs.BUSY_STEPS - 5), rng.choice(["forward", "backward", "update"])
    return f"step {step}, {phase}", run.at(victim, step=step, phase=phase)


@pytest.mark.parametrize("seed", SEEDS)
def test_killed_at_random_moments_it_ends_in_the_same_bits(place, noise, undisturbed, seed):
    rng = random.Random(seed)
    run = runs.Run(place, runs.busy_job(noise, RANKS), "killed")
    for _ in range(2):
        victim = rng.choice(["leader", 0, 1, 2])
        text, moment = draw_moment(rng, run, 0 if victim == "leader" else victim)
        print(f"seed {seed}: kill -9 of {victim} at {text}")
        parent = run.start()
        if run.wait_until(moment, parent):
            target = parent.pid if victim == "leader" else run.pids().get(victim)
            if target:
                runs.kill_pid(target)
        end = parent.wait()
        if victim == "leader":
            run.wait_until(lambda: not run.pids())
        assert end.code in (0, -signal.SIGKILL, 128 + signal.SIGKILL), end  # 0: it was done before
        assert "did not end by themselves" not in end.err, end
        assert not run.pids()
    end = run.run()
    assert end.code == 0, end
    assert_ends_undisturbed(run, undisturbed)


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_the_survivors_name_the_dead_rank_and_end_with_69(place, noise, victim):
    run = runs.Run(place, runs.busy_job(noise, RANKS, train__steps=5000), "hand")
    parent = run.start()
    assert run.wait_until(run.at(victim, step=20), parent)
    runs.kill_pid(run.pids()[victim])
    end = parent.wait()
    assert end.codes() == [128 + signal.SIGKILL if r == victim else 69 for r in range(RANKS)], end
    for r in set(range(RANKS)) - {victim}:
        assert f"rank {victim} " in run.log(r), run.log(r)
        others = {f"rank {x} " for x in range(RANKS)} - {f"rank {victim} ", f"rank {r} "}
        lost = [line for line in run.log(r).splitlines() if " error " in line][-1]
        assert not any(o in lost.split("lost", 1)[-1] for o in others), lost


@pytest.mark.parametrize("victim", [0, 2])
def test_across_hosts_the_survivors_name_the_dead_rank(place, noise, victim):
    run = runs.Run(place, runs.busy_job(noise, RANKS, train__steps=5000), "hosts")
    parent = run.start(*runs.on_hosts("h0", "h1", "h0"))
    assert run.wait_until(run.at(victim, step=10), parent)
    runs.kill_pid(run.pids()[victim])
    end = parent.wait()
    assert end.codes() == [128 + signal.SIGKILL if r == victim else 69 for r in range(RANKS)], end
    for r in set(range(RANKS)) - {victim}:
        assert f"rank {victim} on host h{victim % 2}" in run.log(r), run.log(r)


@pytest.mark.parametrize("victim", [0, 1])
def test_the_leader_ends_with_the_code_of_the_culprit(place, noise, undisturbed, victim):
    run = runs.Run(place, runs.busy_job(noise, RANKS), "parent")
    parent = run.start_held(30)
    assert run.wait_until(run.saved(victim), parent)
    runs.kill_pid(run.pids()[victim])
    run.let_go()
    end = parent.wait()
    assert end.code == 128 + signal.SIGKILL, end
    assert "did not end by themselves" not in end.err, end
    assert not run.pids()
    run.finish()
    assert_ends_undisturbed(run, undisturbed)


@pytest.mark.parametrize("turn", SEEDS)
def test_killed_while_the_last_checkpoint_opens_nobody_waits_in_vain(place, noise, turn):
    run = runs.Run(place, runs.busy_job(noise, RANKS, train__steps=60), "last")
    parent = run.start()
    victim = turn % RANKS
    if run.wait_until(run.at(victim, state="saving"), parent) and victim in (pids := run.pids()):
        runs.kill_pid(pids[victim])
    codes = parent.wait().codes()
    assert codes.pop(victim) in (0, 128 + signal.SIGKILL)
    assert set(codes) <= {0, 69}, codes  # 0: it had the answer already


def test_no_rank_outlives_its_leader(place, noise):
    run = runs.Run(place, runs.busy_job(noise, RANKS, train__steps=100000), "orphan")
    parent = run.start()
    assert run.wait_until(run.at(1, step=3), parent)
    pids = run.pids()
    assert sorted(pids) == [0, 1, 2]
    runs.kill_pid(parent.pid)
    parent.wait()
    run.wait_until(lambda: not any(runs.alive(p) for p in pids.values()))


def test_killed_all_at_once_it_continues(place, noise, undisturbed):
    """As when the machine's power goes, but for what the disk forgot (tests/fault has that too)."""
    run = runs.Run(place, runs.busy_job(noise, RANKS), "all")
    parent = run.start_held(30)
    assert run.wait_until(run.saved(0), parent)
    for pid in [parent.pid, *run.pids().values()]:
        runs.kill_pid(pid)
    parent.wait()
    run.wait_until(lambda: not run.pids())
    saved = run.checkpoints()
    run.finish()
    assert_ends_undisturbed(run, undisturbed)
    assert run.checkpoints()[-1].manifest["parent"] == {"attempt": saved[-1].attempt, "step": saved[-1].step}


def test_killed_before_the_first_checkpoint_it_starts_over(place, noise, undisturbed):
    run = runs.Run(place, runs.busy_job(noise, RANKS), "early")
    parent = run.start_held(5)
    assert run.wait_until(run.at(2, step=2), parent)
    runs.kill_pid(run.pids()[2])
    run.let_go()
    assert parent.wait().code == 128 + signal.SIGKILL
    assert not run.checkpoints()
    run.finish()
    assert_ends_undisturbed(run, undisturbed)
