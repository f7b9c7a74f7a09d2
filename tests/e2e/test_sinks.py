# SPDX-License-Identifier: Apache-2.0
"""Sinks of a weft run: programs that get the metrics, whatever becomes of them. Which rows they get is in
tests/unit/test_agent_sinks.c; that TensorBoard reads its events in check-peers."""
import http.server
import json
import pathlib
import shlex
import subprocess
import sys
import threading

import runs

MLFLOW = pathlib.Path(__file__).parents[2] / "deploy/sinks/mlflow_sink.py"

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


def serve_mlflow(asked):
    """A server that takes all but parameters, and notes what it is asked."""
    class Answers(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked.append((self.path.split("mlflow/")[1], body))
            self.send_response(400 if "params" in body else 200)
            self.end_headers()
            self.wfile.write(b'{"experiment_id": "1", "run": {"info": {"run_id": "r7"}}}')

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def feed_mlflow(place, uri, *rows):
    header = {"job": "j", "name": "n", "steps": 2, "store": str(place), "resolved": {"a": 1}}
    text = "".join(json.dumps(x) + "\n" for x in (header, *rows))
    return subprocess.run([sys.executable, MLFLOW, "--uri", uri], input=text, capture_output=True, text=True, timeout=60)


def test_mlflow_gets_one_run_whatever_it_refuses(tmp_path):
    asked = []
    server = serve_mlflow(asked)
    uri = f"http://127.0.0.1:{server.server_port}"
    try:
        first = feed_mlflow(tmp_path, uri, {"step": 1, "loss": 2.5})
        assert first.returncode == 0 and first.stdout.split() == ["0", "1"] and "left out" in first.stderr, first
        assert (tmp_path / "sinks/mlflow.run").read_text() == "r7\n"
        assert feed_mlflow(tmp_path, uri).returncode == 0  # a resume without a row ends the run
    finally:
        server.shutdown()
        server.server_close()
    assert [path for path, _ in asked].count("runs/create") == 1
    assert [m["value"] for _, body in asked for m in body.get("metrics", [])] == [2.5]
    assert asked[-1] == ("runs/update", asked[-1][1] | {"run_id": "r7", "status": "FINISHED"})


def test_mlflow_reports_before_its_server_answers_and_follows_no_link(tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "sinks").symlink_to(tmp_path / "other")
    end = feed_mlflow(tmp_path, "http://127.0.0.1:1")
    assert end.returncode != 0 and end.stdout == "0\n" and "sinks" in end.stderr, end
    assert not list((tmp_path / "other").iterdir())
