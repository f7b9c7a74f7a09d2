#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# All-reduce on 2 ranks of this host: ours, OpenMPI as it comes and OpenMPI with the best of the
# settings below, in one run, taking turns so that a busy machine is busy for all. The table gives
# the median of ROUNDS medians in microseconds, and ours against each.
#
#   allreduce.sh BUILD [ROUNDS]
set -eu
build=$1 rounds=${2:-5}
here=$(dirname "$0")
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
mpicc -O2 -Wall -I"$here/../.." -o "$out/mpi" "$here/mpi_allreduce.c"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

mpi() {
    name=$1
    shift
    mpirun -np 2 --oversubscribe --bind-to none "$@" "$out/mpi" >>"$out/$name" 2>>"$out/log" || {
        echo "mpirun $* failed:" >&2
        tail -3 "$out/log" >&2
        exit 1
    }
}

# Algorithms of the tuned component: 3 recursive doubling, 4 ring, 5 segmented ring, 6 Rabenseifner.
tuned() {
    name=tuned-$1-$2-$3
    mpi "$name" --mca coll ^han,adapt --mca coll_tuned_use_dynamic_rules 1 \
        --mca coll_tuned_allreduce_algorithm "$1" --mca coll_tuned_allreduce_algorithm_segmentsize "$2" \
        --mca btl_vader_single_copy_mechanism "$3" --mca mpi_yield_when_idle 0
}

i=0
while [ "$i" -lt "$rounds" ]; do
    "$build/tests/bench/bench_allreduce" 2 >>"$out/ours"
    mpi plain
    for copy in cma emulated none; do
        tuned 3 0 $copy
        tuned 4 0 $copy
        tuned 5 1048576 $copy
        tuned 6 0 $copy
    done
    i=$((i + 1))
done

# The median of a file's values for a size.
of() {
    awk -v b="$2" '$1 == b {print $2}' "$out/$1" | sort -g | awk '{v[NR] = $1} END {print v[int((NR + 1) / 2)]}'
}

printf '%10s %12s %12s %12s %8s %8s  %s\n' bytes 'ours us' 'plain us' 'tuned us' plain tuned 'best tuning'
for bytes in 4096 1048576 67108864; do
    best='' least=''
    for f in "$out"/tuned-*; do
        t=$(of "$(basename "$f")" $bytes)
        if [ -z "$least" ] || awk "BEGIN {exit !($t < $least)}"; then
            least=$t best=$(basename "$f")
        fi
    done
    ours=$(of ours $bytes) plain=$(of plain $bytes)
    awk -v b=$bytes -v o="$ours" -v p="$plain" -v t="$least" -v n="$best" 'BEGIN {
        printf "%10d %12.2f %12.2f %12.2f %7.1fx %7.1fx  %s\n", b, o, p, t, p / o, t / o, n }'
done
