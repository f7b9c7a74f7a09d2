#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs one C test for run.sh and says in one piece how it ended: so several can run side by side.
#
#   run_one.sh RESULTS SECONDS TEST     a failed one leaves its name in RESULTS
#
# TEST is PROGRAM, or PROGRAM:NAME for a file of a room's program; cuda:TEST runs on the CUDA backend's
# emulated twin.
results=$1 limit=$2 test=${3#cuda:}
program=${test%:*}
name=${test##*[/:]}
command=$program
[ "$program" = "$test" ] || command="$program --group $name"
if [ "$test" != "$3" ]; then
    name=$name-cuda
    export WEFT_RIG=cuda WEFT_BACKEND_DIR="$WEFT_BUILD/tests/cuda"
    # Kernels are launched early there: the stricter way.
    case $program in */ops/*) export WEFT_CUDA_EARLY_LAUNCH=1 ;; esac
    # Without time to spare what takes the emulation minutes is left out where another test shows it too.
    [ -n "${WEFT_LONG:-}" ] || export WEFT_QUICK=1
    # With time to spare every kernel of the op suite runs in all orders of blocks and threads.
    case ${WEFT_LONG:+$program} in */ops/*) export WEFT_FAKE_CUDA=orders ;; esac
fi
log=$results/$name.log
start=$(date +%s)
if timeout "$limit" $command >"$log" 2>&1; then
    said=$(
        echo "ok      $name  $(grep -c '\[       OK \]' "$log") cases, $(($(date +%s) - start)) s"
        grep -h 'SKIPPED\|SKIP:' "$log" | sed 's/^/        /' | sort -u
    )
else
    rc=$?
    echo "$name" >>"$results/failed"
    said=$(
        echo "FAILED  $name (exit $rc)"
        tail -n 40 "$log"
    )
fi
rm -f "$log"
echo "$said"
