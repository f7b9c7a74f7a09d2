#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What to do with a GPU that is lent for half an hour: stages, each one command and each useful
# wherever it is cut.
#
#   lease.sh STAGE BUNDLE OUT [what else bench.py takes]
#
#   a   570 s  the device and its libraries; GPT-2 124M with any order of sums, then in order, each
#              with its choices of algorithms and what the library makes of what follows a product;
#              each op of the step in bf16, in either order, beside what is expected of it; the tests
#              of ops, real shapes first; small trainings that come to the CPU's losses; what stage
#              nccl does
#   b   490 s  124M in order twice, to the bit, and with ops apart; 124M in turns with torch.compile
#              and llm.c; memcheck on the fused ops
#
#   nccl 180 s collectives by NCCL between two and four ranks that share the one GPU: the numbers that
#              they have through the hosts, and the end of a killed rank (30 s, if all goes well)
#
# Behind these, each 560 s:
#   tests      all tests of ops (--from NAME begins at one); 124M launched early, with heads apart
#              and with our own attention; trainings, killed and begun again; faults; NCCL
#   sanitize   the tests of ops under memcheck and racecheck
#   3          124M in turns with torch.compile, with and without max-autotune, llm.c and JAX; second
#              turns go to the fastest of them first
#   4a         1558M in turns with PyTorch and llm.c, and its ops
#   4b         Llama 1B at 4096 tokens in turns with PyTorch, and its ops
#   4c         1558M in turns with JAX
#   sweep      124M with heads packed and apart; attention's gradient in order, and products, with
#              more and less scratch (200 s)
#   expected   what is expected of 124M's step, op by op, without a device: --rates H100
#
# Several, with commas between, are one after the other: three have no more than eight files.
# BUNDLE: build/gpu-bundle, or a build. OUT gets DATE-COMMIT-gpu-STAGE.txt, ready for
# tests/bench/results, written again after each line; a log of all that was said; and choices.tar,
# which BUNDLE takes in before the next call: what was chosen is not timed again. $PYTHON (python3)
# has torch and jax; a peer that is not there is a row that says so. Without a GPU it says so and
# succeeds; WEFT_REQUIRE_GPU=1 makes that a failure, whose result says what was found instead.
# WEFT_CUDA_* (kernels/cuda/README.md) are choices to sweep; the result says which were set.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
libraries=$here/../libraries.sh # in a bundle
[ -e "$libraries" ] || libraries=$here/../../cuda/libraries.sh
. "$libraries"
export WEFT_LIBRARIES="$weft_libraries" PYTHON="${PYTHON:-python3}"
[ $# -ge 3 ] && [ -n "$1" ] || { sed -n '3,/^set -eu/s/^# \{0,1\}//p' "$0" && exit 2; }
stages=$(echo "$1" | tr , ' ') bundle=$2 out=$3
shift 3
# Each of them, before the first begins: else what is an error is reported only when its stage begins.
for stage in $stages; do
    "$PYTHON" "$here/bench.py" "$bundle" "$out" --check --stage "$stage" "$@" || exit 2
done
failed=0
for stage in $stages; do
    began=$(date +%s) ended=passed
    "$PYTHON" "$here/bench.py" "$bundle" "$out" --stage "$stage" --python "$PYTHON" "$@" || { [ $? = 77 ] && ended=skipped || ended=FAILED; }
    [ $ended != FAILED ] || failed=1
    echo "stage $stage: $ended, $(($(date +%s) - began)) s"
done
exit $failed
