#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""make_wheel.py VERSION OUT: the wheel of the package beside this file. A wheel is a zip with a list of what is in it; this
one is plain Python for every platform, and the same bytes whenever it is made of the same files."""
import base64
import hashlib
import pathlib
import sys
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
METADATA = """Metadata-Version: 2.1
Name: weft
Version: {version}
Summary: weft's jobs, metrics and checkpoints from Python
License: Apache-2.0
Requires-Python: >=3.9
Provides-Extra: arrays
Requires-Dist: numpy; extra == "arrays"
"""
WHEEL = "Wheel-Version: 1.0\nGenerator: weft\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def main(version, out):
    info = f"weft-{version}.dist-info"
    files = {f"weft/{p.name}": p.read_bytes() for p in sorted((HERE / "weft").iterdir()) if p.suffix in (".py", ".typed")}
    files[f"{info}/METADATA"] = METADATA.format(version=version).encode()
    files[f"{info}/WHEEL"] = WHEEL.encode()
    digests = {n: base64.urlsafe_b64encode(hashlib.sha256(b).digest()).rstrip(b"=").decode() for n, b in files.items()}
    record = "".join(f"{n},sha256={digests[n]},{len(b)}\n" for n, b in files.items()) + f"{info}/RECORD,,\n"
    files[f"{info}/RECORD"] = record.encode()
    path = pathlib.Path(out) / f"weft-{version}-py3-none-any.whl"
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as z:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.external_attr = 0o644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            z.writestr(entry, data)
    print(path)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2])
