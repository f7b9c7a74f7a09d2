# SPDX-License-Identifier: Apache-2.0
"""weft generate: texts of a checkpoint's model, whatever they are made beside and on any mesh."""
import array
import contextlib
import fcntl
import json
import os
import pathlib
import pty
import re
import select
import shutil
import signal
import socket
import subprocess
import termios
import time

import decoder
import numpy
import pytest
import runs

SEQ, VOCAB = 32, 128
PROMPTS = ["the", "This program is free", "a", "GNU General Pub", "x y z"]
DRAWN = ("--temperature", "0.9", "--top-k", "30", "--top-p", "0.95", "--min-p", "0.01", "--penalty", "1.1", "--samples", "2", "--seed", "5")
MESHES = ["dp=2", "tp=2", "cp=2", "{pp: 2}", "fsdp=2", "dp=2,tp=2", "dp=2,pp=2,tp=2"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A small decoder of bytes, and its folder of checkpoints. The files that trained it are gone."""
    place = tmp_path_factory.mktemp("trained")
    (place / "text").write_bytes(pathlib.Path("/usr/share/common-licenses/GPL-3").read_bytes())
    runs.put_tokens(place / "text", place / "tokens")
    made = {
        "name": "gen",
        "model": {"program": "gpt2", "layers": 2, "embed": 32, "heads": 4, "seq": SEQ, "vocab": VOCAB, "vocab_multiple": 96},
        "mesh": {"dp": 2},
        "data": {"format": "tokens", "train": {"tokens": str(place / "tokens")}, "batch": 8},
        "optimizer": {"kind": "adamw"},
        "schedule": {"kind": "constant", "value": 0.01},
        "train": {"steps": 60, "seed": 3},
        "checkpoint": {"dir": "ckpt"},
    }  # fmt: skip
    run = runs.train(place, made)
    (place / "tokens").unlink()
    return run


@pytest.fixture
def ckpt(trained):
    return str(pathlib.Path(trained.checkpoints()[-1].path).parent)


@pytest.fixture(autouse=True)
def own_tmp(tmp_path, monkeypatch):
    """Nothing of a run is left in it."""
    place = tmp_path / "tmp"
    place.mkdir()
    monkeypatch.setenv("TMPDIR", str(place))
    yield
    assert os.listdir(place) == []


def generate(ckpt, *args, code=0, given=None):
    end = subprocess.run([runs.WEFT, "generate", ckpt, *args], input=given if given is not None else "", capture_output=True, text=True,
                         timeout=runs.WATCHDOG, check=False)  # fmt: skip
    assert end.returncode == code, (end.returncode, end.stdout, end.stderr)
    return end.stdout if code == 0 else end.stderr


def rows(ckpt, *args, **kwargs):
    return [json.loads(line) for line in generate(ckpt, "--json", *args, **kwargs).splitlines()]


def prompts_file(tmp_path, prompts):
    (tmp_path / "prompts").write_text("".join(json.dumps(p) + "\n" for p in prompts))
    return str(tmp_path / "prompts")


def test_greedy_text_is_what_the_checkpoints_weights_say(trained, ckpt):
    p = trained.checkpoints()[-1].numbers()
    for prompt, more in ((b"the lic", ["--slide"]), (b"This program ", [])):
        tokens = 48 if more else SEQ - len(prompt)
        text, lead = decoder.greedy(p, prompt, tokens, SEQ, VOCAB)
        assert lead > 1e-4  # else rounding would choose
        (row,) = rows(ckpt, "--prompt", prompt.decode(), "--tokens", str(tokens), *more)
        assert bytes(row["ids"]) == text and row["text"] == text.decode(), row
        assert row["ended"] == "length" and row["prompt_ids"] == list(prompt)
        if not more:
            logits = decoder.next_logits(p, row["prompt_ids"], VOCAB)
            share = logits[row["ids"][0]] - numpy.log(numpy.exp(logits - logits.max()).sum()) - logits.max()
            assert abs(row["log_probabilities"][0] - share) < 1e-4 and len(row["log_probabilities"]) == tokens


def test_a_text_is_the_same_whatever_it_is_made_beside_and_on_any_mesh(ckpt, tmp_path):
    file = prompts_file(tmp_path, PROMPTS)
    want = rows(ckpt, "--prompts", file, *DRAWN, "--tokens", "10", "--batch", "1")
    assert [(r["prompt"], r["sample"]) for r in want] == [(p, s) for p in range(5) for s in range(2)]
    assert len({tuple(r["ids"]) for r in want}) > 8
    for more in [["--batch", "3"], ["--batch", "16"], *[["--mesh", m] for m in MESHES]]:
        got = rows(ckpt, "--prompts", file, *DRAWN, "--tokens", "10", *more)
        assert [(r["ids"], r["text"], r["ended"]) for r in got] == [(r["ids"], r["text"], r["ended"]) for r in want], more
    other = rows(ckpt, "--prompts", file, *DRAWN, "--seed", "6", "--tokens", "10")
    assert [r["ids"] for r in other] != [r["ids"] for r in want]


def test_kept_keys_change_no_token(ckpt, tmp_path):
    """Prompts longer and shorter than a chunk, texts that slide, rows that are taken once more."""
    file = prompts_file(tmp_path, [*PROMPTS, "The GNU General Public License", "x"])
    for more in (["--tokens", "2"], ["--tokens", "20", "--slide"], [*DRAWN, "--tokens", "20", "--slide"]):
        want = rows(ckpt, "--prompts", file, *more, "--no-cache")
        meshed = ["--mesh", "dp=2,pp=2,tp=2", "--chunk", "6"]
        for way in (["--batch", "2"], ["--batch", "3", "--chunk", "1"], ["--chunk", "5"], ["--chunk", "1000"], meshed):
            got = rows(ckpt, "--prompts", file, *more, *way)
            assert [(r["ids"], r["ended"]) for r in got] == [(r["ids"], r["ended"]) for r in want], (more, way)
            far = [abs(x - y) for g, w in zip(got, want, strict=True) for x, y in zip(g["log_probabilities"], w["log_probabilities"], strict=True)]
            assert max(far) < 1e-4


def test_a_text_has_the_same_bits_whatever_it_is_made_beside(ckpt, tmp_path):
    file = prompts_file(tmp_path, [*PROMPTS, *PROMPTS[::-1]])
    got = rows(ckpt, "--prompts", file, "--tokens", "12", "--batch", "3")
    for n in range(5):
        assert got[n]["log_probabilities"] == got[9 - n]["log_probabilities"]
        alone = rows(ckpt, "--prompt", PROMPTS[n], "--tokens", "12", "--batch", "3")
        assert got[n]["log_probabilities"] == alone[0]["log_probabilities"]


def test_where_no_keys_are_kept_it_says_why(tmp_path):
    (tmp_path / "text").write_bytes(bytes(range(64, 64 + 50)) * 40)
    runs.put_tokens(tmp_path / "text", tmp_path / "tokens")
    (tmp_path / "ahead.model").write_text("""sizes
  seq = 16
  embed = 8
  vocab = 128
model
  x = embed(tokens, table[vocab, embed])
  x = x + mean(x, seq)
  logits = x @ head[embed, vocab]
  loss = cross_entropy(logits, targets)
""")
    made = {
        "name": "ahead",
        "model": {"program": "./ahead.model"},
        "mesh": {"dp": 1},
        "data": {"format": "tokens", "train": {"tokens": "tokens"}, "batch": 4},
        "train": {"steps": 2},
        "checkpoint": {"dir": "ckpt"},
    }  # fmt: skip
    saved = str(runs.train(tmp_path, made).checkpoints()[-1].path)
    ask = [runs.WEFT, "generate", saved, "--prompt", "ABC", "--tokens", "3"]
    end = subprocess.run(ask, capture_output=True, text=True, timeout=runs.WATCHDOG, check=True)
    assert "no keys are kept" in end.stderr and "line 7: sum over seq: a token would see those behind it" in end.stderr
    quiet = subprocess.run([*ask, "--no-cache"], capture_output=True, text=True, timeout=runs.WATCHDOG, check=True)
    assert quiet.stderr == "" and quiet.stdout == end.stdout


def test_a_mesh_that_gathers_weights_for_each_token_is_warned_of(ckpt):
    said = {}
    for mesh in ("fsdp=2", "dp=2,tp=2"):
        end = subprocess.run([runs.WEFT, "generate", ckpt, "--prompt", "the", "--tokens", "3", "--mesh", mesh], capture_output=True, text=True,
                             timeout=runs.WATCHDOG, check=True)  # fmt: skip
        said[mesh] = end.stderr
    assert "weights are gathered from other devices for each token" in said["fsdp=2"]
    assert said["dp=2,tp=2"] == ""


def test_order_does_not_matter_where_nothing_is_drawn(ckpt, tmp_path):
    want = {tuple(r["prompt_ids"]): r["ids"] for r in rows(ckpt, "--prompts", prompts_file(tmp_path, PROMPTS), "--tokens", "9")}
    got = {tuple(r["prompt_ids"]): r["ids"] for r in rows(ckpt, "--prompts", prompts_file(tmp_path, PROMPTS[::-1]), "--tokens", "9", "--batch", "2")}
    assert got == want and len(want) == 5


def test_a_stop_text_ends_a_text_before_it_over_the_borders_of_tokens(ckpt):
    (whole,) = rows(ckpt, "--prompt", "This", "--tokens", "25")
    text = whole["text"]
    for begin in range(1, 20):
        for end in range(begin + 1, begin + 4):
            stop = text[begin:end]
            (row,) = rows(ckpt, "--prompt", "This", "--tokens", "25", "--stop", stop, "--stop", "never \x01")
            assert (row["text"], row["ended"]) == (text[: text.index(stop)], "stop"), (stop, row)
        if begin % 6 == 1:
            shown = generate(ckpt, "--prompt", "This", "--tokens", "25", "--stop", text[begin : begin + 3])
            assert shown == "This" + text[: text.index(text[begin : begin + 3])] + "\n"
    (row,) = rows(ckpt, "--prompt", "This", "--tokens", "25", "--stop-ids", f"5,{ord(text[4])}")
    assert (row["text"], row["ended"]) == (text[: text.index(text[4])], "stop")


def test_prompts_come_from_files_and_standard_input(ckpt, tmp_path):
    shown = generate(ckpt, "--prompt", "the", "--tokens", "12")
    assert shown.startswith("the") and len(shown) == 3 + 12 + 1
    assert generate(ckpt, "--tokens", "12", given="the") == shown == generate(ckpt, "--prompt", "-", "--tokens", "12", given="the")
    (tmp_path / "plain").write_text('the\n\n"th\\u0065"\n')
    assert generate(ckpt, "--prompts", str(tmp_path / "plain"), "--tokens", "12") == shown + "\n" + shown
    step = next(pathlib.Path(ckpt).glob("step-*"))
    assert generate(str(step), "--prompt", "the", "--tokens", "12") == shown
    assert rows(ckpt, "--prompt", "104 101", "--tokenizer", "ids", "--tokens", "3")[0]["prompt_ids"] == [104, 101]


def test_prompts_of_any_bytes_and_from_a_socket(ckpt, tmp_path):
    big = b"\0" + b"x" * (4 << 20)
    (tmp_path / "big").write_bytes(big)
    assert f"{len(big)} tokens: at most" in generate(ckpt, "--prompts", str(tmp_path / "big"), "--slide", code=2)
    (row,) = rows(ckpt, "--tokens", "3", given="a\0b")
    assert row["prompt_ids"] == [97, 0, 98]
    (tmp_path / "dos").write_bytes(b"the\r\n\r\na b\r\n")
    assert [bytes(r["prompt_ids"]) for r in rows(ckpt, "--prompts", str(tmp_path / "dos"), "--tokens", "1")] == [b"the", b"a b"]
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(b"the")
        ours.shutdown(socket.SHUT_WR)
        end = subprocess.run([runs.WEFT, "generate", ckpt, "--json", "--tokens", "2"], stdin=theirs, capture_output=True, timeout=runs.WATCHDOG, check=False)
    assert end.returncode == 0 and json.loads(end.stdout)["prompt_ids"] == list(b"the"), end


def test_what_a_text_gets_without_tokens_does_not_hang_on_its_neighbours(ckpt, tmp_path):
    prompts = ["x" * 30, "the", "a b c"]
    got = rows(ckpt, "--prompts", prompts_file(tmp_path, prompts))
    assert [len(r["ids"]) for r in got] == [SEQ - len(p) for p in prompts]
    assert got[1]["ids"] == rows(ckpt, "--prompt", "the")[0]["ids"]


def test_a_reader_that_goes_and_a_full_disk_end_it(ckpt):
    p = subprocess.Popen([runs.WEFT, "generate", ckpt, "--prompt", "the", "--tokens", "1000000", "--slide"],
                         stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)  # fmt: skip
    assert p.stdout.read(5)
    p.stdout.close()
    assert p.wait(runs.WATCHDOG) == 1
    with open("/dev/full", "w") as full:
        end = subprocess.run([runs.WEFT, "generate", ckpt, "--prompt", "the"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=runs.WATCHDOG, check=False)
        assert end.returncode == 1 and "cannot write" in end.stderr, end
        end = subprocess.run([runs.WEFT, "ckpt", "ls", ckpt], stdout=full, stderr=subprocess.PIPE, text=True, timeout=runs.WATCHDOG, check=False)
        assert end.returncode == 1 and "cannot write" in end.stderr, end


def test_an_interruption_ends_it_while_nobody_reads(ckpt):
    p = subprocess.Popen([runs.WEFT, "generate", ckpt, "--prompt", "the", "--tokens", "1000000", "--slide"], stdout=subprocess.PIPE)
    fcntl.fcntl(p.stdout, fcntl.F_SETPIPE_SZ, 4096)
    room = select.poll()
    room.register(p.stdout, select.POLLIN)
    assert room.poll(1000 * runs.WATCHDOG)
    still, before, size = 0, 0, array.array("i", [0])
    while still < 10:  # until it takes no more
        fcntl.ioctl(p.stdout, termios.FIONREAD, size)
        still, before = (still + 1 if size[0] == before else 0), size[0]
        time.sleep(0.05)
    p.send_signal(signal.SIGTERM)
    assert p.wait(runs.WATCHDOG) == 130


def test_a_checkpoint_that_goes_meanwhile_is_named(ckpt, tmp_path, monkeypatch):
    """As one does that a training replaces by its next."""
    copy, wrapper = tmp_path / pathlib.Path(ckpt).name, tmp_path / "wrapper"
    shutil.copytree(ckpt, copy)
    wrapper.write_text(f'#!/bin/sh\nrm -rf "{copy}"/step-*\nexec "$@"\n')
    wrapper.chmod(0o755)
    monkeypatch.setenv("WEFT_RANK_WRAPPER", str(wrapper))
    said = generate(str(copy), "--prompt", "x", code=1)
    assert "cannot restore step-" in said and "No such file" in said, said


def test_a_tokenizer_that_is_not_the_trainings_is_refused(ckpt, tmp_path):
    other = tmp_path / "tokenizer.json"
    bytewise = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    model = {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}
    other.write_text(json.dumps({"version": "1.0", "added_tokens": [], "normalizer": None, "pre_tokenizer": bytewise, "post_processor": None,
                                 "decoder": bytewise, "model": model}))  # fmt: skip
    said = generate(ckpt, "--prompt", "a", "--tokenizer", str(other), code=2)
    assert "the training's was bytes" in said and str(other) in said, said


@pytest.mark.parametrize(("args", "says"), [
    (["--prompt", ""], "holds no token"),
    (["--prompt", "é"], "is not in 0 … 127"),
    (["--prompt", "x" * 32], "the context holds 32"),
    (["--prompt", "x" * 20, "--tokens", "13"], "try --tokens 12, or --slide"),
    (["--prompt", "x", "--top-k", "3"], "act only with a --temperature"),
    (["--prompt", "x", "--temperature", "1", "--top-p", "1.5"], "--top-p is a share, 0 to 1"),
    (["--prompt", "x", "--stop-ids", "1;2"], "--stop-ids takes ids from 0 to 127"),
    (["--prompt", "x", "--stop-ids", "1,"], "--stop-ids takes ids from 0 to 127"),
    (["--prompt", "x", "--stop-ids", ""], "--stop-ids takes ids from 0 to 127"),
    (["--prompt", "x", "--temperature", "1", "--top-p", "0"], "--top-p takes a share above 0"),
    (["--prompt", "x", "--tokens", str(2**63 - 1)], "at most 16777216"),
    (["--prompt", "x", "--tokens", str(2**63 - 1), "--slide"], "at most 16777216"),
    (["--prompt", "x", "--tokens", "32"], "try --tokens 31"),
    (["--prompt", "x", "--chunk", "4", "--no-cache"], "--no-cache keeps none"),
    (["--prompt", "x", "-s", "data.batch=3"], "use --batch"),
    (["--prompt", "x", "-s", "mesh={dp: 2}"], "use --mesh"),
    (["--prompt", "x", "--prompts", "y"], "one of them will do"),
    (["--prompts", "/nowhere/at/all"], "/nowhere/at/all"),
    (["--prompt", "x", "--mesh", "tp=3"], "3"),
    (["--prompt", "x", "--mesh", "tp=="], "mesh"),
    (["--prompt", "x", "--context", "64"], "embed/positions"),
    (["--prompt", "x", "--tokenizer", "wordy"], "tokenizer wordy"),
    (["--prompt", "x", "--temperature", "warm"], "takes a number from 0"),
    (["--prompt", "x", "--temperature", "1e30"], "takes a number from 0 to 1000000, not '1e30'"),
])  # fmt: skip
def test_what_cannot_be_is_refused_before_any_rank_starts(ckpt, args, says):
    assert says in generate(ckpt, *args, code=2)


def test_what_is_no_checkpoint_is_named(ckpt, tmp_path):
    assert str(tmp_path / "none") in generate(str(tmp_path / "none"), "--prompt", "x", code=2)
    assert str(tmp_path) in generate(str(tmp_path), "--prompt", "x", code=2)
    assert "61" in generate(f"{ckpt}@61", "--prompt", "x", code=2)
    assert generate(f"{ckpt}@60", "--prompt", "the", "--tokens", "3").startswith("the")
    broken = tmp_path / "gen-00000000"
    shutil.copytree(ckpt, broken)
    manifest = next(broken.glob("step-*/MANIFEST.json"))
    manifest.write_text(manifest.read_text().replace('"step"', '"stop"', 1))
    assert "step-00000060" in generate(str(manifest.parent), "--prompt", "x", code=2)


def test_a_model_without_logits_has_no_text(place, toy):
    run = runs.train(place, runs.job(toy, 1, train__steps=2))
    assert "names no `logits` of tokens" in generate(str(pathlib.Path(run.checkpoints()[-1].path)), "--prompt", "x", code=2)


def ranks_of(pid):
    """Its children, whichever of its threads started them; a bare machine has no ps."""
    found = []
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended by now
            if int(stat.read_text().rpartition(")")[2].split()[1]) == pid:
                found.append(int(stat.parent.name))
    return found


@pytest.mark.parametrize("blow", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_ends_the_ranks_and_leaves_nothing(ckpt, blow):
    p = subprocess.Popen([runs.WEFT, "generate", ckpt, "--prompt", "the", "--tokens", "1000000", "--slide", "--mesh", "dp=2"],
                         stdout=subprocess.PIPE, text=True)  # fmt: skip
    assert p.stdout.read(10) == "the" + rows(ckpt, "--prompt", "the", "--tokens", "7")[0]["text"]
    ranks = ranks_of(p.pid)
    assert len(ranks) == 2
    p.send_signal(blow)
    p.stdout.read()
    assert p.wait(runs.WATCHDOG) == 130
    assert not any(pathlib.Path(f"/proc/{r}").exists() for r in ranks)


def test_an_interruption_ends_it_where_nobody_reads_the_terminal(ckpt, tmp_path):
    (tmp_path / "long").write_text("the cat sat on the mat\n" * 9000)
    ours, theirs = pty.openpty()
    with open(tmp_path / "long", "rb") as text:
        p = runs.watch_over(subprocess.Popen([runs.WEFT, "generate", ckpt, "--tokens", "9", "--slide"], stdin=text, stdout=theirs))
    os.close(theirs)
    held = array.array("i", [0])
    while held[0] < 2000:  # bytes that nobody has read
        fcntl.ioctl(ours, termios.FIONREAD, held)
        assert p.poll() is None
    time.sleep(0.3)  # it stands in a write then, or, which also is an end, before the next one
    p.send_signal(signal.SIGINT)
    assert p.wait(runs.WATCHDOG) == 130
    os.close(ours)


@pytest.mark.parametrize("mesh", ["dp=1", "dp=2"])
def test_where_memory_runs_out_it_says_what_fits(trained, ckpt, mesh):
    """As many texts as the plan says of a device with this machine's memory, or with a rank's share of it."""
    err = generate(ckpt, "--prompt", "a", "--tokens", "4", "--batch", "1000000", "--mesh", mesh, code=1)
    said = re.search(r"the plan needs [\d.]+ GiB of device memory, but this host has [\d.]+ GiB: --batch (\d+) fits$", err, re.M)
    assert said, err
    kib = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGESIZE") // int(mesh[-1]) >> 10
    plan = runs.weft("plan", str(trained.file), "--generate", "--json", "--mesh", mesh, "--device", f"here:memory={kib + 4}KiB,libraries=4KiB")
    assert json.loads(plan.out)["rows_that_fit"] == int(said[1]), (err, plan)


def test_a_rank_that_is_killed_may_have_been_so_for_want_of_memory(ckpt):
    long = [runs.WEFT, "generate", ckpt, "--prompt", "a", "--tokens", "100000", "--slide"]
    with subprocess.Popen(long, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as p:
        assert p.stdout.read(5)
        (rank,) = [int(c) for c in pathlib.Path(f"/proc/{p.pid}/task/{p.pid}/children").read_text().split()]
        runs.kill_pid(rank)
        err = p.communicate(timeout=runs.WATCHDOG)[1]
    assert p.returncode == 1 and "memory was full: give a smaller --batch" in err, err


def test_what_a_killed_client_leaves_goes_at_the_next_start_and_no_others_does(ckpt):
    tmp = pathlib.Path(os.environ["TMPDIR"])
    (tmp / "weft-models").mkdir()  # a person's
    (tmp / "weft-models" / "mine").touch()
    long = [runs.WEFT, "generate", ckpt, "--prompt", "the", "--tokens", "1000000", "--slide"]
    with subprocess.Popen(long, stdout=subprocess.PIPE) as living, subprocess.Popen(long, stdout=subprocess.PIPE) as killed:
        assert living.stdout.read(5) and killed.stdout.read(5)
        assert len(os.listdir(tmp)) == 3
        killed.kill()
        killed.wait()
        assert len(os.listdir(tmp)) == 3  # nobody was left who could
        generate(ckpt, "--prompt", "the", "--tokens", "3")
        assert len(os.listdir(tmp)) == 2 and living.poll() is None and living.stdout.read(5000)
        living.send_signal(signal.SIGINT)
        living.stdout.read()
    assert os.listdir(tmp) == ["weft-models"] and os.listdir(tmp / "weft-models") == ["mine"]
    shutil.rmtree(tmp / "weft-models")


def test_a_rank_that_dies_ends_it_with_its_name(ckpt):
    p = subprocess.Popen([runs.WEFT, "generate", ckpt, "--prompt", "the", "--tokens", "1000000", "--slide", "--mesh", "dp=2"],
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)  # fmt: skip
    assert p.stdout.read(10)
    os.kill(ranks_of(p.pid)[1], signal.SIGKILL)
    _, err = p.communicate(timeout=runs.WATCHDOG)
    assert p.returncode == 1 and re.search(r"rank \d", err), err


def test_a_conversation_says_when_its_text_is_too_long_and_ends_with_ctrl_d(ckpt):
    pid, fd = pty.fork()
    if pid == 0:
        os.execv(runs.WEFT, [runs.WEFT, "generate", ckpt, "--tokens", "4", "--json"])
    termios.tcsetattr(fd, termios.TCSANOW, [a if i != 3 else a & ~termios.ECHO for i, a in enumerate(termios.tcgetattr(fd))])
    said = b""

    def hear(what, times=1):
        nonlocal said
        end = time.monotonic() + runs.WATCHDOG
        while (said.count(what) < times or not said.endswith(b"\n")) and time.monotonic() < end:
            if select.select([fd], [], [], 1)[0]:
                said += os.read(fd, 4096)
        assert said.count(what) == times, said

    os.write(fd, b"the\n")
    hear(b'"log_probabilities"')
    os.write(fd, b"x" * (SEQ - 8) + b"\n")  # 4 and 4 are there, and a line's end comes
    hear(b"the context holds")
    os.write(fd, b"a\n")  # what was refused is no part of the text
    hear(b'"log_probabilities"', 2)
    os.write(fd, b"\x04")
    _, status = os.waitpid(pid, 0)
    os.close(fd)
    assert os.waitstatus_to_exitcode(status) == 0 and b"> " not in said and b"weft generate: the text has 33 tokens" in said, said
    first, second = [json.loads(line) for line in said.decode().splitlines() if line.startswith("{")]
    assert bytes(first["prompt_ids"]) == b"the\n" and len(first["ids"]) == 4
    assert second["prompt_ids"] == [*first["prompt_ids"], *first["ids"], *b"a\n"], said
    assert (first["prompt_kept"], second["prompt_kept"]) == (0, 4 + 3)  # the last token was shown, and not yet read
    (whole,) = rows(ckpt, "--tokens", "4", given=bytes(second["prompt_ids"]).decode())
    assert second["ids"] == whole["ids"] and whole["prompt_kept"] == 0


def test_a_conversation_on_a_terminal_continues_one_text(ckpt):
    pid, fd = pty.fork()
    if pid == 0:
        os.execv(runs.WEFT, [runs.WEFT, "generate", ckpt, "--tokens", "8", "--slide"])
    said = b""

    def hear(lines):
        nonlocal said
        end = time.monotonic() + runs.WATCHDOG
        while not (said.count(b"> ") == lines and said.endswith(b"> ")) and time.monotonic() < end:
            if select.select([fd], [], [], 1)[0]:
                said += os.read(fd, 4096)
        assert said.endswith(b"> "), said

    hear(1)
    os.write(fd, b"the\n")
    hear(2)
    os.write(fd, b"This\n")
    hear(3)
    os.write(fd, b"\n")
    _, status = os.waitpid(pid, 0)
    os.close(fd)
    assert os.waitstatus_to_exitcode(status) == 0
    first = rows(ckpt, "--prompt", "the\n", "--tokens", "8", "--slide")[0]["text"]
    second = rows(ckpt, "--prompt", f"the\n{first}This\n", "--tokens", "8", "--slide")[0]["text"]
    shown = said.decode().replace("\r", "")
    assert shown.startswith("> the\n" + first) and shown.endswith("This\n" + second + "\n> "), (shown, first, second)
