"""Renders a kustomization as `kustomize build` does, as far as ours go: for checking where kustomize is not installed.

Known: resources, components, namespace, labels with includeTemplates, images, configMapGenerator (envs, files, behavior merge), patches
by strategic merge from a file, of one object or of a target's, and by JSON patch with a target. check.py holds it against kustomize
wherever there is one.
"""

import copy
import hashlib
import json
import re
from pathlib import Path

import yaml

KNOWN = {
    "apiVersion", "kind", "namespace", "resources", "components", "labels", "images", "configMapGenerator", "patches",
}
# Kinds that belong to no namespace.
ABOVE = {"Namespace", "ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition", "PriorityClass", "StorageClass"}


def build(directory):
    """The objects of a kustomization."""
    objects = gather(Path(directory), [])
    for found in objects:
        if found["kind"] == "ConfigMap" and "suffix" in found:
            found.pop("suffix")
            old = found["metadata"]["name"]
            new = f"{old}-{digest(found)}"
            found["metadata"]["name"] = new
            rename(objects, old, new)
    return objects


def gather(directory, given):
    told = yaml.safe_load((directory / "kustomization.yaml").read_text())
    unknown = set(told) - KNOWN
    if unknown:
        raise SystemExit(f"{directory}/kustomization.yaml: render.py does not know {sorted(unknown)}")
    objects = given
    for name in told.get("resources", []):
        path = directory / name
        objects = objects + (gather(path, []) if path.is_dir() else load(path))
    for name in told.get("components", []):
        objects = gather(directory / name, objects)
    for wanted in told.get("configMapGenerator", []):
        generate(directory, wanted, objects)
    for patch in told.get("patches", []):
        apply(directory, patch, objects)
    for found in objects:
        dress(found, told)
    return objects


def load(path):
    return [found for found in yaml.safe_load_all(path.read_text()) if found]


def generate(directory, wanted, objects):
    data = {}
    for name in wanted.get("envs", []):
        lines = (line.strip() for line in (directory / name).read_text().splitlines())
        data |= dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
    for name in wanted.get("files", []):
        key, _, path = name.rpartition("=")
        data[key or Path(path).name] = (directory / path).read_text()
    made = [found for found in objects if found["kind"] == "ConfigMap" and found["metadata"]["name"] == wanted["name"]]
    if wanted.get("behavior") == "merge":
        made[0]["data"] |= data
    else:
        objects.append({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": wanted["name"]}, "data": data, "suffix": True})


def apply(directory, patch, objects):
    change = yaml.safe_load((directory / patch["path"]).read_text() if "path" in patch else patch["patch"])
    target = patch.get("target") or {"kind": change["kind"], "name": change["metadata"]["name"]}
    if isinstance(change, dict):
        # A target keeps its own name.
        change.get("metadata", {}).pop("name", None)
    # The name of a target is a pattern.
    hit = [found for found in objects if found["kind"] == target["kind"] and re.fullmatch(target.get("name", ".*"), found["metadata"]["name"])]
    if not hit:
        raise SystemExit(f"{directory}: a patch of {target} finds nothing")
    for found in hit:
        if isinstance(change, list):
            for step in change:
                operate(found, step)
        else:
            merge(found, change)


def merge(old, new):
    """Strategic merge: lists of named things by their names; any other list replaces a list."""
    for key, value in new.items():
        if value is None:
            old.pop(key, None)
        elif isinstance(value, dict) and isinstance(old.get(key), dict):
            merge(old[key], value)
        elif isinstance(value, list) and are_named(value) and isinstance(old.get(key), list) and are_named(old[key]):
            known = {one["name"]: one for one in old[key]}
            for one in value:
                if one["name"] in known:
                    merge(known[one["name"]], one)
                else:
                    old[key].append(copy.deepcopy(one))
        else:
            old[key] = copy.deepcopy(value)


def are_named(items):
    return all(isinstance(one, dict) and "name" in one for one in items)


def operate(found, step):
    *way, last = [part.replace("~1", "/").replace("~0", "~") for part in step["path"].strip("/").split("/")]
    place = found
    for part in way:
        place = place[int(part) if isinstance(place, list) else part]
    if isinstance(place, list) and step["op"] == "add":
        place.insert(len(place) if last == "-" else int(last), copy.deepcopy(step["value"]))
    elif step["op"] in ("add", "replace"):
        place[int(last) if isinstance(place, list) else last] = copy.deepcopy(step["value"])
    else:
        del place[int(last) if isinstance(place, list) else last]


def dress(found, told):
    if told.get("namespace"):
        if found["kind"] == "Namespace":
            found["metadata"]["name"] = told["namespace"]
        elif found["kind"] not in ABOVE:
            found["metadata"]["namespace"] = told["namespace"]
        for subject in found.get("subjects", []):
            subject["namespace"] = told["namespace"]
    for labels in told.get("labels", []):
        places = [found["metadata"]]
        if labels.get("includeTemplates") and "template" in found.get("spec", {}) and "metadata" in found["spec"]["template"]:
            places.append(found["spec"]["template"]["metadata"])
        if labels.get("includeTemplates"):
            places += [claim["metadata"] for claim in found.get("spec", {}).get("volumeClaimTemplates", [])]
        for place in places:
            place.setdefault("labels", {}).update(labels["pairs"])
    spec = found["spec"] if isinstance(found.get("spec"), dict) else {}
    pod = spec if found["kind"] == "Pod" else spec.get("template", {}).get("spec", {})
    for container in pod.get("containers", []) + pod.get("initContainers", []):
        name = container["image"].split("@")[0].rsplit(":", 1)[0] if ":" in container["image"].rsplit("/", 1)[-1] else container["image"]
        for image in told.get("images", []):
            if name == image["name"]:
                container["image"] = f"{image.get('newName', name)}:{image['newTag']}"


def digest(found):
    """Not kustomize's own, but as it is: another one for other contents."""
    return hashlib.sha256(json.dumps(found["data"], sort_keys=True).encode()).hexdigest()[:10]


def rename(objects, old, new):
    for found in objects:
        pod = found.get("spec", {}).get("template", {}).get("spec", {}) if isinstance(found.get("spec"), dict) else {}
        for volume in pod.get("volumes", []):
            if volume.get("configMap", {}).get("name") == old:
                volume["configMap"]["name"] = new
        for container in pod.get("containers", []) + pod.get("initContainers", []):
            for source in container.get("envFrom", []):
                if source.get("configMapRef", {}).get("name") == old:
                    source["configMapRef"]["name"] = new
            for entry in container.get("env", []):
                asked = entry.get("valueFrom", {}).get("configMapKeyRef", {})
                if asked.get("name") == old:
                    asked["name"] = new
