#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Compiles what was changed and links the bundle's libweft_cuda.so again, where nvcc and a C compiler
# are: a changed kernel is there in seconds, without the rest of the build.
#
#   relink.sh [TREE]   TREE: where the sources are as they should be; without it the bundle's own, in
#                      relink/source once this was run
#
# What differs from what the objects were made from is compiled, and whatever includes it. The library
# that was there stays as libweft_cuda.so.before. relink/flags-c and flags-cuda are the compilers'
# flags; $NVCC and $CC the compilers.
set -eu
bundle=$(cd "$(dirname "$0")" && pwd)
here=$bundle/relink
[ -d "$here" ] || tar -C "$bundle" -xzf "$here.tar.gz"
tree=$(cd "${1:-$here/source}" && pwd)
. "$bundle/libraries.sh"
# The toolkit, or Python's packages of it; the libraries' file itself: packages have no link of the plain name.
nvcc=${NVCC:-$(command -v nvcc || true)} cc=${CC:-$(command -v gcc || command -v cc || true)} headers="" lt=""
for folder in "${CUDA_HOME:-/usr/local/cuda}/lib64" $(echo "$weft_libraries" | tr : ' '); do
    [ -n "$nvcc" ] || nvcc=$(ls "${folder%/*}/bin/nvcc" 2>/dev/null || true)
    [ -n "$lt" ] || lt=$(ls "$folder"/libcublasLt.so* 2>/dev/null | head -n 1)
    headers="$headers -isystem ${folder%/*}/include"
done
[ -n "$cc" ] && [ -n "$lt" ] || { echo "relink: there is no C compiler or no libcublasLt.so here"; exit 1; }

cd "$tree"
changed=$(sha256sum -c --quiet "$here/sums" 2>/dev/null | sed -n 's/: FAILED.*//p' || true)
[ -z "$(sha256sum -c --quiet --ignore-missing "$here/sums-common" 2>/dev/null)" ] ||
    { echo "relink: common/ was changed, which is in all programs: it takes make gpu-bundle"; exit 1; }
compiled=0 jobs=""
while read -r name source rest; do
    for file in $source $rest; do
        printf '%s\n' "$changed" | grep -qxF "$file" || continue
        echo "compiles $source"
        compiled=$((compiled + 1))
        case $source in
        *.cu)
            [ -n "$nvcc" ] || { echo "relink: no nvcc here: $source cannot be compiled"; exit 1; }
            compile="\"$nvcc\" $(cat "$here/flags-cuda")"
            ;;
        *) compile="\"$cc\" $(cat "$here/flags-c") $headers" ;;
        esac
        { eval "$compile -c \"$source\" -o \"$here/objects/$name.new\"" && mv "$here/objects/$name.new" "$here/objects/$name"; } &
        jobs="$jobs $!"
        break
    done
done <"$here/list"
failed=0
for job in $jobs; do
    wait "$job" || failed=1
done
[ $failed = 0 ] || { echo "relink: what does not compile was left as it was, and so was the library"; exit 1; }

objects=$(cut -d' ' -f1 "$here/list" | sed "s,^,$here/objects/,")
"$cc" -shared -Wl,-z,defs -Wl,--version-script="$here/export.map" -o "$bundle/libweft_cuda.so.new" $objects "$here/libcommon.a" \
    "$here/libcudart_static.a" "$lt" -Wl,-rpath,"$(dirname "$lt")" -lrt -lpthread -ldl -lm
strip -S "$bundle/libweft_cuda.so.new"
mv "$bundle/libweft_cuda.so" "$bundle/libweft_cuda.so.before"
mv "$bundle/libweft_cuda.so.new" "$bundle/libweft_cuda.so"
# From here on these are what the objects were made from.
cut -c67- "$here/sums" | xargs sha256sum >"$here/sums.new"
mv "$here/sums.new" "$here/sums"
echo "relink: $compiled compiled, libweft_cuda.so is new"
