#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Every test that runs on the CUDA backend, on a real GPU: from the tree (make gpu-test) or from a
# bundle (sh gpu-test, where CUDA is all there is).
#
#   gpu_test.sh LIBRARIES RANK TEST...   LIBRARIES: the folder of the real libweft_cuda.so; TEST: as in tests/run_one.sh
#
# Without a GPU it says so and succeeds; WEFT_REQUIRE_GPU=1 makes that a failure. A GPU that is there
# and cannot be opened is a failure, never a skip.
#
#   GPU_TEST_PART     some of these, with blanks between; default: ops real models faults
#       ops           the programs: each op, gradients, parity
#       real          GPT-2 124M in the ways that have to come to one thing (models.py)
#       models        trainings against the losses that the CPU had (models.py; in the tree
#                     tests/e2e/test_cuda.py), several ranks on the one GPU, kill -9 and again
#       faults        no memory, no device (models.py)
#       sanitize      the programs under compute-sanitizer, memcheck and racecheck, where that is
#                     installed; WEFT_SANITIZE=1 adds it
#   GPU_TEST_ONLY     of the programs those with this in their names
#   GPU_TEST_FROM     begins at the program of this name, or at real, models or faults
#   GPU_TEST_RESUME   how its caller is to continue; what stands before the name (GPU_TEST_FROM=)
#   GPU_TEST_STOP     1: what follows a program in which the device itself failed is not begun: one
#                     such failure explains the others
#   GPU_TEST_SECONDS  for all of it (3600); what does not fit is LEFT OUT, which is a failure
#   GPU_TEST_LOG      a file that gets all that was said; what is printed is short
set -u
libraries=$1 rank=$2
shift 2
here=$(cd "$(dirname "$0")" && pwd)
. "$here/libraries.sh"
export WEFT_BACKEND_DIR="$libraries" LD_LIBRARY_PATH="$weft_libraries"
parts=${GPU_TEST_PART:-ops real models faults}
[ "${WEFT_SANITIZE:-0}" = 1 ] && parts="$parts sanitize"
limit=900 ends=$(($(date +%s) + ${GPU_TEST_SECONDS:-3600}))
log=$(mktemp)
trap 'rm -f "$log"' EXIT
passed=0 failed="" from=${GPU_TEST_FROM:-} broken=""
# Those whose shapes are a real model's; they come first.
real="test_huge test_large test_linears test_transformer test_numerics"

skip() {
    echo "SKIPPED: no GPU: $1"
    [ "${WEFT_REQUIRE_GPU:-0}" = 1 ] && exit 1
    exit 0
}

# What a failing program's output says of the failure, in few lines.
gist() {
    grep -a 'ERROR\|FAILED\|failed\|rror:\|=========\|Assertion\|terminated' "$log" | awk '!seen[$0]++' | head -n 14 |
        cut -c1-200
    tail -n 4 "$log" | cut -c1-200
}

run() { # NAME COMMAND...
    name=$1
    shift
    [ "$name" = "$from" ] && from=""
    [ -z "$from" ] || return 0
    if [ -n "$broken" ]; then
        [ "$broken" = reported ] || echo "STOPPED: the device failed in $broken; ${GPU_TEST_RESUME:-GPU_TEST_FROM=}$name continues behind it"
        broken=reported
        return
    fi
    left=$((ends - $(date +%s)))
    if [ "$left" -lt 5 ]; then
        echo "LEFT OUT  $name: no time is left (GPU_TEST_SECONDS)"
        failed="$failed $name"
        return
    fi
    began=$(date +%s)
    timeout "$((left < limit ? left : limit))" "$@" >"$log" 2>&1
    rc=$?
    took=$(($(date +%s) - began))
    [ -n "${GPU_TEST_LOG:-}" ] && { echo "== $name (exit $rc, $took s)" && cat "$log"; } >>"$GPU_TEST_LOG"
    if [ "$rc" = 0 ]; then
        passed=$((passed + 1))
        echo "ok      $name  $(grep -ac '\[       OK \]' "$log") cases, $took s"
        grep -ah '^ok  \|SKIPPED\|SKIP:' "$log" | sort -u | head -n 20 | cut -c1-160 | sed 's/^/        /'
    else
        [ "$rc" = 124 ] && rc="124: not done after $took s"
        echo "FAILED  $name (exit $rc)"
        gist | sed 's/^/        /'
        failed="$failed $name"
        [ "${GPU_TEST_STOP:-0}" = 1 ] && grep -aq 'cuda device [0-9]*: .*(cudaError' "$log" && broken=$name
    fi
    return 0
}

has_part() {
    case " $parts " in *" $1 "*) return 0 ;; *) return 1 ;; esac
}

# One a line: those of real shapes first.
ordered() { # TEST...
    for name in $real; do
        printf '%s\n' "$@" | grep "[/:]$name\$"
    done
    printf '%s\n' "$@" | grep -v "[/:]\($(echo "$real" | sed 's/ /\\|/g')\)\$"
}

# The tests that were asked for, NAME-SUFFIX behind PREFIX...
each() { # SUFFIX PREFIX... -- TEST...
    suffix=$1 prefix=""
    shift
    while [ "$1" != -- ]; do
        prefix="$prefix $1"
        shift
    done
    shift
    for test in $(ordered "$@"); do
        name=${test##*[/:]} program=${test%:*} group=""
        [ "$program" = "$test" ] || group="--group $name"
        case $name in *"${GPU_TEST_ONLY:-}"*) run "$name$suffix" $prefix "$program" $group ;; esac
    done
}

sanitize() { # TEST...
    sanitizer=$(command -v compute-sanitizer || ls "${CUDA_HOME:-/usr/local/cuda}/bin/compute-sanitizer" 2>/dev/null)
    if [ -z "$sanitizer" ]; then
        echo "SKIPPED: compute-sanitizer is not installed"
        return
    fi
    # What a call returns is looked at by who calls: NVIDIA's libraries and some tests try what fails.
    each " under memcheck" "$sanitizer" --tool memcheck --report-api-errors no --error-exitcode 9 -- "$@"
    each " under racecheck" "$sanitizer" --tool racecheck --error-exitcode 9 -- "$@"
}

# From a bundle, against what was recorded; from the tree both are at hand.
models() {
    if [ -e "$here/models" ]; then
        run "models" "${PYTHON:-python3}" "$here/models.py" check "$here/models" "$rank"
    elif /usr/bin/python3 -c 'import pytest, numpy' 2>/dev/null; then
        run "test_cuda.py" env -u WEFT_BACKEND_DIR -u WEFT_RIG WEFT_BUILD="$(cd "$libraries" && pwd)" \
            WEFT_CUDA_DIR="$(cd "$libraries" && pwd)" /usr/bin/python3 -m pytest -q -p no:cacheprovider tests/e2e/test_cuda.py
    else
        echo "SKIPPED: models: no pytest"
    fi
}

[ -e "$libraries/libweft_cuda.so" ] || skip "libweft_cuda.so was not built (no nvcc)"
if ! "$rank" --probe --kind cuda >"$log" 2>&1; then
    [ -e /dev/nvidiactl ] || [ -e /dev/dxg ] || skip "$(head -n 1 "$log")"
    echo "FAILED: there is a GPU and it cannot be opened"
    cat "$log"
    exit 1
fi
echo "gpu-test: $(cat "$log")"
export WEFT_RIG=cuda
has_part ops && each "" -- "$@"
has_part real && run "real" "${PYTHON:-python3}" "$here/models.py" real "$rank"
has_part models && models
has_part faults && run "faults" "${PYTHON:-python3}" "$here/models.py" faults "$rank"
has_part sanitize && sanitize "$@"
[ -z "$from" ] || failed="$failed $from" # a name that nothing here has
[ -n "$failed" ] && echo "failed:$failed"
echo "gpu-test: $passed passed, $(echo "$failed" | wc -w) failed"
[ -z "$failed" ]
