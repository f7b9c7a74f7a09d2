#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Puts into a bundle what links its libweft_cuda.so again, for relink.sh: the objects, what they were
# compiled from, and how.
#
#   objects.sh BUILD BUNDLE OBJECT...   FLAGS_C and FLAGS_CUDA: the compilers' flags
set -eu
build=$1 bundle=$2
shift 2
to=$bundle/relink
rm -rf "$to" "$to.tar.gz"
mkdir -p "$to/objects" "$to/source"
: >"$to/list"
for object in "$@"; do
    name=${object#"$build/obj/cuda/"}
    mkdir -p "$to/objects/$(dirname "$name")"
    cp "$object" "$to/objects/$name"
    # What it was made from that is ours: names of files, the first of which is the one to compile. nvcc
    # writes ./ before those that are included.
    files=$(sed 's/^[^:]*: *//; /^$/q' "${object%.o}.d" | tr -s ' \\' '\n\n' | awk '{ sub(/^\.\//, "") } NF && !/^\// && !/:$/ && !seen[$0]++' | tr '\n' ' ')
    echo "$name $files" >>"$to/list"
    for file in $files; do
        mkdir -p "$to/source/$(dirname "$file")"
        cp "$file" "$to/source/$file"
    done
done
cp "$build/libcommon.a" kernels/cuda/export.map "$to/"
cp tests/cuda/relink.sh "$bundle/"
# Of CUDA's own what a machine that has only Python's packages of it lacks.
cp "${CUDA_HOME:-/usr/local/cuda}/lib64/libcudart_static.a" "$to/"
# Another compiler warns of other things.
printf '%s\n' "$FLAGS_C" | sed 's/ -MMD -MP//; s/ -Werror//' >"$to/flags-c"
printf '%s\n' "$FLAGS_CUDA" | sed 's/,-Werror//' >"$to/flags-cuda"
find common -name '*.[ch]' -o -name '*.def' | sort | xargs sha256sum >"$to/sums-common"
(cd "$to/source" && find . -type f | sed 's,^\./,,' | sort | xargs sha256sum) >"$to/sums"
# Packed, for what a lent machine is given is bounded; relink.sh unpacks it.
strip -S "$to/libcommon.a" $(find "$to/objects" -name '*.o' ! -name '*.cu.o')
tar -C "$bundle" -czf "$to.tar.gz" relink
rm -r "$to"
