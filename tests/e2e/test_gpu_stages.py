# SPDX-License-Identifier: Apache-2.0
"""The order of turns on a lent GPU, and what each is expected to take: pure functions, no clock."""
import sys

import pytest
import runs

sys.path.append(str(runs.REPO / "tests/bench/gpu"))
import result  # noqa: E402
import runner  # noqa: E402
import stages  # noqa: E402
from stages import AGAIN, BUDGETS, IN_ORDER, STAGES, SWIFT, Cost, Took, cost_of, expected_s, second_turns  # noqa: E402


def played(stage):
    """The stage's turns with what each is expected to take, if all guesses are right; second turns as if the peer that
    starts slowest were the fastest: the worst case."""
    took, turns, order = {}, [], list(STAGES[stage])
    while order:
        part, what = order.pop(0)
        if what == AGAIN:
            had = [who for p, who, _ in turns if p == part]
            slow = {who: [-cost_of(part, who).warm] * had.count(who) for who in had}
            order[:0] = [(part, who) for who in second_turns(slow, turns[-1][1])]
            continue
        cost = cost_of(part, what)
        seconds = expected_s(cost, took.get((part, what)))
        took[part, what] = Took(seconds, cost.warm if (part, what) in took else cost.cold)
        turns.append((part, what, seconds))
    return turns


@pytest.mark.parametrize("stage", STAGES)
def test_what_is_listed_fits_with_room_for_what_takes_a_tenth_longer(stage):
    assert sum(expected_s(cost_of(part, what), None) for part, what in dict.fromkeys(STAGES[stage]) if what != AGAIN) * 1.1 <= BUDGETS[stage]


def test_a_gpu_three_times_as_slow_as_is_guessed_has_the_numbers_of_124m_in_stage_a():
    left = BUDGETS["a"]
    for part, what, seconds in played("a")[:3]:
        assert 3 * seconds <= left, (part, what)
        left -= 3 * seconds
    assert [what for _, what, _ in played("a")[:3]] == ["libraries", SWIFT, "weft"]


def test_each_peer_of_stage_b_stands_between_turns_of_weft():
    turns = [what for part, what in STAGES["b"] if part == "124m"]
    for peer in ("PyTorch", "llm.c"):
        assert turns[turns.index(peer) - 1] == turns[turns.index(peer) + 1] == SWIFT, turns


@pytest.mark.parametrize("stage", [s for s in STAGES if STAGES[s][0][1] == SWIFT and STAGES[s][-1][1] == AGAIN])
def test_the_fastest_peer_has_two_turns_between_those_of_weft(stage):
    turns, spent = [], 0
    for part, what, seconds in played(stage):
        if spent + seconds <= BUDGETS[stage]:  # else it is left out
            spent += seconds
            turns += [what] if not part.startswith("ops-") else []
    fastest = max((who for who in turns if not who.startswith("weft")), key=lambda who: cost_of(STAGES[stage][0][0], who).warm)
    places = [k for k, who in enumerate(turns) if who == fastest]
    assert len(places) == 2, turns
    for between in (turns[: places[0]], turns[places[0] : places[1]], turns[places[1] :]):
        assert SWIFT in between, turns


def test_a_second_turn_starts_as_warm_as_is_guessed_and_runs_as_long_as_it_did():
    cost = Cost(cold=75, warm=25, rest=15)
    assert expected_s(cost, None) == 90
    assert expected_s(cost, Took(all=130, start=100)) == 30 + 25  # the start was the cold one's, not the guess's
    assert expected_s(cost, Took(all=20, start=8)) == 20  # it was warm already, or faster than anybody thought
    assert expected_s(Cost(0, 0, 50), Took(70)) == 70  # what has no start takes as long again


def test_second_turns_go_to_the_fastest_peer_first():
    turns = {SWIFT: [97.0, 96.0], "weft, early": [95.0], "PyTorch": [130.0], "llm.c": [120.0], "JAX": [125.0, 124.0]}
    assert second_turns(turns, "JAX") == [SWIFT, "llm.c", SWIFT, "PyTorch", SWIFT]
    assert second_turns(turns, SWIFT) == ["llm.c", SWIFT, "PyTorch", SWIFT]
    assert second_turns({SWIFT: [97.0], "weft, early": [95.0]}, SWIFT) == []


def test_whoever_stands_in_for_a_contestant_is_expected_to_take_as_long():
    assert cost_of("124m", "PyTorch, flash") == cost_of("124m", "PyTorch") != cost_of("124m", "PyTorch, autotuned")
    assert cost_of("1558m", "JAX, forwards again") == cost_of("1558m", "JAX")


def test_stages_begin_with_weft_and_end_with_what_says_least():
    for stage in ("3", "4a", "4b", "4c"):
        assert STAGES[stage][0][1] == SWIFT
    for stage in ("a", "b"):
        assert STAGES[stage][0] == stages.LIBRARIES
    assert [what for _, what in STAGES["a"]][1:] == [SWIFT, "weft", "bf16", IN_ORDER, "ops", "trainings", "nccl"]
    for stage in STAGES.values():
        for part, what in stage:
            assert what == AGAIN or cost_of(part, what) in stages.COSTS.values()


def test_a_choice_has_its_place_and_what_the_librarys_first_costs():
    log = ("2026-11-25T21:25:37.002Z info cuda 16x24x32: chosen 5 of 5 (id 46, tile 0): 10.0 us, the library's first 15.0 us\n"
           "2026-11-25T21:25:37.002Z info cuda 32x24x32: chosen 1 of 7 (id 48, tile 3): 9.5 us, the library's first 9.5 us\n")
    rows = [line.split() for line in result.Result.choice_lines("124m", "weft", runner.chosen(log))][3:]
    assert rows == [["5", "5", "10.0", "15.0", "50.0%", "16x24x32:", "id", "46,", "tile", "0"],
                    ["1", "7", "9.5", "9.5", "0.0%", "32x24x32:", "id", "48,", "tile", "3"]]  # fmt: skip
