#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The GPU benchmark: each op of GPT-2's step, and GPT-2 124M and 1558M beside PyTorch and JAX.
#
#   run.sh BUNDLE OUT [--budget SECONDS] [--parts NAME,..] [..]      the rest: bench.py
#
# BUNDLE: build/gpu-bundle, or a build. OUT: gets one DATE-COMMIT-gpu*.txt, ready for
# tests/bench/results, and a log of all that was said. Without a GPU it says so and succeeds;
# WEFT_REQUIRE_GPU=1 makes that a failure. $PYTHON (python3) is the interpreter with torch and jax.
#
# On a machine that is lent for 30 minutes, 10 a command, where nothing of Debian's is: here
#   make gpu-bundle          and carry build/gpu-bundle (under 60 MiB) beside the tree; there
#   1  WEFT_REQUIRE_GPU=1 GPU_TEST_SECONDS=540 sh build/gpu-bundle/gpu-test
#   2  WEFT_REQUIRE_GPU=1 sh tests/bench/gpu/run.sh build/gpu-bundle "$OUT" --budget 540 --parts 124m,ops-124m
#   3  WEFT_REQUIRE_GPU=1 sh tests/bench/gpu/run.sh build/gpu-bundle "$OUT" --budget 540 --parts 1558m,ops-1558m
# 1 is cut by GPU_TEST_PART (see tests/cuda/gpu_test.sh) when something in it has to be seen again.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
for find in "$here/../../cuda/libraries.sh" "$here/../libraries.sh"; do
    [ ! -e "$find" ] || . "$find"
done
exec "${PYTHON:-python3}" "$here/bench.py" "$@" --python "${PYTHON:-python3}"
