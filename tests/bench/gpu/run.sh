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
#   make gpu-bundle CUDA_ARCHS=90     and carry build/gpu-bundle (under 60 MiB) beside the tree; there
#   1  WEFT_REQUIRE_GPU=1 GPU_TEST_SECONDS=560 GPU_TEST_LOG=$OUT/gpu-test.log sh build/gpu-bundle/gpu-test
#   2  WEFT_REQUIRE_GPU=1 sh tests/bench/gpu/run.sh build/gpu-bundle $OUT --budget 560 --parts 124m,ops-124m
#   3  WEFT_REQUIRE_GPU=1 sh tests/bench/gpu/run.sh build/gpu-bundle $OUT --budget 560 --parts 1558m,ops-1558m
# Of 1 a part can be run again alone: GPU_TEST_PART and GPU_TEST_ONLY (tests/cuda/gpu_test.sh), as with
# GPU_TEST_PART=sanitize. What of 2 and 3 does not fit is left out, the least important first, and the
# result says so; --parts 124m and a later --parts ops-124m divide it.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
if [ -e "$here/../libraries.sh" ]; then # in a bundle
    . "$here/../libraries.sh"
else
    . "$here/../../cuda/libraries.sh"
fi
export WEFT_LIBRARIES="$weft_libraries"
exec "${PYTHON:-python3}" "$here/bench.py" "$@" --python "${PYTHON:-python3}"
