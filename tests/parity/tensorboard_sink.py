# SPDX-License-Identifier: Apache-2.0
"""weft's event files beside their readers: TensorBoard's loader in Python, its data server in Rust, and tbparse.

usage: tensorboard_sink.py BUILD SCRATCH

A job's rows are given to `weft-sink tensorboard` over three lives: the first leaves a torn record, the second is
an attempt that was resumed at an earlier step, the third is given some rows twice. Every reader has to see each
step once, with the newest attempt's value, and the hyperparameters, texts and histograms beside them.
"""
import json
import os
import subprocess
import sys
import time

import tbparse
from tensorboard.backend.event_processing import event_accumulator, plugin_event_multiplexer
from tensorboard.data import server_ingester
from tensorboard.data.proto import data_provider_pb2, data_provider_pb2_grpc
from tensorboard.plugins.hparams import plugin_data_pb2
from tensorboard.util import grpc_util

GROUPS = ["embed", "layers/0", "layers/1"]


def row(step, attempt):
    r = {"step": step, "attempt": attempt, "t_ms": 1700000000000 + 1000 * step + attempt, "loss": attempt + 1 / step,
         "grad_norm": None if step == 7 else 0.5, "step_ms": 3.5, "memory_bytes": 1 << 30, "kl": [0.25 * step, 4.0]}
    if step == 7:
        r["nonfinite"] = ["grad_norm"]
    if step % 50 == 0:
        r |= {"eval_loss": 2.0 / step, "samples": ["was a tree", "wept\n*bold*"], "prompt": "There ",
              "detail": {"step": step, "groups": {g: {"weight_norm": 1.0 + i, "update_norm": 0.1 * step}
                                                  for i, g in enumerate(GROUPS)}}}
    return r


def life(sink, store, resumed_at, rows):
    header = {"weft": 1, "job": "0123", "name": "curve", "attempt": rows[0]["attempt"], "resumed_at": resumed_at,
              "steps": 500, "store": store,
              "resolved": {"name": "curve", "optimizer": {"lr": 0.001, "betas": [0.9, 0.95], "nesterov": True},
                           "model": {"text": "x" * 5000}}}
    text = "".join(json.dumps(x) + "\n" for x in [header] + rows)
    p = subprocess.run([sink, "tensorboard"], input=text, text=True, stdout=subprocess.PIPE, check=True)
    assert p.stdout.split()[-1] == str(len(rows)), p.stdout


def steps_of(want, got, who):
    """`got` is a list of (step, value)."""
    got = list(got)
    assert [s for s, _ in got] == sorted(want), f"{who}: {len(got)} steps of {len(want)}: a gap or a repeat"
    for s, v in got:
        assert abs(v - want[s]) < 1e-6, f"{who}: step {s} is {v}, not {want[s]}"


def read_python(store, want):
    m = plugin_event_multiplexer.EventMultiplexer(size_guidance={"scalars": 0, "tensors": 0, "histograms": 0},
                                                  tensor_size_guidance={"scalars": 0, "hparams": 0})
    m.AddRunsFromDirectory(store)
    m.Reload()
    loss = [(e.step, float(e.tensor_proto.float_val[0])) for e in m.Tensors("tensorboard", "train/loss")]
    steps_of(want, loss, "TensorBoard in Python")
    got = m.SummaryMetadata("tensorboard", "_hparams_/session_start_info").plugin_data.content
    data = plugin_data_pb2.HParamsPluginData.FromString(got).session_start_info
    assert data.hparams["optimizer.lr"].number_value == 0.001
    assert data.hparams["optimizer.betas"].string_value == "0.9, 0.95"
    assert data.hparams["optimizer.nesterov"].bool_value is True
    assert "model.text" not in data.hparams
    for tag, want_text in ("samples/0", "There was a tree"), ("samples/1", "There wept\n*bold*"):
        assert m.Tensors("tensorboard", tag)[0].tensor_proto.string_val[0].decode() == want_text
        assert m.SummaryMetadata("tensorboard", tag).plugin_data.plugin_name == "text"
    detail = m.Tensors("tensorboard", "detail/weight_norm")
    assert len(detail) == len([s for s in want if s % 50 == 0])
    assert m.SummaryMetadata("tensorboard", "detail/weight_norm").plugin_data.plugin_name == "histograms"
    bad = {e.step: e.tensor_proto.float_val[0] for e in m.Tensors("tensorboard", "train/grad_norm")}
    assert bad[7] != bad[7] and bad[8] == 0.5


def read_histogram(store):
    a = event_accumulator.EventAccumulator(store + "/tensorboard", size_guidance={"histograms": 0})
    a.Reload()
    h = a.Histograms("detail/weight_norm")[0].histogram_value
    assert (h.min, h.max, h.num, h.sum) == (1.0, 3.0, 3.0, 6.0) and sum(h.bucket) == 3
    assert len(h.bucket) == len(h.bucket_limit) and h.bucket_limit[-1] == 3.0


def read_rust(store, want):
    server = server_ingester.SubprocessServerDataIngester(
        server_binary=server_ingester.get_server_binary(), logdir=store, reload_interval=1,
        channel_creds_type=grpc_util.ChannelCredsType.LOCAL,
        samples_per_plugin={"scalars": len(want) + 10})
    server.start()
    stub = server.data_provider._stub
    request = data_provider_pb2.ReadScalarsRequest(experiment_id="")
    request.plugin_filter.plugin_name = "scalars"
    request.downsample.num_points = len(want) + 1000
    for _ in range(60):
        reply = stub.ReadScalars(request)
        found = {t.tag_name: t.data for run in reply.runs for t in run.tags}
        if "train/loss" in found and len(found["train/loss"].step) >= len(want):
            break
        time.sleep(0.5)
    steps_of(want, zip(found["train/loss"].step, found["train/loss"].value), "TensorBoard in Rust")
    assert "eval/loss" in found and "train/kl/0" in found and "memory/bytes" in found


def read_tbparse(store, want):
    frame = tbparse.SummaryReader(store).scalars
    loss = frame[frame.tag == "train/loss"]
    steps_of(want, zip(loss.step.tolist(), loss.value.tolist()), "tbparse")


def main(build, scratch):
    sink, store = build + "/weft-sink", scratch + "/store"
    os.makedirs(store)
    first = [row(s, 1) for s in range(1, 301)]
    life(sink, store, 0, first)
    path = store + "/tensorboard/events.out.tfevents.weft"
    with open(path, "r+b") as f:
        f.truncate(os.path.getsize(path) - 5)
    second = [row(s, 2) for s in range(251, 401)]
    life(sink, store, 250, second)
    third = [row(s, 2) for s in range(391, 501)]
    life(sink, store, 250, third)
    want = {r["step"]: r["loss"] for r in first + second + third}
    read_python(store, want)
    read_histogram(store)
    read_tbparse(store, want)
    read_rust(store, want)
    print(f"tensorboard: {len(want)} steps over three lives: one curve in Python's loader, Rust's and tbparse")


main(*sys.argv[1:])
