#!/usr/bin/env python3
"""Renders every kustomization and holds it against the program's settings, docker-compose.yml and our own rules.

Needs PyYAML (ops/deploy/check finds it). Rendered by kustomize or kubectl where one is installed, which render.py is held against
then; else by render.py. With the package kubernetes-validate each object is also held against Kubernetes's schema.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import yaml

import render

try:
    import kubernetes_validate
except ImportError:
    kubernetes_validate = None

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
# A drain takes up to 25 s, what is sent and closed at its end up to 9 s more, and the ingress waits 5 s before.
GRACE_MIN = 40

faults = []


def fault(place, text):
    faults.append(f"{place}: {text}")


def rendered(directory):
    ours = render.build(directory)
    tools = {"kustomize": ["kustomize", "build"], "kubectl": ["kubectl", "kustomize"]}
    tool = next((tools[name] for name in tools if shutil.which(name)), None)
    if not tool:
        return ours
    done = subprocess.run([*tool, str(directory)], capture_output=True, text=True)
    if done.returncode:
        fault(directory.name, done.stderr.strip())
        return []
    theirs = [found for found in yaml.safe_load_all(done.stdout) if found]
    for one, other in zip(in_order(ours), in_order(theirs)):
        if one != other:
            fault(directory.name, f"render.py makes another {one['kind']} {one['metadata']['name']} than {tool[0]}")
    if len(ours) != len(theirs):
        fault(directory.name, f"render.py makes {len(ours)} objects, {tool[0]} {len(theirs)}")
    return theirs


def in_order(objects):
    """By kind and name, without the contents' digest, which is each tool's own."""
    made = [re.escape(found["metadata"]["name"]) for found in objects if found["kind"] == "ConfigMap"]
    made = [name for name in made if re.search(r"-[a-z0-9]{10}$", name)]
    plain = yaml.safe_dump(objects)
    for name in made:
        plain = re.sub(name, re.sub(r"\\?-[a-z0-9]{10}$", "", name).replace("\\", ""), plain)
    return sorted(named_in_order(yaml.safe_load(plain)), key=lambda found: (found["kind"], found["metadata"]["name"]))


def named_in_order(value):
    """With lists of named things by their names: a patch may put its own before or behind those that are there."""
    if isinstance(value, dict):
        return {key: named_in_order(inner) for key, inner in value.items()}
    if not isinstance(value, list):
        return value
    inner = [named_in_order(one) for one in value]
    return sorted(inner, key=lambda one: one["name"]) if render.are_named(inner) else inner


def settings():
    names = re.findall(r"^\| `([a-z0-9-]+)`", (ROOT / "ops/settings.md").read_text(), re.M)
    return {"POSTRIDER_" + name.upper().replace("-", "_") for name in names}


def check_settings(place, names, known):
    for name in names:
        if name.startswith("POSTRIDER_") and name not in known:
            fault(place, f"there is no setting {name}")


def check_pod(place, pod, known, runs_on):
    if pod.get("enableServiceLinks") is not False:
        fault(place, "service links would set variables that no process knows")
    if pod.get("automountServiceAccountToken") is not False:
        fault(place, "a token of Kubernetes that nobody needs")
    if not pod["securityContext"].get("runAsNonRoot") or not pod["securityContext"].get("seccompProfile"):
        fault(place, "not root, and with the runtime's profile")
    if runs_on and pod.get("terminationGracePeriodSeconds", 30) < GRACE_MIN:
        fault(place, "killed before it has drained")
    for container in pod["containers"]:
        own = container["securityContext"]
        if not own.get("readOnlyRootFilesystem") or own.get("allowPrivilegeEscalation") is not False or own["capabilities"]["drop"] != ["ALL"]:
            fault(place, "read-only, without rights")
        if set(container["resources"]) != {"requests", "limits"}:
            fault(place, "no resources")
        if runs_on and not (container.get("livenessProbe") and container.get("readinessProbe")):
            fault(place, "no probes")
        if not re.search(r":[\w.-]*\d", container["image"]) and container["image"] != "postrider":
            fault(place, f"{container['image']} is not pinned")
        check_settings(place, [entry["name"] for entry in container.get("env", [])], known)


def references(pod):
    """The secrets and config maps that a pod asks for."""
    for volume in pod.get("volumes", []):
        if "secret" in volume:
            yield volume["secret"]["secretName"]
        if "configMap" in volume:
            yield volume["configMap"]["name"]
    for container in pod["containers"]:
        for entry in container.get("env", []):
            for kind in ("secretKeyRef", "configMapKeyRef"):
                if kind in entry.get("valueFrom", {}):
                    yield entry["valueFrom"][kind]["name"]
        for source in container.get("envFrom", []):
            yield next(iter(source.values()))["name"]


def outward_ports():
    """The ports of customers' URLs that the program accepts, as a network policy has them."""
    source = (ROOT / "ops/runtime/src/outbound/target.rs").read_text()
    https, free = (int(re.search(rf"const {name}: u16 = ([\d_]+);", source)[1]) for name in ("HTTPS_PORT", "FIRST_FREE_PORT"))
    return [{"port": https}, {"port": free, "endPort": 65535}]


def check_internet(place, policy):
    for rule in policy["spec"]["egress"]:
        if rule["ports"] != outward_ports():
            fault(place, "the program accepts URLs whose ports are closed here, or the other way round")
        left_out = [left for block in rule["to"] for left in block["ipBlock"].get("except", [])]
        if not {"10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16"} <= set(left_out):
            fault(place, "leads into private networks")


def check(directory, known, described):
    objects = rendered(directory)
    names = {(found["kind"], found["metadata"]["name"]) for found in objects}
    scaled = {found["spec"]["scaleTargetRef"]["name"] for found in objects if found["kind"] == "ScaledObject"}
    for found in objects:
        place = f"{directory.relative_to(HERE)} {found['kind']} {found['metadata']['name']}"
        if kubernetes_validate and "." not in found["apiVersion"].split("/")[0].replace(".k8s.io", ""):
            try:
                kubernetes_validate.validate(found, "1.32", strict=True)
            except kubernetes_validate.ValidationError as error:
                fault(place, error.message)
        if (found["kind"], found["metadata"]["name"]) == ("NetworkPolicy", "internet"):
            check_internet(place, found)
        if found["kind"] == "ConfigMap":
            check_settings(place, found.get("data", {}), known)
        if found["kind"] in ("Deployment", "Job", "StatefulSet", "Pod"):
            pod = found["spec"] if found["kind"] == "Pod" else found["spec"]["template"]["spec"]
            check_pod(place, pod, known, found["kind"] == "Deployment")
            for name in references(pod):
                if not any(name == other for _, other in names) and name not in described:
                    fault(place, f"{name} is neither made here nor in the README's list")
        if found["kind"] == "Deployment":
            wanted = found["spec"]["selector"]["matchLabels"]
            if ("PodDisruptionBudget", found["metadata"]["name"]) not in names:
                fault(place, "nothing keeps a drained node from taking all of it")
            if found["metadata"]["name"] in scaled and "replicas" in found["spec"]:
                fault(place, "each upgrade would undo what KEDA has set")
            if not wanted.items() <= found["spec"]["template"]["metadata"]["labels"].items():
                fault(place, "its selector does not find its pods")
        if found["kind"] == "ScaledObject" and ("Deployment", found["spec"]["scaleTargetRef"]["name"]) not in names:
            fault(place, "scales nothing")
    return {name for kind, name in names if kind == "Deployment"}


def main():
    known = settings()
    described = set(re.findall(r"`((?:postrider|nats)-[a-z-]+(?:<stage>)?)`", (HERE / "README.md").read_text()))
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    engine = {name for name, service in services.items() if "POSTRIDER_ADMIN_ADDR" in service.get("environment", {})}
    described |= {f"postrider-nats-{name}" for name in engine} if "postrider-nats-<stage>" in described else set()
    for directory in (HERE / "base", HERE / "overlays/production"):
        deployed = check(directory, known, described)
        if deployed != engine:
            fault(directory.name, f"deploys {sorted(deployed ^ engine)} unlike docker-compose.yml")
    check(HERE / "jobs", known, described)
    check(HERE / "operator", known, described)
    check(HERE / "nats", known, described)
    for line in faults:
        print(line, file=sys.stderr)
    how = "and Kubernetes's schema" if kubernetes_validate else "but not Kubernetes's schema (pip install kubernetes-validate)"
    print(f"{len(faults)} faults; held against the settings, docker-compose.yml, our rules, {how}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
