# SPDX-License-Identifier: Apache-2.0
"""Any byte of a checkpoint changed, lost or added: `weft ckpt verify` says where, and a run takes the
checkpoint before it and comes to the numbers of a run never disturbed."""
import json
import random
import re

import pytest
import runs
import tiny

DAMAGES = 200 if tiny.LONG else 24
STEP = 6


@pytest.fixture(scope="module")
def stopped(shared, data):
    """A job killed once the checkpoint of step 6 was acknowledged, before anything of step 8 was there."""
    job = tiny.Tiny(shared / "stopped", data)
    run = job.run({0: tiny.shim(job.ckpt, arm="step-00000008", at=1, do="kill")})
    assert run.committed() == [2, 4, 6] and job.committed() == [(1, 4), (1, 6)]
    return job


def tensor_at(shard, at):
    """The tensor that byte `at` of a safetensors file belongs to; None in the head."""
    head = int.from_bytes(shard[:8], "little")
    if at < 8 + head:
        return None
    for name, one in json.loads(shard[8:8 + head]).items():
        if name != "__metadata__" and one["data_offsets"][0] <= at - 8 - head < one["data_offsets"][1]:
            return name
    raise AssertionError(f"byte {at} belongs to no tensor")


def flip(data, at, rng):
    return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1:]


def overwrite(data, at, rng):
    end = min(len(data), at + rng.randrange(1, 65))
    other = rng.randbytes(end - at)
    return data[:at] + (other if other != data[at:end] else flip(other, 0, rng)) + data[end:]


def truncate(data, at, rng):
    return data[:at]


def extend(data, at, rng):
    return data + rng.randbytes(1 + at % 9)


def lose_a_byte(data, at, rng):
    return data[:at] + data[at + 1:]


KINDS = [flip, flip, overwrite, truncate, extend, lose_a_byte]
FILES = ["shard-00000-of-00002.safetensors", "shard-00001-of-00002.safetensors", "MANIFEST.json", "COMMIT"]


def damages():
    """Every file meets every kind in turn, at a random byte."""
    rng = random.Random(17 + runs.SEED)
    for i in range(DAMAGES):
        yield i, FILES[i % len(FILES)], KINDS[i // len(FILES) % len(KINDS)], rng


def test_damage_is_named_and_the_one_before_is_taken(home, stopped, reference):
    for i, name, kind, rng in damages():
        job = stopped.copy(home / str(i))
        path = job.path(1, STEP) / name
        whole = path.read_bytes()
        at = rng.randrange(len(whole))
        path.write_bytes(kind(whole, at, rng))
        what = f"{kind.__name__} at byte {at} of {name}"
        assert path.read_bytes() != whole, what

        code, out = tiny.weft("ckpt", "verify", job.store())
        assert code == 1 and "damaged" in out, f"{what}: {out}"
        # A seal that does not match cannot tell whether it or the manifest was changed.
        culprits = ["MANIFEST.json", "COMMIT"] if name in ("MANIFEST.json", "COMMIT") else [name]
        assert any(c in out for c in culprits), f"{what}: {out}"
        if name.startswith("shard-") and kind in (flip, overwrite):
            tensor = tensor_at(whole, at)
            # A changed head may still be one, which says something impossible of a tensor.
            assert f"tensor '{tensor}'" in out if tensor else "head" in out or ": tensor '" in out, f"{what}: {out}"
        listed = json.loads(tiny.weft("ckpt", "verify", "--json", job.store())[1])["checkpoints"]
        assert [(c["step"], c["ok"], bool(c["errors"])) for c in listed] == [(6, False, True), (4, True, False)]

        run = job.run()
        assert run.codes() == [0, 0], f"{what}: {run.text()}"
        assert job.restored() == 4, what
        line = re.findall(r"Z warn .*checkpoint of step 6 is damaged: .*", run.printed())
        assert len(line) == 1 and any(c in line[0] for c in culprits), f"{what}: {run.printed()}"
        assert job.final() == reference(), what


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_gone(home, stopped, reference, name):
    job = stopped.copy(home / "job")
    (job.path(1, STEP) / name).unlink()
    code, out = tiny.weft("ckpt", "verify", job.store())
    assert code == 1 and name in out, out
    code, out = tiny.weft("ckpt", "ls", job.store())
    assert code == 1 and name in out, out
    run = job.run()
    assert run.codes() == [0, 0] and job.restored() == 4 and job.final() == reference(), run.text()


def test_files_of_two_checkpoints_mixed_up(home, stopped, reference):
    """Each file is whole and of the right length, but of another step."""
    job = stopped.copy(home / "job")
    name = FILES[1]
    (job.path(1, STEP) / name).write_bytes((job.path(1, 4) / name).read_bytes())
    code, out = tiny.weft("ckpt", "verify", job.store())
    assert code == 1 and name in out and "tensor '" in out, out
    run = job.run()
    assert run.codes() == [0, 0] and job.restored() == 4 and job.final() == reference(), run.text()


def test_a_checkpoint_under_another_ones_name(home, stopped, reference):
    job = stopped.copy(home / "job")
    job.path(1, STEP).rename(job.path(1, 7))
    code, out = tiny.weft("ckpt", "verify", job.store())
    assert code == 1 and "step-00000007.a1" in out, out
    run = job.run()
    assert run.codes() == [0, 0] and job.restored() == 4 and job.final() == reference(), run.text()


def test_nothing_good_left_ends_the_run_instead_of_starting_over(home, stopped):
    job = stopped.copy(home / "job")
    for step in (4, 6):
        path = job.path(1, step) / FILES[0]
        path.write_bytes(path.read_bytes()[:-1])
    run = job.run()
    assert run.leader.returncode == 65 and run.codes() == [None, None], run.printed()
    for step in (4, 6):
        assert re.search(rf"of step {step} is damaged: .*{re.escape(FILES[0])}", run.printed()), run.printed()
    assert job.committed() == [(1, 4), (1, 6)], "the damaged ones stay for whoever can mend them"
