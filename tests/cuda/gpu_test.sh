#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Every test that runs on the CUDA backend, on a real GPU: from the tree (make gpu-test) or from a
# bundle (sh gpu-test, where CUDA is all there is).
#
#   gpu_test.sh LIBRARIES RANK PROGRAM...   LIBRARIES: the folder of the real libweft_cuda.so
#
# Without a GPU it says so and succeeds; WEFT_REQUIRE_GPU=1 makes that a failure. WEFT_SANITIZE=1 runs
# the programs under compute-sanitizer (memcheck, racecheck) as well, where that is installed. A GPU
# that is there and cannot be opened is a failure, never a skip.
set -u
libraries=$1 rank=$2
shift 2
export WEFT_BACKEND_DIR="$libraries" WEFT_RIG=cuda
# Where libcublasLt, libcudnn and what they load are, if the linker does not know: with CUDA_HOME, or
# with Python's packages of them (PyTorch's, which bring cuDNN where CUDA's own folder has none).
[ -n "${CUDA_HOME:-}" ] && LD_LIBRARY_PATH="$CUDA_HOME/lib64${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
while read -r folder; do
    [ -n "$folder" ] && LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$folder"
done <<END
$(ls -d /usr/local/cuda/lib64 2>/dev/null)
$(python3 -c 'import glob, sys; print(*(f for p in sys.path for f in sorted(glob.glob(p + "/nvidia/*/lib"))), sep="\n")' 2>/dev/null)
END
export LD_LIBRARY_PATH
limit=900
log=$(mktemp)
trap 'rm -f "$log"' EXIT

skip() {
    echo "SKIPPED: no GPU: $1"
    [ "${WEFT_REQUIRE_GPU:-0}" = 1 ] && exit 1
    exit 0
}

[ -e "$libraries/libweft_cuda.so" ] || skip "libweft_cuda.so was not built (no nvcc)"
if ! "$rank" --probe --kind cuda >"$log" 2>&1; then
    [ -e /dev/nvidiactl ] || [ -e /dev/dxg ] || skip "$(head -n 1 "$log")"
    echo "FAILED: there is a GPU and it cannot be opened"
    cat "$log"
    exit 1
fi
echo "gpu-test: $(cat "$log")"

passed=0 failed=""
run() { # NAME COMMAND...
    name=$1
    shift
    if timeout "$limit" "$@" >"$log" 2>&1; then
        passed=$((passed + 1))
        echo "ok      $name  $(grep -c '\[       OK \]' "$log") cases"
        grep -h 'SKIPPED\|SKIP:' "$log" | sed 's/^/        /' | sort -u
    else
        echo "FAILED  $name (exit $?)"
        tail -n 60 "$log"
        failed="$failed $name"
    fi
}

for program in "$@"; do
    run "$(basename "$program")" "$program"
done
if [ "${WEFT_SANITIZE:-0}" = 1 ]; then
    sanitizer=$(command -v compute-sanitizer || ls "${CUDA_HOME:-/usr/local/cuda}/bin/compute-sanitizer" 2>/dev/null)
    [ -n "$sanitizer" ] || echo "SKIPPED: compute-sanitizer is not installed"
    for tool in ${sanitizer:+memcheck racecheck}; do
        # What a call returns is looked at by who calls: NVIDIA's libraries and some tests try what fails.
        [ "$tool" = memcheck ] && options="--report-api-errors no" || options=""
        for program in "$@"; do
            run "$(basename "$program") under $tool" "$sanitizer" --tool "$tool" $options --error-exitcode 9 "$program"
        done
    done
fi
if [ -e tests/e2e/test_cuda.py ] && /usr/bin/python3 -c 'import pytest, numpy' 2>/dev/null; then
    (
        unset WEFT_BACKEND_DIR WEFT_RIG
        WEFT_BUILD=$(cd "$libraries" && pwd) WEFT_CUDA_DIR=$(cd "$libraries" && pwd) /usr/bin/python3 -m pytest -q -p no:cacheprovider tests/e2e/test_cuda.py
    ) || failed="$failed test_cuda.py"
fi
[ -n "$failed" ] && echo "failed:$failed"
echo "gpu-test: $passed passed,$(echo "$failed" | wc -w) failed"
[ -z "$failed" ]
