# SPDX-License-Identifier: Apache-2.0
# For sourcing: lets the linker find libcublasLt and libcudnn where it does not know them: in
# $CUDA_HOME, and where that has none either in the folders that pip brought for PyTorch. What it
# finds by itself stays first.
if [ -n "${CUDA_HOME:-}" ]; then
    export LD_LIBRARY_PATH="$CUDA_HOME/lib64${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
fi
for weft_lib in libcublasLt.so.13 libcudnn.so.9; do
    if ldconfig -p 2>/dev/null | grep -q "$weft_lib" || [ -e "${CUDA_HOME:-/usr/local/cuda}/lib64/$weft_lib" ]; then
        continue
    fi
    weft_folder=$("${PYTHON:-python3}" -c '
import glob, sys
found = [f for path in sys.path for f in glob.glob(f"{path}/nvidia/*/lib/" + sys.argv[1])]
print(found[0].rsplit("/", 1)[0] if found else "")' "$weft_lib" 2>/dev/null) || weft_folder=
    if [ -n "$weft_folder" ]; then
        export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$weft_folder"
    else
        echo "note: nobody has $weft_lib"
    fi
done
