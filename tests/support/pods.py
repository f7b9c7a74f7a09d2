# SPDX-License-Identifier: Apache-2.0
"""A rendered Indexed Job, run: what kubelet and the Job controller make of it, in namespaces of this machine's.

A pod is the container's command as process 1 of namespaces of its own: an address on a bridge, a read-only root without
/etc/passwd, the manifest's mounts, environment, user and group, no capability; ConfigMaps and Secrets are links, as
kubelet makes them. It ends by SIGTERM and, after the manifest's grace, SIGKILL. What its exit code does is the
manifest's podFailurePolicy. Not here: seccomp, limits of memory and cores, images, a scheduler. Needs root."""
import os
import pathlib
import shutil
import signal
import subprocess
import time

import netns
import runs

BRIDGE = "10.231.8"
ROOT = """
set -e
mount --make-rprivate /
mount -t tmpfs -o mode=755 root "$R"
mkdir "$R/proc" "$R/dev" "$R/etc" "$R/build"
for d in usr bin sbin lib lib64; do
    if [ -L /$d ]; then cp -P /$d "$R/$d"; elif [ -d /$d ]; then mkdir "$R/$d"; mount --bind -o ro /$d "$R/$d"; fi
done
mount --bind "$BUILD" "$R/build"; mount -o remount,bind,ro "$R/build"
mount -t proc proc "$R/proc"
for d in null zero full random urandom; do touch "$R/dev/$d"; mount --bind /dev/$d "$R/dev/$d"; done
cp "$POD/hosts" "$R/etc/hosts"; mount --bind "$POD/hosts" "$R/etc/hosts"
echo 0123456789abcdef0123456789abcdef >"$R/etc/machine-id"
while read -r mode from to; do
    mkdir -p "$R$to"; mount --bind "$from" "$R$to"
    [ $mode = rw ] || mount -o remount,bind,ro "$R$to"
done <"$POD/mounts"
mount -o remount,ro "$R"
hostname "$NAME"
ip link set lo up
echo made
read -r go
exec chroot "$R" setpriv --reuid "$U" --regid "$G" --groups "$G" --no-new-privs --inh-caps=-all --bounding-set=-all \\
    env -i - "$@"
"""


def link_files(folder, files, group, mode):
    """A volume of files as kubelet makes it: job.yaml → ..data/job.yaml, ..data → ..2026."""
    real = folder / "..2026"
    real.mkdir(parents=True)
    for name, text in files.items():
        (real / name).write_text(text)
        os.chown(real / name, 0, group)
        (real / name).chmod(mode)
        (folder / name).symlink_to(f"..data/{name}")
    (folder / "..data").symlink_to("..2026")


class Pod:
    def __init__(self, job, index, number):
        self.job, self.index, self.number, self.disrupted, self.killed = job, index, number, False, False
        self.spec = job.spec["template"]["spec"]
        (self.container,) = self.spec["containers"]
        self.hostname = f"{job.name}-{index}"
        self.folder = job.place / f"pod-{number}"
        (self.folder / "root").mkdir(parents=True)
        self.hosts = self.folder / "hosts"
        job.write_hosts(self)
        group = self.spec["securityContext"]["fsGroup"]
        (self.folder / "mounts").write_text("".join(
            f"{'ro' if m.get('readOnly') else 'rw'} {self.make_volume(m['name'], group)} {m['mountPath']}\n"
            for m in self.container["volumeMounts"]))
        self.process = self.start()

    def make_volume(self, name, group):
        (volume,) = [v for v in self.spec["volumes"] if v["name"] == name]
        path = self.folder / name
        if "persistentVolumeClaim" in volume:
            return self.job.claim
        if "configMap" in volume:
            link_files(path, self.job.files, group, 0o644)
        elif "secret" in volume:
            link_files(path, self.job.secret, group, volume["secret"]["defaultMode"])
        else:
            path.mkdir()
            os.chown(path, 0, group)
            path.chmod(0o2777)
        return path

    def start(self):
        context, c = self.spec["securityContext"], self.container
        assert c["securityContext"]["readOnlyRootFilesystem"] and c["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        environment = {"PATH": "/build:/usr/bin:/bin", "HOSTNAME": self.hostname, "JOB_COMPLETION_INDEX": str(self.index)}
        environment |= {e["name"]: e["value"] for e in c["env"]}
        p = subprocess.Popen(
            ["unshare", "--net", "--mount", "--pid", "--uts", "--ipc", "--fork", "--kill-child", "sh", "-c", ROOT, "pod",
             *[f"{k}={v}" for k, v in environment.items()], *c["command"]],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=open(self.folder / "log", "w"), text=True,
            env={"PATH": os.environ["PATH"], "R": str(self.folder / "root"), "POD": str(self.folder), "BUILD": str(runs.BUILD),
                 "NAME": self.hostname, "U": str(context["runAsUser"]), "G": str(context["runAsGroup"])})
        try:
            if p.stdout.readline() != "made\n":
                raise netns.Unavailable(self.log())
            self.job.plug_in(p.pid, self.index)
            p.stdin.write("\n")
            p.stdin.flush()
            while p.poll() is None and not self.catches_term(p):
                time.sleep(0.01)  # before that the kernel drops the signal: it is process 1
        except (netns.Unavailable, OSError):
            p.kill()
            raise
        return p

    def log(self):
        return (self.folder / "log").read_text()

    @staticmethod
    def first_process(process):
        """The container's process 1; None once it has ended."""
        try:
            (child,) = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            return int(child)
        except (OSError, ValueError):
            return None

    def catches_term(self, process):
        try:
            status = pathlib.Path(f"/proc/{self.first_process(process)}/status").read_text()
        except OSError:
            return False
        return bool(int(status.split("SigCgt:")[1].split()[0], 16) >> (signal.SIGTERM - 1) & 1)

    def signal(self, number):
        """To the container's process 1, as kubelet does."""
        child = self.first_process(self.process)
        if child:
            os.kill(child, number)
        self.killed |= number == signal.SIGKILL

    def run_inside(self, command):
        """The exit code of a probe's command, by the container's user."""
        child = self.first_process(self.process)
        context = self.spec["securityContext"]
        return subprocess.run(["nsenter", "-t", str(child), "-m", "-p", "-n", "-u", "-i", "-r", "setpriv", "--reuid",
                               str(context["runAsUser"]), "--regid", str(context["runAsGroup"]), "--clear-groups", *command],
                              capture_output=True, timeout=runs.WATCHDOG, check=False).returncode

    def code(self):
        """Its exit code; None while it runs."""
        code = self.process.poll()
        if code == 1 and self.killed:  # unshare's word for it
            return 128 + signal.SIGKILL
        return code if code is None or code >= 0 else 128 - code

    def end(self):
        """As kubelet deletes it."""
        self.signal(signal.SIGTERM)
        try:
            self.process.wait(self.spec["terminationGracePeriodSeconds"])
        except subprocess.TimeoutExpired:
            self.signal(signal.SIGKILL)
            self.process.wait(runs.WATCHDOG)


class Job:
    """`documents`: of `weft render --for job`. `claim` is the folder that stands for the claim."""

    def __init__(self, place, documents, claim, secret=None):
        self.place, self.claim, self.secret = place, claim, secret or {}
        self.files = documents["ConfigMap"]["data"]
        self.spec, self.name = documents["Job"]["spec"], documents["Job"]["metadata"]["name"]
        self.subdomain = self.spec["template"]["spec"]["subdomain"]
        assert documents["Service"]["metadata"]["name"] == self.subdomain
        self.codes, self.failures, self.started = [], 0, 0
        self.pods, self.done, self.failed = {}, set(), None
        group = self.spec["template"]["spec"]["securityContext"]["fsGroup"]
        os.chown(claim, 0, group)
        claim.chmod(0o2775)
        self.bridge, self.bridge_pid = netns.hold("unshare", "-n")
        self.enter = ["nsenter", "-t", str(self.bridge_pid), "-n", "--"]
        netns.sh(*self.enter, "ip", "link", "add", "br0", "type", "bridge")
        netns.sh(*self.enter, "ip", "link", "set", "br0", "up")

    def address(self, index):
        return f"{BRIDGE}.{10 + index}"

    def write_hosts(self, pod):
        """The headless Service's names, there before a pod is ready, and a pod's own."""
        names = [f"{self.address(i)} {self.name}-{i}.{self.subdomain} {self.name if i == pod.index else 'other'}-{i}"
                 for i in range(self.spec["completions"])]
        pod.hosts.write_text("127.0.0.1 localhost\n" + "\n".join(names) + "\n")

    def plug_in(self, pid, index):
        cable, enter = f"v{self.started}", ["nsenter", "-t", str(pid), "-n", "--"]
        netns.sh("ip", "link", "add", cable, "netns", str(self.bridge_pid), "type", "veth", "peer", "name", "eth0", "netns", str(pid))
        netns.sh(*self.enter, "ip", "link", "set", cable, "master", "br0", "up")
        netns.sh(*enter, "ip", "addr", "add", f"{self.address(index)}/24", "dev", "eth0")
        netns.sh(*enter, "ip", "link", "set", "eth0", "up")

    def cut(self, pod):
        """Its cable: nothing reaches it any more."""
        netns.sh(*self.enter, "ip", "link", "set", f"v{pod.number}", "down")

    def start(self):
        for index in range(self.spec["completions"]):
            if index not in self.done:
                self.start_pod(index)

    def start_pod(self, index):
        self.started += 1
        self.pods[index] = Pod(self, index, self.started)

    def judge(self, pod, code):
        """The action of the first rule that matches."""
        for rule in self.spec["podFailurePolicy"]["rules"]:
            codes = rule.get("onExitCodes")
            if (codes and codes["containerName"] == pod.container["name"] and code in codes["values"]) or \
               ("onPodConditions" in rule and pod.disrupted):
                return rule["action"]
        return "Count"

    def step(self):
        """What the controller does about pods that have ended. True while the job runs."""
        for index, pod in list(self.pods.items()):
            code = pod.code()
            if code is None:
                continue
            del self.pods[index]
            self.codes.append((index, code))
            action = self.judge(pod, code) if code else "Done"
            self.failures += action == "Count"
            if action == "Done":
                self.done.add(index)
            elif action == "FailJob" or self.failures > self.spec["backoffLimit"]:
                self.failed = pod
                self.suspend()
                break
            else:
                self.start_pod(index)
        return self.failed is None and len(self.done) < self.spec["completions"]

    def run(self, until=lambda: False):
        """To its end, or until that is so."""
        end = time.monotonic() + runs.WATCHDOG
        while self.step() and not until():
            assert time.monotonic() < end, self.logs()
            time.sleep(0.05)
        return self.failed is None

    def suspend(self):
        """Every pod is deleted; resume() starts new ones."""
        pods = list(self.pods.values())
        for pod in pods:
            if pod.code() is None:
                pod.signal(signal.SIGTERM)
        for pod in pods:
            pod.end() if pod.code() is None else None
        self.codes += [(p.index, p.code()) for p in pods]
        self.pods = {}

    resume = start

    def evict(self, index):
        self.pods[index].disrupted = True
        self.pods[index].end()

    def lose(self, index):
        """The node goes: nothing is asked."""
        self.pods[index].disrupted = True
        self.pods[index].signal(signal.SIGKILL)
        self.pods[index].process.wait(runs.WATCHDOG)

    def logs(self):
        return "\n".join(f"--- {f}\n{f.read_text()[-3000:]}" for f in sorted(self.place.glob("pod-*/log")))

    def close(self):
        for pod in self.pods.values():
            if pod.code() is None:
                pod.signal(signal.SIGKILL)
            pod.process.wait()
        self.bridge.stdin.close()
        self.bridge.wait()
        for folder in self.place.glob("pod-*"):
            shutil.rmtree(folder, ignore_errors=True)
