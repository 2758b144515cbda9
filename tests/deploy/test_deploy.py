import json
import os
import shlex
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from click.testing import CliRunner
from ruamel.yaml import YAML

from loadchaos import __version__
from loadchaos.cli.main import main
from loadchaos.cli.watch import watch

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
MANIFESTS = sorted(p for d in ("base", "nightly", "watch") for p in (DEPLOY / d).glob("*.yaml"))
NO_MANIFESTS = ("kustomization.yaml", "profile.yaml")
UNIT = DEPLOY / "nightly" / "loadchaos-soak.service"


@cache
def schema() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((Path(__file__).parent / "kubernetes-1.34.json").read_text())
    return found


def documents(text: str) -> list[dict[str, Any]]:
    return list(YAML(typ="safe", pure=True).load_all(text))


def check(document: dict[str, Any]) -> None:
    if document["kind"] == "Deployment":  # the stored schema has jobs, whose pods are the same
        spec = document["spec"]
        assert spec["selector"]["matchLabels"].items() <= spec["template"]["metadata"]["labels"].items()
        pod = {**spec["template"], "spec": {**spec["template"]["spec"], "restartPolicy": "Never"}}
        check({"apiVersion": "batch/v1", "kind": "Job", "metadata": {}, "spec": {"template": pod}})
        return
    kind = schema()["kinds"][f"{document['apiVersion']}/{document['kind']}"]
    whole = {"$ref": f"#/definitions/{kind}", "definitions": schema()["definitions"]}
    jsonschema.Draft202012Validator(whole).validate(document)


@pytest.mark.parametrize("path", [p for p in MANIFESTS if p.name not in NO_MANIFESTS], ids=lambda p: p.name)
def test_deploy_manifests_are_valid_for_kubernetes(path: Path) -> None:
    for document in documents(path.read_text()):
        check(document)


def test_soak_unit_is_valid(tmp_path: Path) -> None:
    lines = UNIT.read_text().splitlines()
    settings = dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
    words = shlex.split(settings["ExecStart"])
    soak = words[words.index("loadchaos") + 1 :]
    assert CliRunner().invoke(main, [*soak, "--next", "1"]).exit_code == 0
    assert settings["KillMode"] == "mixed", "soak ends its run itself"
    if shutil.which("systemd-analyze") is None:
        return
    command = ["systemd-analyze", "verify", "--user", "--recursive-errors=no", str(UNIT)]
    env = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    assert [line for line in done.stderr.splitlines() if "loadchaos-soak" in line] == []


def test_watch_unit_is_valid() -> None:
    lines = (DEPLOY / "watch" / "loadchaos-watch.service").read_text().splitlines()
    settings = dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
    words = shlex.split(settings["ExecStart"])
    given = watch.make_context("watch", words[words.index("watch") + 1 :]).params
    assert given["service"] and settings["KillMode"] == "mixed"


@pytest.mark.parametrize("name", ["deployment.yaml", "sidecar.yaml"])
def test_watch_manifests_have_options_of_the_command(name: str) -> None:
    pod = documents((DEPLOY / "watch" / name).read_text())[0]["spec"]["template"]["spec"]
    (container,) = [c for part in ("containers", "initContainers") for c in pod.get(part, ()) if c["name"] == "watch"]
    assert watch.make_context("watch", list(container["args"][1:])).params["healthz"] == "0.0.0.0:9647"


def test_image_is_built_from_tags_and_from_all_that_the_wheel_needs(tmp_path: Path) -> None:
    lines = (DEPLOY / "Containerfile").read_text().replace("\\\n", " ").splitlines()
    steps = [line.split(maxsplit=1) for line in lines if line.strip() and not line.startswith("#")]
    known = {"FROM", "WORKDIR", "COPY", "RUN", "ENV", "USER", "EXPOSE", "ENTRYPOINT", "CMD"}
    assert {name for name, _ in steps} <= known
    images = [text.split()[0] for name, text in steps if name == "FROM"]
    assert all(":" in image and "@" not in image and not image.endswith(":latest") for image in images)
    copied = [text.split()[:-1] for name, text in steps if name == "COPY" and not text.startswith("--from")]
    for file in (ROOT / name for names in copied for name in names):
        (place := tmp_path / file.relative_to(ROOT)).parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(file, place) if file.is_dir() else shutil.copy(file, place)
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path / "dist")]
    done = subprocess.run(build, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr


def test_deploy_schema_check_finds_a_mistake() -> None:
    (job,) = documents((DEPLOY / "base" / "workers.yaml").read_text())
    job["spec"]["template"]["spec"]["containers"][0]["imagge"] = "x"
    with pytest.raises(jsonschema.ValidationError, match="imagge"):
        check(job)


@pytest.mark.parametrize("name", ["base", "nightly"])
def test_deploy_kustomize_builds(name: str) -> None:
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("kubectl is not here, which has kustomize in it")
    built = subprocess.run([kubectl, "kustomize", str(DEPLOY / name)], capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    kinds = []
    for document in documents(built.stdout):
        check(document)
        kinds.append(document["kind"])
    assert kinds.count("Job" if name == "base" else "CronJob") == 2


def test_deploy_files_agree_with_each_other() -> None:
    base = {p.stem: documents(p.read_text())[0] for p in (DEPLOY / "base").glob("*.yaml")}
    literals = dict(x.split("=", 1) for x in base["kustomization"]["configMapGenerator"][1]["literals"])
    assert int(literals["WORKERS"]) == base["workers"]["spec"]["completions"] == base["workers"]["spec"]["parallelism"]
    assert {i["newTag"] for i in base["kustomization"]["images"]} == {__version__}
    worker = base["workers"]["spec"]["template"]["spec"]["containers"][0]
    assert f"--master-host={base['service']['metadata']['name']}" in worker["args"]
    nightly = documents((DEPLOY / "nightly" / "cronjobs.yaml").read_text())
    for job, now in zip(nightly, (base["master"], base["workers"]), strict=True):
        template = job["spec"]["jobTemplate"]["spec"]["template"]
        args = template["spec"]["containers"][0]["args"]
        if args[0] == "soak":
            args[:3] = ["run", args[1]]
        assert template == now["spec"]["template"], "the nights are the same run, kept and told as a soak's"
    schedules = {job["spec"]["schedule"] for job in nightly} | {base["profile"]["schedule"]["cron"]}
    assert len(schedules) == 1


def test_deploy_profile_is_valid() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "loadchaos", "check", str(DEPLOY / "base" / "profile.yaml")], capture_output=True, text=True,
        check=False, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("args", "env", "becomes"),
    [
        ("probe http://x", {}, "probe http://x"),
        ("--help", {}, "--help"),
        (
            "--worker --master-port=5557 --master-host=load-master",
            {},
            "worker --master-host load-master --master-port 5557",
        ),
        ("--headless --worker --master-host m --master-port 7", {}, "worker --master-host m --master-port 7"),
        (
            "--master --master-port=5557 --expect-workers=3 --autostart",
            {"LOADCHAOS_ARGS": "smoke --target http://x"},
            "run smoke --target http://x --master --expect-workers 3 --master-bind-port 5557",
        ),
        (
            "",
            {"LOCUST_MODE_WORKER": "true", "LOCUST_MASTER_NODE_HOST": "m"},
            "worker --master-host m --master-port 5557",
        ),
        (
            "--headless",
            {"LOCUST_MODE_MASTER": "1", "LOCUST_EXPECT_WORKERS": "4", "LOADCHAOS_ARGS": "smoke"},
            "run smoke --master --expect-workers 4 --master-bind-port 5557",
        ),
    ],
)
def test_container_entrypoint(tmp_path: Path, args: str, env: dict[str, str], becomes: str) -> None:
    stand_in = tmp_path / "loadchaos"
    stand_in.write_text('#!/bin/sh\necho "$@"\n')
    stand_in.chmod(0o755)
    done = subprocess.run(
        ["sh", str(DEPLOY / "entrypoint.sh"), *args.split()], capture_output=True, text=True, check=False,
        env={"PATH": f"{tmp_path}:/usr/bin:/bin", **env},
    )  # fmt: skip
    assert (done.returncode, done.stdout.strip()) == (0, becomes), done.stderr
