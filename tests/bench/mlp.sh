#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# MLP training beside PyTorch on the same two cores: samples/s of the median step, medians of ROUNDS
# rounds in which the four contestants take turns.
#
#   sh tests/bench/mlp.sh BUILD
#
# TORCH_PYTHON is an interpreter that has torch and numpy; without it BUILD/torch is made from PyPI,
# whose wheel brings CUDA along (about 5 GB). Weft's step is timed by itself (step_ms of its
# metrics) and leaves out only the writing of that row. Weft computes the gradient's norm each
# step, PyTorch does not.
set -eu
build=$(cd "${1:-build}" && pwd)
rounds=${ROUNDS:-3}
torch=2.15.0
python=${TORCH_PYTHON:-$build/torch/bin/python}

if [ ! -x "$python" ]; then
    echo "making $build/torch from PyPI" >&2
    python3 -m venv "$build/torch"
    "$build/torch/bin/pip" install -q --disable-pip-version-check "torch==$torch" numpy==2.4.6
fi
scratch=$(mktemp -d "${TMPDIR:-/tmp}/weft-bench-XXXXXX")
trap 'rm -rf "$scratch"' EXIT
export TORCHINDUCTOR_CACHE_DIR="$scratch/inductor" WEFT_BACKEND_DIR="$build"
"$python" tests/bench/mlp_torch.py --make "$scratch"

median() { sort -g "$1" | awk '{v[NR] = $1} END {m = int((NR + 1) / 2); print NR % 2 ? v[m] : (v[m] + v[m + 1]) / 2}'; }

# torch MODE HIDDEN BATCH STEPS
torch() {
    "$python" tests/bench/mlp_torch.py --data "$scratch" --mode "$1" --widths "784,$2,10" \
        --batch "$3" --steps "$4" --threads 2
}

# weft RANKS THREADS HIDDEN BATCH STEPS
weft() {
    rm -rf "$scratch/solo" "$scratch/ckpt"
    cat >"$scratch/job.yaml" <<JOB
name: bench
model: {program: mlp, inputs: 784, hidden: [$3], classes: 10, activation: relu}
mesh: {dp: $1}
data: {format: npy, train: {images: images.npy, labels: labels.npy}, batch: $4}
optimizer: {kind: adamw, weight_decay: 0.01}
train: {steps: $5}
resources: {devices: $1, threads: $2}
checkpoint: {dir: ckpt}
JOB
    "$build/weft-rank" --solo "$scratch/solo" --job "$scratch/job.yaml" >"$scratch/log" 2>&1 || {
        cat "$scratch/log" >&2
        exit 1
    }
    # The last four fifths of the steps, as on the other side.
    sed -n 's/.*"step_ms": *\([0-9.e+-]*\).*/\1/p' "$scratch/solo/metrics.jsonl" |
        tail -n +$(($5 / 5 + 1)) >"$scratch/ms"
    echo "$4 $(median "$scratch/ms")" | awk '{printf "%.1f\n", $1 * 1000 / $2}'
}

# cell HIDDEN BATCH STEPS
cell() {
    rm -f "$scratch"/r.*
    for _ in $(seq "$rounds"); do
        torch eager "$1" "$2" "$3" >>"$scratch/r.eager"
        weft 1 2 "$1" "$2" "$3" >>"$scratch/r.one"
        torch tuned "$1" "$2" "$3" >>"$scratch/r.tuned"
        weft 2 1 "$1" "$2" "$3" >>"$scratch/r.two"
    done
    echo "784-$(echo "$1" | tr , -)-10 $2 $(median "$scratch/r.eager") $(median "$scratch/r.tuned")" \
        "$(median "$scratch/r.one") $(median "$scratch/r.two")" |
        awk '{t = $3 > $4 ? $3 : $4; w = $5 > $6 ? $5 : $6
              printf "%-18s %5d %10.0f %10.0f %10.0f %10.0f %8.2f\n", $1, $2, $3, $4, $5, $6, w / t}'
}

{
    echo "# sh tests/bench/mlp.sh $1   (commit $(git rev-parse --short HEAD), $(date -u +%F))"
    echo "# $(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -n 1), $(nproc) cores;" \
        "torch $("$python" -c 'import torch; print(torch.__version__)'), 2 threads;" \
        "load before $(cut -d' ' -f1 /proc/loadavg)"
    echo "# samples/s, f32, adamw; medians of $rounds rounds; ratio: weft's better over torch's better"
    printf '%-18s %5s %10s %10s %10s %10s %8s\n' model batch eager compiled 1x2 2x1 ratio
    cell 512,256 128 600
    cell 512,256 1024 150
    cell 2048,2048 128 60
    cell 2048,2048 1024 15
    echo "# load after $(cut -d' ' -f1 /proc/loadavg); on $(nproc) cores; beside others the numbers say little"
} >"$scratch/table"
cat "$scratch/table"
mkdir -p tests/bench/results
cp "$scratch/table" tests/bench/results/mlp.txt
