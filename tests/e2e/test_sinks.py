# SPDX-License-Identifier: Apache-2.0
"""Sinks of a weft run: programs that get the metrics, whatever becomes of them. Which rows they get is in
tests/unit/test_agent_sinks.c; that TensorBoard reads its events in check-peers."""
import http.server
import json
import os
import pathlib
import re
import shlex
import ssl
import subprocess
import sys
import threading

import runs

MLFLOW, KUBEFLOW = (pathlib.Path(__file__).parents[2] / f"deploy/sinks/{name}_sink.py" for name in ("mlflow", "kubeflow"))

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
    end = weft_run(run)
    assert end.code == 0 and re.search(r"waits for sinks .*: .*\bhangs\b", end.err), end
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


class Kubeflow:
    """Kubeflow's server: over TLS with a certificate of its own, it notes what it is given by which token."""

    def __init__(self, place, answer=200):
        self.token, self.ca, self.asked = place / "token", place / "ca.pem", []
        key = place / "key.pem"
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
                        "-keyout", key, "-out", self.ca, "-subj", "/CN=kubeflow", "-addext", "subjectAltName=IP:127.0.0.1"],
                       check=True, capture_output=True)
        self.token.write_text("first\n")
        self.first = threading.Event()
        asked, first = self.asked, self.first

        class Answers(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                self.send_response(answer)
                self.send_header("Location", "https://127.0.0.1:1/")
                self.end_headers()
                asked.append((self.path, self.headers["Authorization"], body["trainerStatus"]))
                first.set()

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.ca, key)
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def start(self, ca=None):
        sink = subprocess.Popen([sys.executable, KUBEFLOW], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True, env=os.environ | {
            "KUBEFLOW_TRAINER_SERVER_URL": f"https://127.0.0.1:{self.server.server_port}/j/status",
            "KUBEFLOW_TRAINER_SERVER_CA_CERT": str(ca or self.ca), "KUBEFLOW_TRAINER_SERVER_TOKEN": str(self.token)})
        sink.stdin.write('{"weft": 1, "name": "j", "steps": 10}\n')
        return sink

    def close(self):
        self.server.shutdown()
        self.server.server_close()


def test_kubeflow_gets_the_newest_row_now_and_then_by_a_token_that_rotates(tmp_path):
    server = Kubeflow(tmp_path)
    try:
        sink = server.start()
        sink.stdin.write('{"step": 4, "t_ms": 1, "loss": 2.5, "accuracy": null, "step_ms": 2000.0, "prompt": "x"}\n')
        sink.stdin.flush()
        assert server.first.wait(runs.WATCHDOG)
        server.token.write_text("second\n")
        for step in range(5, 11):
            sink.stdin.write(json.dumps({"step": step, "loss": 1.0, "step_ms": 2000}) + "\n")
            sink.stdin.flush()
        out, err = sink.communicate(timeout=60)
    finally:
        server.close()
    assert (sink.returncode, err) == (0, "") and out.split()[0] == "0" and out.split()[-1] == "7"
    assert [(path, token) for path, token, _ in server.asked] == [("/j/status", "Bearer first"), ("/j/status", "Bearer second")]
    first, last = (status for _, _, status in server.asked)
    assert first["metrics"] == [{"name": "loss", "value": "2.5"}, {"name": "step_ms", "value": "2000.0"}]
    assert (first["progressPercentage"], first["estimatedRemainingSeconds"]) == (40, 12)
    assert (last["progressPercentage"], last["estimatedRemainingSeconds"]) == (100, 0)


def test_kubeflow_s_token_goes_to_nobody_else_and_its_absence_stops_nothing(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
    redirects, stranger = Kubeflow(tmp_path / "a", answer=307), Kubeflow(tmp_path / "b")
    try:
        sinks = [redirects.start(), stranger.start(ca=redirects.ca)]
        for sink in sinks:
            sink.stdin.write('{"step": 1, "loss": 1.0}\n')
            sink.stdin.flush()
        ends = [(s, s.communicate(timeout=60)) for s in sinks]
    finally:
        redirects.close()
        stranger.close()
    assert [s.returncode for s, _ in ends] == [0, 0] and [out.split()[-1] for _, (out, _) in ends] == ["1", "1"]
    assert "307" in ends[0][1][1] and "CERTIFICATE_VERIFY_FAILED" in ends[1][1][1]
    assert redirects.asked and not stranger.asked
    alone = subprocess.run([sys.executable, KUBEFLOW], input='{"steps": 1}\n{"step": 1}\n', capture_output=True, text=True, timeout=60)
    assert (alone.returncode, alone.stdout.split()[-1], alone.stderr) == (0, "1", "")
