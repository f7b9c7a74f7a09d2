# SPDX-License-Identifier: Apache-2.0
"""weft render: what a cluster is asked for follows from the plan, what a user wrote arrives as it is, and what cannot
run is refused. The texts are read by others: PyYAML, sh, systemd-analyze. tests/parity/manifests.py holds the
manifests against the schemas of Kubernetes, JobSet and Kubeflow."""
import json
import math
import os
import pathlib
import re
import shutil
import subprocess
import time
import warnings

import pytest
import runs
import yaml

PODS = ["job", "jobset", "trainjob"]
ALL = [*PODS, "slurm", "systemd"]
JOB = (
    "name: NAME\n"
    "model: {program: gpt2, layers: 4, embed: 128, heads: 4, seq: 64, vocab: 512}\n"
    "mesh: {data: 4, model: 2}\n"
    "data: {format: tokens, train: {tokens: tokens/train-*.bin}, eval: {tokens: /weft/eval.bin}, batch: 32}\n"
    "train: {steps: 10}\n"
    "checkpoint: {every: 5}\n"
    "restart: {budget: 3}\n"
)
HOSTILE = "it's $HOME \"%n\" $(touch x) `id` \\ -\n#SBATCH --nodes=9\nExecStart=x"


def write(folder, name="j", file="job.yaml"):
    folder.mkdir(exist_ok=True)
    (folder / file).write_text(JOB.replace("NAME", f'"{name}"'))
    return str(folder / file)


@pytest.fixture
def job(tmp_path):
    return write(tmp_path / "at")


def render(kind, job, *args):
    end = runs.weft("render", "--for", kind, job, *args)
    assert end.code == 0 and not end.err, end
    return end.out


def said(job, *args):
    return json.loads(render("job", job, "--json", *args))


def documents(kind, job, *args):
    return {d["kind"]: d for d in yaml.safe_load_all(render(kind, job, *args))}


def job_spec(kind, docs):
    """The spec of the batch/v1 Job in whichever wraps it."""
    if kind == "job":
        return docs["Job"]["spec"]
    sets = docs["JobSet"]["spec"] if kind == "jobset" else docs["TrainingRuntime"]["spec"]["template"]["spec"]
    (only,) = sets["replicatedJobs"]
    assert only["name"] == "node" and only["replicas"] == 1 and sets["failurePolicy"] == {"maxRestarts": 0}
    return only["template"]["spec"]


def pod_spec(kind, docs):
    return job_spec(kind, docs)["template"]["spec"]


# ---- what follows from the plan ------------------------------------------------------------------


@pytest.mark.parametrize("mesh, per_node, nodes, each, text", [
    ("{data: 4, model: 2}", None, 1, 8, "data,model within a node"),
    ("{data: 4, model: 2}", 4, 2, 4, "model within a node, data across nodes"),
    ("{data: 4, model: 2}", 3, 4, 2, "model within a node, data across nodes"),
    ("{data: 2, model: 4}", 2, 4, 2, "data,model across nodes"),
    ("{data: 16}", None, 2, 8, "data across nodes"),
])
def test_nodes_take_equal_shares_and_the_mesh_s_inner_axes_stay_within_one(job, mesh, per_node, nodes, each, text):
    out = said(job, "-s", f"mesh={mesh}", *(["--per-node", str(per_node)] if per_node else []))
    facts = {f["name"]: f["text"] for f in out["facts"]}
    assert (out["nodes"], out["devices_per_node"]) == (nodes, each)
    assert facts["mesh"].split(":")[0] == text


def test_a_node_s_memory_is_that_of_its_ranks_in_the_plan(job):
    plan = json.loads(runs.weft("plan", job, "--json").out)["memory"]
    ranks = 4 * (plan["arena"] + plan["libraries"] + plan["staging"])
    out = said(job, "--per-node", "4")
    assert 1.1 * ranks + (80 << 20) - 1 <= out["memory_bytes"] <= 1.1 * ranks + (81 << 20) + 1
    assert f"--mem={out['memory_bytes'] >> 20}M" in render("slurm", job, "--per-node", "4")


def test_a_stage_s_node_is_as_large_as_the_largest(job):
    """One stage on each node: the first has the embedding, the last the head, and the two most memory in it is asked."""
    args = ["-s", "mesh={pp: 2}", "-s", "train.microbatches=4", "-s", "model.vocab=20000"]
    plan = json.loads(runs.weft("plan", job, "--json", *args).out)
    most = max(m["arena"] + m["libraries"] + m["staging"] for m in plan["memory_by_stage"])
    assert abs(said(job, "--per-node", "1", *args)["memory_bytes"] - 1.1 * most - (80 << 20)) <= (1 << 20) + 1


def test_a_gpu_s_arena_is_no_memory_of_the_node_and_its_pod_gets_the_gpus(job):
    args = ["-s", "resources.kind=cuda", "--per-node", "4"]
    plan = json.loads(runs.weft("plan", job, "--json", "-s", "resources.kind=cuda").out)["memory"]
    ranks = 4 * (plan["libraries"] + plan["staging"])
    assert abs(said(job, *args)["memory_bytes"] - 1.1 * ranks - (80 << 20)) <= (1 << 20) + 1
    for kind in PODS:
        (container,) = pod_spec(kind, documents(kind, job, *args))["containers"]
        assert container["resources"]["limits"]["nvidia.com/gpu"] == "4"
    assert "#SBATCH --gpus-per-node=4\n" in render("slurm", job, *args)
    assert "--gpus-per-node" not in render("slurm", job) and "PrivateDevices" not in render("systemd", job, "-s", "resources.kind=cuda")


def test_the_grace_is_the_state_through_the_storage_twice_where_a_save_may_be_under_way(job):
    plan = json.loads(runs.weft("plan", job, "--json").out)
    state = 3 * 4 * sum(math.prod(p["shape"]) for p in plan["params"])  # parameters and AdamW's two moments, once each
    out = said(job, "--write-rate", "10KB")
    assert out["checkpoint_bytes"] == pytest.approx(state, rel=0.01)
    assert out["grace_s"] - 10 < 2 * out["checkpoint_bytes"] / 10_000 + 30 <= out["grace_s"] == out["stop_s"] - 30
    once = said(job, "--write-rate", "10KB", "-s", "checkpoint.every=0")
    assert once["grace_s"] - 10 < once["checkpoint_bytes"] / 10_000 + 30 <= once["grace_s"]
    for kind in PODS:
        spec = pod_spec(kind, documents(kind, job, "--write-rate", "10KB"))
        assert spec["terminationGracePeriodSeconds"] == out["stop_s"]
        assert f"{out['grace_s']}s" in spec["containers"][0]["command"]
    assert f"TimeoutStopSec={out['stop_s']}\n" in render("systemd", job, "--write-rate", "10KB")
    assert f"--signal=TERM@{out['stop_s']}\n" in render("slurm", job, "--write-rate", "10KB")
    assert "assumed; --write-rate" in render("slurm", job)


def test_threads_are_cores_and_open_ones_are_said_to_be_assumed(job):
    facts = {f["name"]: f["text"] for f in said(job)["facts"]}
    assert "assumed; resources.threads says another" in facts["cores"]
    assert said(job, "-s", "resources.threads=3", "--per-node", "2")["cores_per_node"] == 6
    assert "#SBATCH --cpus-per-task=6\n" in render("slurm", job, "-s", "resources.threads=3", "--per-node", "2")
    assert "CPUQuota=2400%\n" in render("systemd", job, "-s", "resources.threads=3")


@pytest.mark.parametrize("kind", PODS)
def test_the_job_in_the_config_map_is_the_same_training_with_paths_beneath_the_claim(job, kind, tmp_path):
    docs = documents(kind, job, "--claim", "disk:/weft")
    text = docs["ConfigMap"]["data"]["job.yaml"]
    (tmp_path / "again.yaml").write_text(text)
    one, two = (json.loads(runs.weft("plan", str(j), "--json").out)["hash"] for j in (job, tmp_path / "again.yaml"))
    assert one == two
    there = yaml.safe_load(text)
    assert there["data"]["train"]["tokens"] == "/weft/tokens/train-*.bin"
    assert there["data"]["eval"]["tokens"] == "/weft/eval.bin" and there["checkpoint"]["dir"] == "/weft/ckpt"
    assert there["data"]["tokenizer"] == "ids"
    mounts = {m["name"]: m["mountPath"] for m in pod_spec(kind, docs)["containers"][0]["volumeMounts"]}
    assert mounts["claim"] == "/weft" and mounts["job"] == "/etc/weft"


@pytest.mark.parametrize("kind", ALL)
def test_the_same_job_is_the_same_text(job, kind):
    assert render(kind, job) == render(kind, job)


# ---- Kubernetes ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", PODS)
def test_exit_codes_end_the_job_or_count_or_do_not(job, kind):
    spec = job_spec(kind, documents(kind, job, "--per-node", "4"))
    name = spec["template"]["spec"]["containers"][0]["name"]
    assert name == ("node" if kind == "trainjob" else "weft")
    rules = spec["podFailurePolicy"]["rules"]
    assert [r["action"] for r in rules] == ["FailJob", "Ignore", "Ignore"]
    assert rules[0]["onExitCodes"] == {"containerName": name, "operator": "In", "values": [2, 65, 66, 76, 78]}
    assert rules[1]["onExitCodes"] == {"containerName": name, "operator": "In", "values": [75]}
    assert rules[2]["onPodConditions"] == [{"type": "DisruptionTarget", "status": "True"}]
    assert spec["backoffLimit"] == 3 and spec["template"]["spec"]["restartPolicy"] == "Never"
    assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", 2, 2)


@pytest.mark.parametrize("kind", PODS)
def test_a_pod_has_no_rights_and_writes_nothing_but_its_claim_and_scratch(job, kind):
    spec = pod_spec(kind, documents(kind, job, "--user", "4711"))
    (container,) = spec["containers"]
    assert spec["securityContext"]["runAsNonRoot"] is True and spec["securityContext"]["runAsUser"] == 4711
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert spec["automountServiceAccountToken"] is False and spec["enableServiceLinks"] is False
    assert container["securityContext"] == {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True,
                                            "capabilities": {"drop": ["ALL"]}}
    writable = {m["mountPath"] for m in container["volumeMounts"] if not m.get("readOnly")}
    assert writable == {"/weft", "/tmp", "/dev/shm"}


def test_the_leader_has_a_name_before_it_is_ready(job):
    docs = documents("job", job, "--per-node", "4")
    service = docs["Service"]["spec"]
    assert service["clusterIP"] == "None" and service["publishNotReadyAddresses"] is True
    pod = docs["Job"]["spec"]["template"]
    assert service["selector"].items() <= pod["metadata"]["labels"].items()
    env = {e["name"]: e.get("value") for e in pod["spec"]["containers"][0]["env"]}
    assert env["MASTER_ADDR"] == f"{docs['Job']['metadata']['name']}-0.{pod['spec']['subdomain']}"
    assert pod["spec"]["subdomain"] == docs["Service"]["metadata"]["name"] and env["WORLD_SIZE"] == "2"
    sets = documents("jobset", job, "--per-node", "4")
    assert "Service" not in sets and sets["JobSet"]["spec"]["network"]["publishNotReadyAddresses"] is True
    env = {e["name"]: e.get("value") for e in pod_spec("jobset", sets)["containers"][0]["env"]}
    assert env["MASTER_ADDR"] == "j-node-0-0.j"


@pytest.mark.parametrize("kind, holder", [("job", "Job"), ("jobset", "JobSet"), ("trainjob", "TrainJob")])
def test_kueue_admits_what_has_a_queue(job, kind, holder):
    docs = documents(kind, job, "--queue", "on")
    queued = [k for k, d in docs.items() if "kueue.x-k8s.io/queue-name" in d["metadata"]["labels"]]
    assert queued == [holder] and docs[holder]["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "on"
    assert docs[holder]["spec"]["suspend"] is True
    assert "suspend" not in documents(kind, job)[holder]["spec"]


def test_a_train_job_names_its_runtime_and_reports_to_kubeflow(job):
    docs = documents("trainjob", job, "--per-node", "2")
    assert docs["TrainJob"]["spec"]["runtimeRef"]["name"] == docs["TrainingRuntime"]["metadata"]["name"]
    assert docs["TrainJob"]["spec"]["trainer"]["numNodes"] == docs["TrainingRuntime"]["spec"]["mlPolicy"]["numNodes"] == 4
    assert yaml.safe_load(docs["ConfigMap"]["data"]["job.yaml"])["metrics"]["sinks"] == ["kubeflow"]
    command = pod_spec("trainjob", docs)["containers"][0]["command"]
    assert command[command.index("--sink") + 1].startswith("kubeflow=/")


@pytest.mark.parametrize("name", ["on", "null", "1e3", "0", "a.b_c", "a-b_c", "trailing-", "x" * 63, "y" * 45, "9.9"])
def test_any_job_name_becomes_a_label_and_stays_a_text(tmp_path, name):
    docs = documents("trainjob", write(tmp_path / "at", name))
    names = {d["metadata"]["name"] for d in docs.values()}
    (one,) = names
    assert isinstance(one, str) and re.fullmatch(r"[a-z]([a-z0-9-]*[a-z0-9])?", one) and len(one) <= 45
    assert one == name or re.search(r"-[0-9a-f]{6}$", one)
    assert re.search(r'^name: "?%s"?$' % re.escape(name), docs["ConfigMap"]["data"]["job.yaml"], re.M)


def test_names_that_a_label_would_make_equal_stay_apart(tmp_path):
    names = ["a.b", "a_b", "a-b", "a.b-", "x" * 60, "x" * 61]
    assert len({documents("job", write(tmp_path / "at", n))["Job"]["metadata"]["name"] for n in names}) == len(names)


def test_words_of_the_command_line_stay_texts(job):
    args = ["--claim", "true:/a b'\"x #y\\é", "--secret", "123", "--queue", "1e3", "--image", "host:5000/weft@sha256:ab"]
    docs = documents("job", job, *args, "-s", "data.eval.tokens=eval/x")
    spec = docs["Job"]["spec"]["template"]["spec"]
    volumes = {v["name"]: v for v in spec["volumes"]}
    assert volumes["claim"]["persistentVolumeClaim"]["claimName"] == "true"
    assert volumes["secret"]["secret"] == {"secretName": "123", "defaultMode": 0o440}
    assert docs["Job"]["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "1e3"
    (container,) = spec["containers"]
    assert container["image"] == "host:5000/weft@sha256:ab"
    assert {m["mountPath"] for m in container["volumeMounts"]} >= {"/a b'\"x #y\\é"}
    there = yaml.safe_load(docs["ConfigMap"]["data"]["job.yaml"])
    assert there["data"]["train"]["tokens"] == "/a b'\"x #y\\é/tokens/train-*.bin"


# ---- Slurm ---------------------------------------------------------------------------------------


def run_script(tmp_path, text, code=0, **environment):
    """The script under sh, with a Slurm that writes down what it is asked: (its end, srun's words, scontrol's)."""
    tools = tmp_path / "tools"
    tools.mkdir(exist_ok=True)
    for tool, end in (("srun", code), ("scontrol", 0)):
        (tools / tool).write_text(f'#!/bin/sh\nprintf "%s\\0" "$@" >"{tools}/{tool}.words"\nexit {end}\n')
        (tools / tool).chmod(0o755)
        (tools / f"{tool}.words").unlink(missing_ok=True)
    end = subprocess.run(["sh", "-s"], input=text, text=True, cwd=tmp_path, capture_output=True, check=False,
                         env={"PATH": f"{tools}:/usr/bin:/bin", "SLURM_JOB_ID": "7", **environment})
    words = [(tools / f"{t}.words").read_text().split("\0")[:-1] if (tools / f"{t}.words").exists() else None
             for t in ("srun", "scontrol")]
    return end.returncode, *words


def options(script):
    return re.findall(r"^#SBATCH (.*)$", script.split("\nsrun ")[0], re.M)


def test_the_script_starts_weft_once_a_node(job, tmp_path):
    script = render("slurm", job, "--per-node", "2", "--queue", "gpu")
    assert script.startswith("#!/bin/sh\n")
    assert {"--nodes=4", "--ntasks-per-node=1", "--partition=gpu", "--requeue", "--job-name=j"} <= set(options(script))
    code, srun, scontrol = run_script(tmp_path, script)
    grace = said(job)["grace_s"]
    assert (code, scontrol) == (0, None)
    assert srun == ["--ntasks-per-node=1", "--cpus-per-task=8", "--kill-on-bad-exit=0", f"--wait={grace + 30}", "weft", "run", "--grace",
                    f"{grace}s", "--", job]


@pytest.mark.parametrize("codes, again", [
    ([0], False), ([2], False), ([65], False), ([66], False), ([76], False), ([78], False),
    ([75] * 6, True), ([70] * 3, True), ([70] * 4, False), ([75] * 9 + [137, 70, 75, 1], True), ([1, 70, 75, 1, 137], False)])
def test_the_script_queues_again_what_may_end_otherwise(job, tmp_path, codes, again):
    """The job's restart.budget is 3; 75 does not count."""
    script = render("slurm", job)
    for start, code in enumerate(codes):
        end, _, scontrol = run_script(tmp_path, script, code, SLURM_RESTART_COUNT=str(start))
        assert end == code and scontrol == (["requeue", "7"] if again or start + 1 < len(codes) else None)
    assert run_script(tmp_path, script)[0] == 0 and not list(tmp_path.glob("*.failures"))


@pytest.mark.parametrize("said, environment, code", [
    ("slurm 7.0 start 0\nended 75 x\n", {}, 75), ("slurm 7.12 start 0\nended 65 x\n", {}, 65), ("slurm 7.0 start 0\nended 0 x\n", {}, 0),
    ("slurm 7.0 start 2\nended 78 x\n", {"SLURM_RESTART_COUNT": "2"}, 78), ("slurm 7.0 start 0\nended 75 x\n", {"SLURM_ARRAY_TASK_ID": "3"}, 75),
    ("slurm 7.0 start 1\nended 75 x\n", {}, 137), ("slurm 17.0 start 0\nended 75 x\n", {}, 137), ("slurm 7.0 start 0\n", {}, 137), ("", {}, 137),
    ("slurm 7.0 start 0\nended 75; x\n", {}, 137), ("another's", {}, 137), ("fifo", {}, 137)])  # fmt: skip
def test_the_leader_s_code_decides_where_another_node_ends_with_a_higher_one(tmp_path, said, environment, code):
    """Where it lived to write it, of this very start and into a file of this user's."""
    job = write(tmp_path / "it's $(x)")
    folder = tmp_path / "it's $(x)/ckpt/.weft"
    folder.mkdir(parents=True)
    file = folder / ("j-3.leader" if environment.get("SLURM_ARRAY_TASK_ID") else "j.leader")
    if said == "fifo":
        os.mkfifo(file)
    else:
        file.write_text("weft leader 1\nallocation " + said.replace("another's", "slurm 7.0 start 0\nended 75 x\n"))
    if said == "another's":
        if os.geteuid():
            pytest.skip("SKIP: only root makes a file of another user's")
        os.chown(file, 65534, 65534)
    end, _, scontrol = run_script(tmp_path, render("slurm", job), 137, **environment)
    assert (end, scontrol) == (code, None if code in (0, 65, 78) else ["requeue", "7"])


def test_the_script_passes_any_path_and_setting_on(tmp_path):
    job = write(tmp_path / HOSTILE, file=f"{HOSTILE.replace('/', '')}.yaml")
    script = render("slurm", job, "-s", 'tags=[a, "b"]')
    _, srun, _ = run_script(tmp_path, script)
    assert srun[-4:] == ["-s", 'tags=[a, "b"]', "--", job]
    assert "--nodes=9" not in options(script) and not (tmp_path / "x").exists()


# ---- systemd -------------------------------------------------------------------------------------


def unquote(word):
    """systemd's own reading of an argument in double quotes."""
    text = re.sub(r"\\(.)", lambda m: {"n": "\n"}.get(m[1], m[1]), word[1:-1])
    return text.replace("%%", "%").replace("$$", "$")


def verify(unit, text):
    if not shutil.which("systemd-analyze"):
        warnings.warn("SKIPPED: no systemd-analyze")
        pytest.skip("no systemd-analyze")
    unit.write_text(text.replace("ExecStart=weft ", "ExecStart=/bin/true ").replace("User=weft\n", "User=root\n"))
    end = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False)
    assert (end.returncode, end.stdout, end.stderr) == (0, "", "")


def test_systemd_has_nothing_to_say_about_the_unit(job, tmp_path):
    text = render("systemd", job, "--user", "weft", "-s", 'checkpoint.dir="/srv/%n $HOME"')
    verify(tmp_path / "weft-j.service", text)
    assert "RestartForceExitStatus=75\nRestartPreventExitStatus=2 65 66 76 78\n" in text
    assert "StartLimitIntervalSec=3600\nStartLimitBurst=4\n" in text


def test_the_unit_passes_any_path_on(tmp_path):
    file = HOSTILE + ".yaml"
    job = write(tmp_path / "a %h 'b' $x", file=file)
    text = render("systemd", job)
    verify(tmp_path / "weft-j.service", text)
    (start,) = re.findall(r"^ExecStart=weft run --grace \d+s -- (.*)$", text, re.M)
    assert unquote(start) == job
    (folder,) = re.findall(r"^ReadWritePaths=(.*)$", text, re.M)
    assert folder == f"\"{tmp_path}/a %%h 'b' $x\""


def test_a_folder_of_checkpoints_elsewhere_may_be_written_too(job):
    text = render("systemd", job, "-s", "checkpoint.dir=/srv/ckpt")
    assert re.findall(r"^ReadWritePaths=(.*)$", text, re.M) == [f'"{os.path.dirname(job)}"', '"/srv/ckpt"']


# ---- sinks and receivers -------------------------------------------------------------------------


GIVEN = ["--sink", "mine=/opt/a b --to \"$HOME\" it's $(x) %n \\ é", "--notify", "ops=@/etc/weft/$USER's url"]
NAMED = ["-s", "metrics.sinks=[tensorboard, mine]", "-s", "notify=[ops]"]


@pytest.mark.parametrize("kind", ALL)
def test_the_command_says_what_the_job_s_sinks_and_receivers_are(job, kind, tmp_path):
    if kind == "slurm":
        _, words, _ = run_script(tmp_path, render(kind, job, *NAMED, *GIVEN))
    elif kind == "systemd":
        text = render(kind, job, *NAMED, *GIVEN)
        verify(tmp_path / "weft-j.service", text)
        (start,) = re.findall(r"^ExecStart=(.*)$", text, re.M)
        words = [unquote(w) if w[0] == '"' else w for w in re.findall(r'"(?:\\.|[^"\\])*"|\S+', start)]
    else:
        command = pod_spec(kind, documents(kind, job, *NAMED, *GIVEN))["containers"][0]["command"]
        words = [w.replace("$$", "$") for w in command]  # as the kubelet does
        assert words != command
    at = words.index("--sink")
    assert words[at:at + 4] == GIVEN


# ---- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind, args, words", [
    ("job", ["--device", "cpu:memory=20MB"], "a device needs"),
    ("job", ["-s", "mesh={data: 3, model: 2}"], "does not divide|not a multiple|multiple of"),
    ("job", ["-s", "mesh={data: 2048}", "-s", "data.batch=2048"], "1024|1,024"),
    ("job", ["--per-node", "3", "-s", "resources.hosts=2"], "take 4 nodes, and resources.hosts is 2"),
    ("systemd", ["--per-node", "3"], "it takes 4 nodes, and a unit is for one machine"),
    ("job", ["-s", "data.train.tokens=/etc/x"], "data.train.tokens is /etc/x, and pods have no files but"),
    ("job", ["-s", "checkpoint.dir=../x"], "checkpoint.dir is ../x, and pods have no files but"),
    ("job", ["-s", "data.tokenizer=/x/t.json"], "data.tokenizer is /x/t.json|cannot open|No such file"),
    ("job", ["-s", "checkpoint.from=base"], "checkpoint.from is base, the name of a job"),
    ("job", ["--user", "root"], "--user takes the number of a user"),
    ("job", ["--user", "0"], "--user takes the number of a user"),
    ("job", ["--user", "010"], "--user takes the number of a user"),
    ("job", ["--claim", "a:/b/../c"], "--claim takes NAME:/PATH"),
    ("job", ["--claim", "a:b"], "--claim takes NAME:/PATH"),
    ("job", ["--claim", "a\nb"], "--claim takes NAME:/PATH"),
    ("job", ["--image", "a\nb"], "--image takes"),
    ("job", ["--queue", "a b"], "--queue takes"),
    ("job", ["--write-rate", "fast"], "--write-rate is a number of bytes"),
    ("slurm", ["--image", "weft"], "--image does nothing"),
    ("systemd", ["--queue", "q"], "--queue does nothing"),
    ("systemd", ["--user", "a b"], "--user takes"),
    ("slurm", ["--write-rate", "100"], "Slurm's --signal comes at most 65535 s .* --write-rate"),
    ("slurm", ["-s", "notify=[ops]"], "notify: nobody said what ops is: give --notify ops=@/PATH"),
    ("job", ["-s", "metrics.sinks=[tensorboard, mine]", "--sink", "min=/x"],
     "metrics.sinks: nobody said what mine is: give --sink mine=COMMAND"),
    ("job", ["-s", "metrics.sinks=[kubeflow]"], "nobody said what kubeflow is"),
    ("trainjob", ["--sink", "kubeflow=/x"], "has its own sink kubeflow"),
    ("systemd", ["-s", "notify=[ops]", "--notify", "ops=https://h/secret"], "--notify takes NAME=@/PATH"),
    ("systemd", ["-s", "notify=[ops]", "--notify", "ops=@beside"], "--notify takes NAME=@/PATH"),
    ("job", ["--sink", "a=/x\x1b"], "--sink has control characters"),
    ("pod", [], "--for takes slurm, job, jobset, trainjob or systemd"),
])
def test_what_cannot_run_or_be_said_is_refused(job, kind, args, words):
    end = runs.weft("render", "--for", kind, job, *args)
    assert end.code == 2 and not end.out and re.search(words, end.err), end


def test_a_checkpoint_to_begin_with_is_found_beneath_the_claim(job):
    there = yaml.safe_load(documents("job", job, "-s", "checkpoint.from=./base@20")["ConfigMap"]["data"]["job.yaml"])
    assert there["checkpoint"]["from"] == "/weft/base@20"


def test_a_folder_that_a_unit_cannot_name_is_refused(tmp_path):
    end = runs.weft("render", "--for", "systemd", write(tmp_path / "a'b\"c"))
    assert end.code == 2 and "a unit cannot name the folder" in end.err, end


def test_a_file_that_is_not_there_is_named(tmp_path):
    end = runs.weft("render", "--for", "job", str(tmp_path / "none.yaml"))
    assert end.code == 2 and "none.yaml: No such file or directory" in end.err, end


# ---- what a node needs, against what it takes ----------------------------------------------------

MIB = 1 << 20


class MemoryGroup:
    """A control group of this machine, with a limit of memory; processes that enter it stay in it with their children."""

    def __init__(self, limit):
        v1 = pathlib.Path("/sys/fs/cgroup/memory")
        self.old = v1.is_dir()
        self.folder = (v1 if self.old else pathlib.Path("/sys/fs/cgroup")) / f"weft-test-{os.getpid()}"
        self.folder.mkdir()
        self.write("memory.limit_in_bytes" if self.old else "memory.max", limit)

    def write(self, name, value):
        (self.folder / name).write_text(str(value))

    def run(self, *command):
        """How it ended, and the most that it took of what no pressure takes away: anonymous and shared memory."""
        enter = f"echo $$ >{self.folder}/cgroup.procs && exec \"$@\""
        p = runs.watch_over(subprocess.Popen(["sh", "-c", enter, "sh", *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
        names, most = ("total_rss", "total_shmem") if self.old else ("anon", "shmem"), 0
        while p.poll() is None:
            stat = dict(line.split() for line in (self.folder / "memory.stat").read_text().splitlines())
            most = max(most, sum(int(stat[n]) for n in names))
            time.sleep(0.05)
        return runs.Ended(p.returncode, p.stdout.read(), ""), most

    def close(self):
        end = time.monotonic() + runs.WATCHDOG
        while time.monotonic() < end:
            try:
                self.folder.rmdir()
                return
            except OSError:  # a process is still on its way out
                time.sleep(0.01)


@pytest.mark.parametrize("hidden, mesh, more", [
    ([1024, 1024], {"tp": 2}, {"eval": {"every": 5}}), ([384, 384, 384], {"pp": 2}, {"train__microbatches": 4}),
    ([1024, 1024], {"fsdp": 4}, {})])
def test_a_node_has_the_memory_that_is_asked_for_it_and_not_much_more(place, toy, hidden, mesh, more):
    """With as much it trains, evaluates and saves. 128 MiB and as much again as it takes would be too much.
    The rate is one at which losses stay small: subnormal numbers make a CPU's products seventy times slower."""
    ranks = math.prod(mesh.values())
    job = runs.job(toy, ranks, model__hidden=hidden, mesh=mesh, data__batch=96, train__steps=10, optimizer={"kind": "adamw"},
                   schedule={"kind": "constant", "value": 1e-4}, checkpoint={"dir": "ckpt", "every": 3, "keep": 2}, **more)  # fmt: skip
    run = runs.Run(place, job)
    asked = json.loads(runs.weft("render", "--for", "systemd", "--json", str(run.file)).out)["memory_bytes"]
    try:
        group = MemoryGroup(asked)
    except OSError as e:
        pytest.skip(f"SKIP: no control group of memory of our own here: {e}")
    try:
        end, took = group.run(runs.WEFT, "run", str(run.file))
    finally:
        group.close()
    assert end.code == 0 and run.checkpoints()[-1].step == 10, (asked // MIB, took // MIB, end)
    assert took < asked < 2 * took + 128 * MIB, (asked // MIB, took // MIB)
