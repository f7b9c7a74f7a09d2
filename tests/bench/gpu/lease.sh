#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What to do with a GPU that is lent for half an hour: stages, in this order, each one command and
# each useful if it is cut.
#
#   lease.sh STAGE BUNDLE OUT [--from NAME] [--llmc FOLDER] [what else bench.py takes]
#
#   1   150 s  the device; GPT-2 124M with any order of sums, then in order, each with its choices of
#              algorithms; what the library makes of what follows a product; each op of the step in
#              bf16; attention's gradient in order; 124M in any order with kernels launched early
#   2   560 s  the tests of ops, real shapes first, until the device fails; 124M fused and apart, in
#              order and not; trainings, resume, faults. --from NAME begins at a program, or at
#              "real", "models" or "faults"
#   3   560 s  124M in turns with torch.compile, with and without max-autotune, llm.c and JAX; second
#              turns go to the fastest of them first
#   4a  560 s  1558M in turns with PyTorch and llm.c, and its ops
#   4b  560 s  Llama 1B at 4096 tokens in turns with PyTorch, and its ops
#   4c  560 s  1558M in turns with JAX
#   sweep 200 s  124M with heads packed and apart; attention's gradient in order, and products, with
#              more and less scratch
#
# Several, with commas between, are one after the other. BUNDLE: build/gpu-bundle, or a build. OUT gets
# DATE-COMMIT-gpu-STAGE.txt, ready for tests/bench/results, and of stage 2 gpu-test.txt, both written
# again after each line, and logs of all that was said. $PYTHON (python3) has torch and jax; a peer that
# is not there is a row that says so. llm.c is built here, from sources that were carried along in
# FOLDER (with cuDNN if cudnn-frontend lies in them). Without a GPU it says so and succeeds;
# WEFT_REQUIRE_GPU=1 makes that a failure. WEFT_CUDA_* (kernels/README.md) are choices to sweep; the
# result says which were set.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
if [ -e "$here/../libraries.sh" ]; then # in a bundle
    tests=$(cd "$here/.." && pwd)
else
    tests=$(cd "$here/../../cuda" && pwd)
fi
. "$tests/libraries.sh"
export WEFT_LIBRARIES="$weft_libraries" PYTHON="${PYTHON:-python3}"
[ $# -ge 3 ] || { sed -n '3,/^set -eu/s/^# \{0,1\}//p' "$0" && exit 2; }
stages=$1 bundle=$(cd "$2" && pwd)
mkdir -p "$3"
out=$(cd "$3" && pwd)
shift 3
refuse() {
    echo "lease.sh: $1" >&2
    exit 2
}
left=$#
while [ "$left" -gt 0 ]; do # what is not --from goes behind those that were not seen yet
    if [ "$1" = --from ]; then
        [ "$left" -ge 2 ] || refuse "--from wants a name"
        case ",$stages," in *,2,*) ;; *) refuse "--from is of stage 2" ;; esac
        export GPU_TEST_FROM="$2"
        shift 2
        left=$((left - 2))
    else
        set -- "$@" "$1"
        shift
        left=$((left - 1))
    fi
done
# Whatever the stages are: else a typing error is reported only when its stage begins.
benched=$(echo "$stages" | tr , '\n' | grep -vx 2 | paste -sd, -)
"$PYTHON" "$here/bench.py" "$bundle" "$out" --check ${benched:+--stage "$benched"} "$@" || exit 2
case "${benched:-none} $*" in "none "*--parts*) refuse "--parts is of the other stages; stage 2 takes --from" ;; esac

tested() {
    export GPU_TEST_SECONDS="${GPU_TEST_SECONDS:-560}" GPU_TEST_LOG="$out/gpu-test-log.txt" GPU_TEST_STOP=1 GPU_TEST_RESUME="--from "
    { sh "$tests/gpu_test.sh" "${WEFT_BACKEND_DIR:-$bundle}" "$bundle/weft-rank" $(sed "s,^,$bundle/tests/," "$bundle/tests/list") || touch "$out/failed"; } |
        tee "$out/gpu-test.txt"
    [ ! -e "$out/failed" ] || { rm "$out/failed" && return 1; }
}

failed=0
for stage in $(echo "$stages" | tr , ' '); do
    began=$(date +%s) ended=passed
    if [ "$stage" = 2 ]; then
        tested || ended=FAILED
    else
        "$PYTHON" "$here/bench.py" "$bundle" "$out" --stage "$stage" --python "$PYTHON" "$@" || ended=FAILED
    fi
    [ $ended = passed ] || failed=1
    echo "stage $stage: $ended, $(($(date +%s) - began)) s"
done
exit $failed
