#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs the Debian packages that this machine lacks: deps.sh [run | build | demo | all | long], default all.
#   run     what the installed binaries need, and nothing else
#   build   and what `make all` needs
#   demo    and the data set of `make demo`
#   all     and what the tests, lint and fuzzers need
#   long    and what only `make check-long` needs: compilers of other languages, whole systems, Slurm
# Says what it installs and how much that is, before it does; uses sudo only when not root. PACKAGES_ONLY=1 prints
# the list.
set -eu
run="libgrpc29 libssl3 libprotobuf-c1 libsqlite3-0 libmicrohttpd12 libcurl4 ca-certificates libyaml-0-2 libxxhash0 libutf8proc2 libpcre2-8-0 libdnnl2 zlib1g libzstd1"
build="gcc libc6-dev make pkg-config protobuf-c-compiler libprotobuf-c-dev libyaml-dev libxxhash-dev libutf8proc-dev libpcre2-dev libdnnl-dev
       zlib1g-dev libzstd-dev
       libgrpc-dev libsqlite3-dev libmicrohttpd-dev libcurl4-openssl-dev libssl-dev"
data="dataset-fashion-mnist gzip"
check="clang clang-format clang-tidy libclang-rt-14-dev libcmocka-dev python3 python3-venv python3-pytest python3-pytest-xdist
       python3-numpy python3-yaml xfsprogs iproute2 util-linux curl nftables openssl bash-completion systemd"
long="prometheus golang-go golang-google-grpc-dev golang-goprotobuf-dev protobuf-compiler systemd-container debootstrap
      slurm-wlm munge openssh-server"
case ${1:-all} in
run) packages=$run ;;
build) packages="$run $build" ;;
demo) packages="$run $build $data" ;;
all) packages="$run $build $data $check" ;;
long) packages="$run $build $data $check $long" ;;
*)
    echo "usage: deps.sh [run | build | demo | all | long]" >&2
    exit 2
    ;;
esac
missing=""
[ "${PACKAGES_ONLY:-}" ] && { echo $packages; exit 0; }
for p in $packages; do
    dpkg-query -W -f '${Status}' "$p" 2>/dev/null | grep -q 'ok installed' || missing="$missing $p"
done
[ -z "$missing" ] && exit 0
sudo=""
if [ "$(id -u)" != 0 ]; then
    if ! command -v sudo >/dev/null; then
        echo "weft: these packages are missing, and this is neither root nor is there sudo; as root:" >&2
        echo "  apt-get install --no-install-recommends$missing" >&2
        exit 1
    fi
    sudo=sudo
fi
echo "weft: these packages are missing:$missing"
$sudo apt-get update -qq
# What comes with them, and how much it is: "After this operation, 1,024 MB of additional disk space will be used."
# shellcheck disable=SC2086
LC_ALL=C apt-get install --assume-no --no-install-recommends $missing 2>/dev/null |
    sed -n 's/^\(Need to get\|After this operation,\|[0-9]* upgraded,\)/weft: &/p' || true
# A dot for every eighth package, since they take a while.
# shellcheck disable=SC2086
{ $sudo env LC_ALL=C DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends $missing 2>&1 ||
    echo "E: apt-get failed"; } |
    awk '/^E: / { print; failed = 1 } /^(Unpacking|Setting up) / && ++n % 8 == 0 { printf "."; fflush() }
         END { if (n >= 8) print ""; exit failed }'
# Of these packages only the programs are wanted: the daemons that came along just now do not stay.
for daemon in prometheus munge slurm-wlm:slurmctld slurm-wlm:slurmd openssh-server:ssh; do
    case " $missing " in
    *" ${daemon%:*} "*) [ ! -d /run/systemd/system ] || $sudo systemctl -q disable --now "${daemon#*:}" ;;
    esac
done
