#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs the benchmarks, one after the other, and keeps what each says under tests/bench/results as
# DATE-COMMIT-NAME.txt, below the date, the commit, the hardware, the load and the command.
#
#   run.sh BUILD [NAME...]
#
# NAME: start steps ckpt kernels choices compile service hosts placement restart allreduce peers order buckets fuse progress pipelines
# experts wire tokens tokenizers weights generate; default: all. A benchmark whose peer is not installed (mpicc for allreduce; TORCH_PYTHON or BUILD/torch for
# peers and experts, TORCH_PYTHON with transformers for generate, TOKENIZERS_PYTHON for tokens and tokenizers) is left out, and that is said.
set -u
build=$(cd "$1" && pwd)
shift
cd "$(dirname "$0")/../.." || exit 1
export WEFT_BACKEND_DIR="$build"
results=tests/bench/results
commit=$(git rev-parse --short HEAD 2>/dev/null || echo none)
git diff --quiet HEAD 2>/dev/null || commit=$commit-dirty
failed=0
mkdir -p "$results"

head_of() {
    echo "# date      $(date -u +%FT%TZ)"
    echo "# commit    $commit"
    echo "# hardware  $(lscpu | sed -n 's/^Model name: *//p' | head -n 1), $(nproc) cores," \
        "$(awk '/MemTotal/ {printf "%.0f GiB", $2 / 1048576}' /proc/meminfo), Linux $(uname -r)"
    echo "# load      $(cut -d' ' -f1-3 /proc/loadavg) before; beside other work only ratios hold"
    echo "# command   $*"
}

# keep NAME COMMAND...
keep() {
    name=$1
    shift
    file=$results/$(date -u +%F)-$commit-$name.txt
    echo "== $name"
    head_of "$(echo "$*" | sed "s|$build|BUILD|g")" >"$file"
    "$@" >>"$file"
    rc=$?
    cat "$file"
    [ "$rc" = 0 ] && return
    echo "FAILED  $name (exit $rc)"
    rm -f "$file"
    failed=$((failed + 1))
}

without() {
    echo "LEFT OUT  $1: $2"
}

[ $# -gt 0 ] || set -- start steps ckpt kernels choices compile service hosts placement restart allreduce peers order buckets fuse progress pipelines experts wire tokens tokenizers weights generate
for bench in "$@"; do
    case $bench in
    start) keep start /usr/bin/python3 tests/bench/start.py "$build" ;;
    steps) keep steps /usr/bin/python3 tests/bench/steps.py "$build" ;;
    ckpt) keep ckpt sh tests/bench/ckpt_write.sh "$build" ;;
    kernels) keep kernels "$build/tests/bench/bench_kernels" ;;
    choices) keep choices "$build/tests/bench/bench_kernels" --ways ;;
    compile) keep compile "$build/tests/bench/bench_compile" ;;
    service) keep service /usr/bin/python3 tests/bench/service.py "$build" ;;
    hosts) keep hosts /usr/bin/python3 tests/bench/hosts.py "$build" ;;
    placement) keep placement "$build/tests/bench/bench_placement" ;;
    restart) keep restart /usr/bin/python3 tests/bench/restart.py "$build" ;;
    allreduce)
        if command -v mpicc >/dev/null; then
            keep allreduce sh tests/bench/allreduce.sh "$build"
        else
            without allreduce "no mpicc (apt-get install openmpi-bin libopenmpi-dev)"
        fi
        ;;
    peers) keep peers /usr/bin/python3 tests/bench/peers.py "$build" ;;
    order) keep order /usr/bin/python3 tests/bench/order.py "$build" ;;
    buckets) keep buckets /usr/bin/python3 tests/bench/buckets.py "$build" ;;
    progress) keep progress /usr/bin/python3 tests/bench/progress.py "$build" ;;
    pipelines) keep pipelines /usr/bin/python3 tests/bench/pipelines.py "$build" ;;
    experts) keep experts /usr/bin/python3 tests/bench/experts.py "$build" ;;
    wire) keep wire /usr/bin/python3 tests/bench/wire.py "$build" ;;
    generate)
        if "${TORCH_PYTHON:-python3}" -c 'import transformers, torch' 2>/dev/null; then
            keep generate /usr/bin/python3 tests/bench/generate.py "$build"
        else
            without generate "no TORCH_PYTHON that has transformers"
        fi
        ;;
    tokens | tokenizers)
        if ! "${TOKENIZERS_PYTHON:-python3}" -c 'import tokenizers' 2>/dev/null; then
            without "$bench" "no TOKENIZERS_PYTHON that has PyPI's tokenizers"
        elif [ "$bench" = tokens ]; then
            keep tokens /usr/bin/python3 tests/bench/tokens.py "$build"
        else
            keep tokenizers "${TOKENIZERS_PYTHON:-python3}" tests/parity/tokenizers_texts.py "$build/tests/tokenize" --time --megabytes 4
        fi
        ;;
    weights) keep weights /usr/bin/python3 tests/bench/weights.py "$build/weft" ;;
    fuse) keep fuse /usr/bin/python3 tests/bench/fuse.py "$build" ;;
    *)
        echo "no benchmark is called $bench"
        failed=$((failed + 1))
        ;;
    esac
done
exit $((failed > 0))
