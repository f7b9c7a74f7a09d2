# SPDX-License-Identifier: Apache-2.0
"""weft metrics: rows of local, served, ended and resumed jobs, as a table, as JSON and as CSV."""
import csv
import io
import json
import signal

import runs


def rows_of(end):
    assert end.code == 0, end
    return [json.loads(line) for line in end.out.splitlines()]


def test_a_served_job_has_one_row_a_step_over_a_kill(one, noise):
    data = one.put_data(noise)
    job, pids = one.submit_and_stop(lambda: one.submit(runs.busy_job(data, 2, train__steps=60)), 2, 50)
    runs.kill_pid(pids[0], signal.SIGKILL)
    one.succeed(job)
    assert one.status(job)["restarts"] == 1
    rows = rows_of(one.weft("metrics", job, "--json"))
    assert [r["step"] for r in rows] == list(range(1, 61))
    assert rows[-1]["attempt"] == 2
    followed = rows_of(one.weft("metrics", job, "--json", "--follow"))  # of an ended job: what there is
    assert followed == rows
    table = one.weft("metrics", job).out.splitlines()
    assert table[0].split()[:3] == ["STEP", "ATTEMPT", "LOSS"]
    assert [int(line.split()[0]) for line in table[1:]] == list(range(41, 61))
    assert len(one.weft("metrics", job, "-n", "3").out.splitlines()) == 4


def test_who_follows_gets_each_row_as_it_comes(one, toy):
    job = one.submit(runs.job(one.put_data(toy), 1, train__steps=400))
    followed = rows_of(one.weft("metrics", job, "--json", "-f"))
    assert [r["step"] for r in followed] == list(range(1, 401))


def test_a_sweep_is_a_table_of_last_and_best(one, toy):
    data = one.put_data(toy)
    for name, value in (("slow", 0.001), ("fast", 0.05)):
        one.succeed(one.submit(runs.job(data, 1, name=name, eval={"every": 10}, schedule={"kind": "constant", "value": value})))
    table = {j["name"]: j for j in one.json("jobs", "--all", "--metrics")["jobs"]}
    for name, its in table.items():
        rows = rows_of(one.weft("metrics", name, "--json"))
        evaluated = {r["eval_loss"]: r["step"] for r in rows if "eval_loss" in r}
        assert (its["step"], its["loss"], its["best_loss"]) == (30, rows[-1]["loss"], min(r["loss"] for r in rows))
        assert (its["best_eval_loss"], its["best_eval_loss_step"]) == (min(evaluated), evaluated[min(evaluated)])
    assert table["fast"]["best_eval_loss"] < table["slow"]["best_eval_loss"]
    seen = one.weft("jobs", "-a", "--metrics").out.splitlines()
    assert seen[0].split() == ["JOB", "NAME", "STATE", "STEP", "LOSS", "BEST", "EVAL", "BEST", "AT", "SPEED"]
    assert len(seen) == 3 and all("samples/s" in line for line in seen[1:])


def test_csv_has_a_column_for_each_member(place, toy):
    run = runs.Run(place, runs.job(toy, 1, eval={"every": 10}))
    assert runs.weft("run", str(run.file)).code == 0
    where = ["--coordinator", str(place / ".weft" / "test")]
    rows = rows_of(runs.weft("metrics", "test", "--json", *where))
    table = list(csv.DictReader(io.StringIO(runs.weft("metrics", "test", "--csv", *where).out)))
    assert len(table) == len(rows) == 30
    for line, row in zip(table, rows):
        for key, text in line.items():
            value = row.get(key)
            assert text == ("" if value is None else value if isinstance(value, str) else json.dumps(value)) or float(text) == value
    assert [line["eval_loss"] != "" for line in table] == [i % 10 == 9 for i in range(30)]
    both = runs.weft("metrics", "test", "--csv", "--json", *where)
    assert both.code == 2 and "exclude each other" in both.err


def test_lines_that_are_no_rows_are_passed_over_and_a_link_is_not_followed(one, toy):
    job = one.submit(runs.job(one.put_data(toy), 1, train__steps=5))
    one.succeed(job)
    path = one.store(job) / "metrics.jsonl"
    text = path.read_text()
    path.write_text("no row\n" + text + '{"step": \x1b[31m}\n{"loss": 1}\n{"step":6,"loss":')
    assert [r["step"] for r in rows_of(one.weft("metrics", job, "--json"))] == [1, 2, 3, 4, 5]
    path.unlink()
    (one.place / "secret").write_text('{"step":1,"loss":666}\n')
    path.symlink_to(one.place / "secret")
    refused = one.weft("metrics", job)
    assert refused.code == 4 and "cannot open metrics.jsonl" in refused.err and "666" not in refused.out, refused
    path.unlink()
    none = one.weft("metrics", job)
    assert none.code == 0 and "has no rows yet" in none.err, none


def test_a_job_that_nobody_knows_and_a_worker_that_is_away_are_named(one, toy):
    unknown = one.weft("metrics", "nobody")
    assert unknown.code == 4 and "nobody" in unknown.err, unknown
    job = one.submit(runs.job(one.put_data(toy), 1, train__steps=5))
    one.succeed(job)
    one.workers[0].down()
    away = one.weft("metrics", job)
    assert away.code == 4 and "metrics" in away.err, away
    one.workers[0].up()
    one.wait_ready()
    assert len(rows_of(one.weft("metrics", job, "--json"))) == 5
