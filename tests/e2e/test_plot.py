# SPDX-License-Identifier: Apache-2.0
"""weft plot: curves of runs and sweeps, as text, as points and as SVG."""
import json
import os
import subprocess
import xml.dom.minidom

import runs


def plot(place, *args, **env):
    p = subprocess.run([runs.WEFT, "plot", *args], cwd=place, capture_output=True, text=True, stdin=subprocess.DEVNULL,
                       env={**os.environ, **env}, check=False)
    return runs.Ended(p.returncode, p.stdout, p.stderr)


def train(place, toy, name, value):
    run = runs.Run(place, runs.job(toy, 1, name=name, eval={"every": 10}, schedule={"kind": "constant", "value": value}), name)
    assert runs.weft("run", str(run.file)).code == 0


def test_a_sweep_is_seen_over_one_another(place, toy):
    train(place, toy, "slow", 0.001)
    train(place, toy, "fast", 0.05)
    seen = plot(place, "slow", "fast")
    assert seen.code == 0 and seen.out.count("\n") in (24, 25) and "\x1b" not in seen.out, seen
    assert all(f": {name}: {key}" in seen.out for name in ("slow", "fast") for key in ("loss", "eval_loss"))
    assert any("⠀" <= c <= "⣿" for c in seen.out)
    points = json.loads(plot(place, "slow", "fast", "--keys", "loss", "--json").out)["curves"]
    assert [c["name"] for c in points] == ["slow", "fast"]
    assert [(c["job"], c["key"]) for c in points] == [("slow", "loss"), ("fast", "loss")]
    assert [x for x, _ in points[0]["points"]] == list(range(1, 31))
    rows = [json.loads(line) for line in runs.weft("metrics", "slow", "--json", "--coordinator", str(place / ".weft/slow")).out.splitlines()]
    assert [y for _, y in points[0]["points"]] == [r["loss"] for r in rows]
    smooth = json.loads(plot(place, "slow", "--keys", "loss", "--smooth", "0.5", "--json").out)["curves"][0]["points"]
    a, b = rows[0]["loss"], rows[1]["loss"]
    assert smooth[0][1] == a and abs(smooth[1][1] - (a / 2 + b) / 1.5) < 1e-12
    assert plot(place, "slow", "fast", "--svg", "sweep.svg").code == 0
    svg = xml.dom.minidom.parse(str(place / "sweep.svg"))
    assert len(svg.getElementsByTagName("path")) > 4 and "slow: eval_loss" in svg.toxml()


def test_a_run_that_was_killed_and_resumed_is_one_curve(one, noise):
    data = one.put_data(noise)
    job, pids = one.submit_and_stop(lambda: one.submit(runs.busy_job(data, 2, train__steps=60)), 2, 50)
    runs.kill_pid(pids[1])
    one.succeed(job)
    curve = one.json("plot", job)["curves"][0]
    assert curve["name"] == "loss" and [x for x, _ in curve["points"]] == list(range(1, 61))


def test_what_cannot_be_drawn_is_said(place, toy):
    train(place, toy, "mine", 0.01)
    nothing = plot(place, "mine", "--keys", "nonsense")
    assert nothing.code == 0 and "no row has nonsense" in nothing.err and nothing.out == ""
    assert plot(place, "mine", "--smooth", "1").code == 2
    assert plot(place, "mine", "--keys", ",").code == 2
    assert plot(place, "mine", "--keys", ",".join("abcdefghi")).code == 2
    assert plot(place, "mine", "--json", "--svg", "x.svg").code == 2
    refused = plot(place, "mine", "--svg", "nowhere/x.svg")
    assert refused.code == 1 and "nowhere" in refused.err, refused
    assert plot(place, "other").code in (3, 4)
