"""Checks Kubernetes objects against published schemas: custom resources against their definitions (.deps/kubernetes/crds), and
all others against the OpenAPI description of Kubernetes v1.32.2. As in strict validation of the API server, undeclared fields
are errors. CEL rules and webhooks are not checked here, but in the tests with the control plane.

    for problem in problems_of(yaml.safe_load_all(text)): ...

`deploy/setup/install.sh --kubectl` fetches the schemas."""
import functools
import json
import pathlib
import subprocess

import jsonschema
import yaml

SOURCE = pathlib.Path(__file__).resolve().parents[2]
KUBERNETES = SOURCE / ".deps" / "kubernetes"
KUBECTL = KUBERNETES / "bin" / "kubectl"
QUANTITY = "io.k8s.apimachinery.pkg.api.resource.Quantity"
INT_OR_STRING = "io.k8s.apimachinery.pkg.util.intstr.IntOrString"
# Keywords of OpenAPI v3 that have the same meaning in JSON Schema.
KEPT = ("type", "enum", "pattern", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minLength", "maxLength",
        "minItems", "maxItems", "uniqueItems", "minProperties", "maxProperties", "required", "multipleOf", "format")
FORMATS = {"int32": (-2**31, 2**31 - 1), "int64": (-2**63, 2**63 - 1)}


def kustomize(path):
    """The objects that `kubectl kustomize` makes of a folder. Relative paths start in the repository."""
    done = subprocess.run([str(KUBECTL), "kustomize", str(SOURCE / path)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, f"kustomize {path}: {done.stderr}"
    return [thing for thing in yaml.safe_load_all(done.stdout) if thing]


def strict(schema):
    """A JSON Schema with the meaning that an OpenAPI schema has for the API server."""
    if schema.get("x-kubernetes-int-or-string") or schema.get("format") == "int-or-string":
        result = {"type": ["integer", "string"], **({"pattern": schema["pattern"]} if "pattern" in schema else {})}
        return {**result, "type": ["integer", "string", "null"]} if schema.get("nullable") else result
    result = {key: schema[key] for key in KEPT if key in schema}
    low, high = FORMATS.get(schema.get("format"), (None, None))
    if low is not None:
        result["minimum"] = max(low, result.get("minimum", low))
        result["maximum"] = min(high, result.get("maximum", high))
    if "$ref" in schema:
        result["$ref"] = schema["$ref"]
    if "items" in schema:
        result["items"] = strict(schema["items"])
    for key in ("allOf", "anyOf", "oneOf"):
        if key in schema:  # these are constraints and do not declare fields
            result[key] = [{name: value for name, value in strict(one).items() if name != "additionalProperties"}
                           for one in schema[key]]
    if "properties" in schema:
        result["properties"] = {name: strict(value) for name, value in schema["properties"].items()}
        if not schema.get("x-kubernetes-preserve-unknown-fields"):
            result["additionalProperties"] = False
    elif isinstance(schema.get("additionalProperties"), dict):
        result["additionalProperties"] = strict(schema["additionalProperties"])
    if schema.get("x-kubernetes-embedded-resource"):
        result.setdefault("required", ["apiVersion", "kind"])
    if schema.get("nullable") and "type" in result:
        result["type"] = [result["type"], "null"]
    return result


@functools.cache
def _definitions_of_kubernetes():
    definitions = json.loads((KUBERNETES / "kubernetes_openapi.json").read_text())["definitions"]
    schemas, kinds = {}, {}
    for name, schema in definitions.items():
        schemas[name] = strict(schema)
        for kind in schema.get("x-kubernetes-group-version-kind", []):
            kinds[(kind["group"], kind["version"], kind["kind"])] = name
    # These may be numbers or text, but the description has only text.
    schemas[QUANTITY] = {"type": ["string", "number"], "pattern": r"^[+-]?[0-9.]+([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?$"}
    schemas[INT_OR_STRING] = {"type": ["string", "integer"]}
    return schemas, kinds


@functools.cache
def _schema_of_custom(group, version, kind):
    for path in (KUBERNETES / "crds").glob(f"{group}_*.yaml"):
        for definition in yaml.load_all(path.read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
            for served in definition["spec"]["versions"]:
                if definition["spec"]["names"]["kind"] == kind and served["name"] == version:
                    schema = strict(served["schema"]["openAPIV3Schema"])
                    schema["properties"]["metadata"] = {
                        "$ref": "#/definitions/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"}
                    return schema
    return None


@functools.cache
def validator_of(api_version, kind):
    """None for a kind without a schema."""
    group, _, version = api_version.rpartition("/")
    definitions, kinds = _definitions_of_kubernetes()
    if (group, version, kind) in kinds:
        schema = {"$ref": f"#/definitions/{kinds[(group, version, kind)]}"}
    else:
        schema = _schema_of_custom(group, version, kind)
        if schema is None:
            return None
    return jsonschema.Draft7Validator({**schema, "definitions": definitions})


def problems_of(objects):
    """One line per problem: "Kind name: where: what"."""
    found = []
    for thing in objects:
        name = f"{thing.get('kind')} {thing.get('metadata', {}).get('name')}"
        validator = validator_of(str(thing.get("apiVersion")), str(thing.get("kind")))
        if validator is None:
            found.append(f"{name}: no schema of {thing.get('apiVersion')} {thing.get('kind')}")
            continue
        for error in validator.iter_errors(thing):
            where = ".".join(str(step) for step in error.absolute_path) or "top"
            found.append(f"{name}: {where}: {error.message[:300]}")
    return found
