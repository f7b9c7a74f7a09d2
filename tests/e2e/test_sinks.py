# SPDX-License-Identifier: Apache-2.0
"""Sinks of a weft run: programs that get the metrics, whatever becomes of them. Which rows they get is in
tests/unit/test_agent_sinks.c; that TensorBoard reads its events in check-peers."""
import json
import shlex

import runs

KEEPS = "cat >>{}/kept"
DIES = "read -r header; echo last words >&2; exit 3"
HANGS = "exec sleep 1000"


def script(place, name, text):
    path = place / f"{name}.sh"
    path.write_text(text.format(place) + "\n")
    return f"{name}=/bin/sh {shlex.quote(str(path))}"


def weft_run(run, *more):
    sinks = [script(run.place, n, t) for n, t in [("keeps", KEEPS), ("dies", DIES), ("hangs", HANGS)]]
    return runs.weft("run", str(run.file), *more, *[word for s in sinks for word in ("--sink", s)])


def test_a_run_is_followed_by_its_sinks_and_stopped_by_none(place, toy):
    run = runs.Run(place, runs.job(toy, 2, metrics={"sinks": ["tensorboard", "keeps", "dies", "hangs", "absent"]}), "mine")
    assert weft_run(run).code == 0
    (store,) = run.stores()
    assert weft_run(run, "-s", "train.steps=40").code == 0  # a second attempt, from step 30
    lines = [json.loads(line) for line in (place / "kept").read_text().splitlines()]
    headers, rows = [x for x in lines if "weft" in x], [x for x in lines if "weft" not in x]
    assert [x["step"] for x in rows] == list(range(1, 41))
    assert [(h["resumed_at"], h["steps"]) for h in headers] == [(0, 30), (30, 40)]
    assert headers[0]["store"] == str(store) and headers[0]["resolved"]["metrics"]["sinks"][0] == "tensorboard"
    assert (store / "tensorboard/events.out.tfevents.weft").stat().st_size > 40 * 100
    assert json.loads((store / "sinks/keeps").read_text())["step"] == 40
    assert json.loads((store / "sinks/tensorboard").read_text())["step"] == 40
    log = (place / ".weft/test/log").read_text()
    assert "sink=dies ended with exit code 3" in log and "it printed: last words" in log
    assert "sink=hangs did not end, and was killed" in log
    why = runs.weft("why", "test", "--coordinator", str(place / ".weft/test"))
    assert "no sinks of these names: absent" in why.out, why
    assert not runs.processes_naming(place)


def test_wrong_sinks_are_refused(place, toy):
    run = runs.Run(place, runs.job(toy, 1), "mine")
    end = runs.weft("run", str(run.file), "--sink", "tensorboard=cat")
    assert end.code != 0 and "--sink: there is a sink 'tensorboard' already" in end.err, end
    end = runs.weft("plan", str(run.file), "-s", "metrics.sinks=[../x]")
    assert end.code == 2 and "metrics.sinks" in end.err and "will not do" in end.err, end
