# SPDX-License-Identifier: Apache-2.0
"""A rank that stops without dying (SIGSTOP): the others say which one it is and where it stands, and end."""
import re
import signal

import pytest
import solo

RANKS = 3


def job(noise, **more):
    return solo.busy_job(noise, RANKS, train__steps=100000, restart={"hang_after": "3s"}, **more)


def stop_and_collect(run, ranks, victim, step=15):
    """Stops a rank at `step` or later, waits for the others' ends, then ends it too."""
    assert run.wait_until(run.at(victim, step=step), ranks[victim])
    ranks[victim].signal(signal.SIGSTOP)
    try:
        ends = {r: ranks[r].wait() for r in range(len(ranks)) if r != victim}
        page = run.page(victim)
    finally:
        solo.kill_pid(ranks[victim].pid)
    ranks[victim].wait()
    return ends, page


def assert_wait_for_it(ends, victim, page):
    """Survivors name the collective in which they wait: one that the stopped rank did not complete."""
    waits = [re.search(rf"all_reduce #(\d+) \([^)]+\) in 'dp': rank {victim} ", e.err) for e in ends.values()]
    numbers = [int(w[1]) for w in waits if w]
    assert numbers, ends
    assert all(page.left < n <= page.entered + 1 for n in numbers), (numbers, page.left, page.entered)


def assert_named(end, victim, host, page):
    """The message names rank, host, step and the collective it had reached."""
    assert end.code == 69, end
    said = re.search(
        rf"rank {victim} on host {host} \(running, step (\d+), (\w+)(?: of microbatch \d+)?, (in|after) collective (\d+) \(([^)]+)\)\) hangs",
        end.err,
    )
    assert said, end
    assert said[2] in solo.PHASES
    assert int(said[1]) == page.step and int(said[4]) == page.entered, (said[0], page.step, page.entered)
    assert (said[3] == "in") == (page.entered > page.left)


@pytest.mark.parametrize("victim", [1, 2])
def test_a_stopped_rank_is_named_with_its_step_and_collective(place, noise, victim):
    run = solo.Run(place, job(noise), "still")
    ranks = [run.start_rank(r) for r in range(RANKS)]
    ends, page = stop_and_collect(run, ranks, victim)
    for end in ends.values():
        assert_named(end, victim, r"\S+", page)
    assert_wait_for_it(ends, victim, page)


@pytest.mark.parametrize("step", [15, 31, 48] if solo.LONG else [15])
@pytest.mark.parametrize("victim", [1, 2, 3] if solo.LONG else [1, 3])
def test_in_a_pipeline_the_stopped_rank_is_named_whoever_counts_fewer_collectives(place, noise, victim, step):
    """Stages count their collectives each for itself; messages make one wait for the other in both directions."""
    made = solo.busy_job(noise, 4, mesh={"pp": 2, "tp": 2}, train__steps=100000, train__microbatches=4,
                         restart={"hang_after": "3s"})  # fmt: skip
    run = solo.Run(place, made, "stages")
    ranks = [run.start_rank(r) for r in range(4)]
    ends, page = stop_and_collect(run, ranks, victim, step)
    for end in ends.values():
        assert_named(end, victim, r"\S+", page)


def assert_seen_by_peers(ends, victim, page):
    """All name a rank of another host alike: by its last word, which may be older than where it
    stopped but never newer, and where it is older by the last collective that its peers saw it enter,
    which is exact."""
    said = {re.search(rf"rank {victim} on host \S+ \(running, [^)]*\([^)]*\)[^)]*\) hangs", e.err)[0] for e in ends.values()}
    assert len(said) == 1, said
    word = re.search(r"step (\d+), .*collective (\d+) \([^)]*\)(?:; its peers saw it enter (\d+) last)?\)", said.pop())
    assert word, ends
    step, told, seen = (int(n or word[2]) for n in word.groups())
    assert 0 < step <= page.step and 0 < told <= page.entered
    assert max(told, page.left) <= seen <= page.entered, (told, seen, page.left, page.entered)
    assert_wait_for_it(ends, victim, page)


# Far enough in that it has told of a collective: a rank of another host does so a few times a second.
TOLD = 300


def test_across_hosts_a_stopped_rank_is_named_with_what_its_peers_saw(place, noise):
    run = solo.Run(place, job(noise), "apart")
    ranks = [run.start_rank(r, "--host", f"h{r}", "--listen", "127.0.0.1:0") for r in range(RANKS)]
    ends, page = stop_and_collect(run, ranks, 2, step=TOLD)
    assert all("rank 2 on host h2 (" in e.err for e in ends.values())
    assert all(e.code == 69 for e in ends.values()), ends
    assert_seen_by_peers(ends, 2, page)


def test_in_network_namespaces_a_stopped_rank_is_named_with_what_its_peers_saw(place, noise, cable):
    """Rank 0 alone on one side of the cable; a peer of the stopped one shares its host."""
    run = solo.Run(place, job(noise), "cable")
    ranks = []
    for r in range(RANKS):
        side = min(r, 1)
        ranks.append(run.start_rank(r, "--listen", f"{cable.address[side]}:0", prefix=cable.enter[side]))
    ends, page = stop_and_collect(run, ranks, 2, step=TOLD)
    assert all(e.code == 69 for e in ends.values()), ends
    assert_seen_by_peers(ends, 2, page)


def test_a_stopped_leader_is_named_too(place, noise):
    """Nobody hears from rank 0 any more: the others say so, and where it was seen last."""
    run = solo.Run(place, job(noise), "leader")
    ranks = [run.start_rank(r) for r in range(RANKS)]
    ends, page = stop_and_collect(run, ranks, 0)
    for end in ends.values():
        assert end.code == 69, end
        said = re.search(r"lost rank 0 on host \S+, which leads: .*step (\d+).*collective (\d+)", end.err)
        assert said, end
        assert 0 < int(said[1]) <= page.step


def test_the_parent_puts_an_end_to_a_stopped_rank(place, noise):
    """Left alone, the whole run ends by itself: no process stays, stopped or not."""
    run = solo.Run(place, job(noise), "parent")
    parent = run.start()
    assert run.wait_until(run.at(1, step=15), parent)
    pid = run.pids()[1]
    solo.kill_pid(pid, signal.SIGSTOP)
    end = parent.wait()
    assert end.code == 69, end
    assert re.search(r"rank 1 on host \S+ \(running, step \d+", end.err), end
    assert not solo.alive(pid) and not run.pids()


def test_a_pause_shorter_than_hang_after_is_no_hang(place, noise):
    run = solo.Run(place, solo.busy_job(noise, RANKS, restart={"hang_after": "60s"}), "pause")
    parent = run.start()
    assert run.wait_until(run.at(1, step=10), parent)
    pid = run.pids()[1]
    solo.kill_pid(pid, signal.SIGSTOP)
    run.wait_until(lambda: run.page(0).entered > run.page(1).left)  # rank 0 waits for it
    solo.kill_pid(pid, signal.SIGCONT)
    assert parent.wait().code == 0
