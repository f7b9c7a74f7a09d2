# SPDX-License-Identifier: Apache-2.0
"""A rank that stops without dying (SIGSTOP): the others say which one it is and where it stands, and end."""
import re
import signal

import pytest
import runs

RANKS = 3


def job(noise, **more):
    return runs.busy_job(noise, RANKS, train__steps=100000, restart={"hang_after": "3s"}, **more)


def stop_and_collect(run, victim, step=15, *flags):
    """Stops a rank at `step` or later and waits until the others have ended: what each survivor logged, and the
    page of the stopped one."""
    parent = run.start(*flags)
    assert run.wait_until(run.at(victim, step=step), parent)
    runs.kill_pid(run.pids()[victim], signal.SIGSTOP)
    end = parent.wait()
    codes = end.codes()
    assert codes.pop(victim) == 128 + signal.SIGKILL and set(codes) == {69} and end.code == 69, end
    return {r: run.log(r) for r in range(run.ranks) if r != victim}, run.page(victim)


def assert_wait_for_it(logs, victim, page):
    """Survivors name the collective in which they wait: one that the stopped rank did not complete."""
    waits = [re.search(rf"all_reduce #(\d+) \([^)]+\) in 'dp': rank {victim} ", log) for log in logs.values()]
    numbers = [int(w[1]) for w in waits if w]
    assert numbers, logs
    assert all(page.left < n <= page.entered + 1 for n in numbers), (numbers, page.left, page.entered)


def assert_named(log, victim, host, page):
    """The message names rank, host, step and the collective it had reached: by its page, which may be read a moment
    before it stopped, or by what its peers saw."""
    said = re.search(
        rf"rank {victim} on host {host} \(running, step (\d+), (\w+)(?: of microbatch \d+)?, (?:in|after) "
        r"collective (\d+) \([^)]+\)(?:; its peers saw it enter \d+ last)?\) hangs",
        log,
    )
    assert said, log
    assert said[2] in runs.PHASES
    assert int(said[1]) == page.step and int(said[3]) == page.entered, (said[0], page.step, page.entered)


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_a_stopped_rank_is_named_with_its_step_and_collective(place, noise, victim):
    run = runs.Run(place, job(noise), "still")
    logs, page = stop_and_collect(run, victim)
    for log in logs.values():
        assert_named(log, victim, "here", page)
    assert_wait_for_it(logs, victim, page)


@pytest.mark.parametrize("step", [15, 31, 48] if runs.LONG else [15])
@pytest.mark.parametrize("victim", [1, 2, 3] if runs.LONG else [1, 3])
def test_in_a_pipeline_the_stopped_rank_is_named_whoever_counts_fewer_collectives(place, noise, victim, step):
    """Stages count their collectives each for itself; messages make one wait for the other in both directions."""
    made = runs.busy_job(noise, 4, mesh={"pp": 2, "tp": 2}, train__steps=100000, train__microbatches=4,
                         restart={"hang_after": "3s"})  # fmt: skip
    run = runs.Run(place, made, "stages")
    logs, page = stop_and_collect(run, victim, step)
    for log in logs.values():
        assert_named(log, victim, "here", page)


def test_across_hosts_a_stopped_rank_is_named(place, noise):
    run = runs.Run(place, job(noise), "apart")
    logs, page = stop_and_collect(run, 2, 15, *runs.on_hosts("h0", "h1", "h2"))
    for log in logs.values():
        assert_named(log, 2, "h2", page)
    assert_wait_for_it(logs, 2, page)


def test_in_network_namespaces_a_stopped_rank_is_named(place, noise, cable):
    """Rank 0 alone on one side of the cable; a peer of the stopped one shares its host."""
    run = runs.Run(place, job(noise), "cable")
    logs, page = stop_and_collect(run, 2, 15, *runs.on_cable(cable, [0, 1, 1]))
    for log in logs.values():
        assert_named(log, 2, "side1", page)
    assert_wait_for_it(logs, 2, page)


def test_a_pause_shorter_than_hang_after_is_no_hang(place, noise):
    run = runs.Run(place, runs.busy_job(noise, RANKS, restart={"hang_after": "60s"}), "pause")
    parent = run.start()
    assert run.wait_until(run.at(1, step=10), parent)
    pid = run.pids()[1]
    runs.kill_pid(pid, signal.SIGSTOP)
    run.wait_until(lambda: run.page(0).entered > run.page(1).left)  # rank 0 waits for it
    runs.kill_pid(pid, signal.SIGCONT)
    assert parent.wait().code == 0
