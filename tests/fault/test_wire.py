# SPDX-License-Identifier: Apache-2.0
"""Somebody on the network between two hosts reads, changes, repeats, reorders, leaves out and cuts what ranks
say to each other (tests/support/wire.py). He reads nothing, and whatever he does ends the attempt with a
sentence that names the peer, or where both hang: no number of his gets into a training."""
import random
import re

import pytest
import runs
from wire import HEAD, Wire

MEDDLED = r"rank {} is cut off: what came from it was changed, left out or sent again on the way"
CUT = r"rank {} (died|is cut off)"
LATE = r"rank {} has not (entered|finished) it"
HANGS = r"rank \d .* hangs: no progress"  # both are in the collective, each waits for the other


def job(noise, network="encrypted", hang_after="60s"):
    # Tensors that travel inside the notes, and tensors of several pieces: 16*16 · 1200 · 4 bytes is 1.2 MB.
    return runs.job(noise, 2, model__hidden=[1200, 8], train__steps=6, restart={"hang_after": hang_after},
                    resources={"network": network})  # fmt: skip


def run_over(wire_args, place, noise, cable, **asked):
    run = runs.Run(place, job(noise, **asked), "run")
    with Wire(cable, place / "wire", **wire_args) as wire:
        end = run.run(*runs.on_cable(cable, [0, 1]))
    return run, wire, end


def assert_ended(run, wire, end, way, *sentences):
    assert "done" in wire.said, f"the deed was not done\n{end}"
    assert set(end.codes()) == {69}, end
    sender = 1 if way == "up" else 0  # rank 1 calls rank 0
    assert any(re.search(s.format(sender), end.err) for s in sentences), end
    assert run.checkpoints() == [], "numbers of a meddled training were saved"


@pytest.mark.parametrize("way", ["up", "down"])
@pytest.mark.parametrize("deed", ["flip", "drop", "again", "swap"])
def test_a_whole_frame_changed_left_out_repeated_or_moved_ends_the_attempt(place, noise, cable, way, deed):
    """The first frames name communicators and have no bodies, so these bytes are one frame, or two."""
    length = 1 if deed == "flip" else HEAD
    run, wire, end = run_over({"way": way, "deed": deed, "at": 0, "length": length}, place, noise, cable, hang_after="2s")
    assert_ended(run, wire, end, way, MEDDLED)


@pytest.mark.parametrize("seed", runs.seeds(4, 60))
def test_whatever_is_done_to_the_bytes_ends_the_attempt(place, noise, cable, seed):
    draw = random.Random(seed)
    way, deed = draw.choice(["up", "down"]), draw.choice(["flip", "again", "swap", "drop", "cut"])
    # Of the 6 steps each sends over 2.4 MB in either direction.
    at = draw.choice([draw.randrange(400), draw.randrange(1_000_000), draw.randrange(5_000_000)])
    length = {"flip": 1, "swap": 7}.get(deed, draw.choice([1, 16, HEAD, 1000]))
    run, wire, end = run_over({"way": way, "deed": deed, "at": at, "length": length}, place, noise, cable, hang_after="2s")
    # Bytes that lack, where no more come, are missed at the deadline.
    assert_ended(run, wire, end, way, MEDDLED, *([CUT] if deed == "cut" else []), *([LATE, CUT, HANGS] if deed == "drop" else []))


def test_who_listens_reads_nothing(place, noise, cable):
    """Names of tensors are on the wire of a job that trusts its network, and only there."""
    calm = runs.train(place, job(noise), "calm").final()
    for network in ("trusted", "encrypted"):
        (place / network).mkdir()
        run, wire, end = run_over({}, place / network, noise, cable, network=network)
        assert end.code == 0, end
        assert run.final() == calm
        assert (b"grad/layers/" in wire.copied()) == (network == "trusted")


def test_a_trusted_network_is_trusted(place, noise, cable):
    """What `resources.network: trusted` gives up: a number changed on the way changes what is learnt, unseen."""
    calm = runs.train(place, job(noise), "calm").final()
    deed = {"way": "up", "deed": "flip", "at": 1_000_000, "length": 4}
    run, wire, end = run_over(deed, place, noise, cable, network="trusted")
    assert "done" in wire.said and end.code == 0, end
    assert run.final() != calm
