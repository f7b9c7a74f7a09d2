# SPDX-License-Identifier: Apache-2.0
# For sourcing: weft_libraries, the LD_LIBRARY_PATH with which our programs find libcublasLt, libcudnn
# and what those load, if the linker does not know: CUDA_HOME's, CUDA's usual folder, and Python's
# packages of them (PyTorch's, which bring cuDNN where CUDA's own folder has none). For our programs
# alone: PyTorch and JAX know where their own are, and others' would come before those.
weft_libraries=${LD_LIBRARY_PATH:-}
[ -z "${CUDA_HOME:-}" ] || weft_libraries=$CUDA_HOME/lib64${weft_libraries:+:$weft_libraries}
while read -r weft_folder; do
    [ -z "$weft_folder" ] || weft_libraries=${weft_libraries:+$weft_libraries:}$weft_folder
done <<END
$(ls -d /usr/local/cuda/lib64 2>/dev/null)
$("${PYTHON:-python3}" -c 'import glob, sys; print(*(f for p in sys.path for f in sorted(glob.glob(p + "/nvidia/*/lib"))), sep="\n")' 2>/dev/null)
END
