"""Writes the image's SBOM: SPDX 2.3 as JSON, from the data of the package managers.

Debian packages come from the dpkg status of the runtime stage, Python wheels are those whose libraries were copied, crates
come from `cargo metadata` of the tokenizer crate, and other libraries that are compiled into the programs from the dpkg of
the build stage (compile.sh writes the last three). The licence is that of the package manager if it states an SPDX
expression, and NOASSERTION otherwise. Licences of Debian packages are in /usr/share/doc/PACKAGE/copyright.
"""
import argparse
import datetime
import hashlib
import json
import os
import pathlib
import re
import urllib.parse

NAMESPACE = "https://spdx.org/spdxdocs/tandem-"
LICENCE = re.compile(r"[A-Za-z0-9.+-]+(?: WITH [A-Za-z0-9.-]+)?(?: (?:AND|OR) \(?[A-Za-z0-9.+-]+"
                     r"(?: WITH [A-Za-z0-9.-]+)?\)?)*")


def spdx_id(kind, name, version):
    return "SPDXRef-" + re.sub(r"[^A-Za-z0-9.-]", "-", f"{kind}-{name}-{version}")


def package(kind, name, version, purl, licence=None, supplier=None):
    # The document would have to quote a licence with a name of its own (LicenseRef-).
    stated = licence and LICENCE.fullmatch(licence) and "LicenseRef-" not in licence
    declared = licence if stated else "NOASSERTION"
    return {
        "SPDXID": spdx_id(kind, name, version),
        "name": name,
        "versionInfo": version,
        "supplier": supplier or "NOASSERTION",
        "downloadLocation": "NOASSERTION",
        "filesAnalyzed": False,
        "licenseConcluded": "NOASSERTION",
        "licenseDeclared": declared,
        "copyrightText": "NOASSERTION",
        "externalRefs": [{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl",
                          "referenceLocator": purl}],
    }


def paragraphs(text):
    """Parses Debian's control format: paragraphs of `Field: value`, separated by blank lines. Continuation lines are skipped."""
    for block in re.split(r"\n\s*\n", text.strip()):
        yield dict(line.split(": ", 1) for line in block.splitlines() if re.match(r"[A-Za-z-]+: ", line))


def debian_packages(status, os_release):
    distro = re.search(r"^ID=\"?([a-z]+)", os_release, re.M).group(1)
    release = re.search(r"^VERSION_ID=\"?([0-9.]+)", os_release, re.M)
    suffix = f"&distro={distro}-{release.group(1)}" if release else ""
    for fields in paragraphs(status):
        if fields.get("Status") != "install ok installed":
            continue
        name, version = fields["Package"], fields["Version"]
        purl = f"pkg:deb/{distro}/{name}@{urllib.parse.quote(version)}?arch={fields['Architecture']}{suffix}"
        yield package("deb", name, version, purl, supplier=f"Organization: {distro}")


def wheels(lines, site):
    for line in lines:
        name, version = line.split("==")
        metadata = next(site.glob(f"{name.replace('-', '_')}-{version}.dist-info")) / "METADATA"
        stated = re.search(r"^License-Expression: (.+)$", metadata.read_text(errors="replace"), re.M)
        yield package("pypi", name, version, f"pkg:pypi/{name.lower()}@{urllib.parse.quote(version)}",
                      stated.group(1).strip() if stated else None)


def crates(metadata):
    """The crates that are linked: those that normal dependencies reach from the root, without those of build scripts, tests
    and macros."""
    by_id = {p["id"]: p for p in metadata["packages"]}
    nodes = {n["id"]: n for n in metadata["resolve"]["nodes"]}
    reached, todo = set(), [metadata["resolve"]["root"]]
    while todo:
        at = todo.pop()
        if at in reached or any("proc-macro" in target["kind"] for target in by_id[at]["targets"]):
            continue
        reached.add(at)
        todo += [dep["pkg"] for dep in nodes[at]["deps"]
                 if any(kind["kind"] is None for kind in dep["dep_kinds"])]
    for crate in sorted((by_id[i] for i in reached if by_id[i]["source"]), key=lambda c: (c["name"], c["version"])):
        licence = (crate["license"] or "").replace("/", " OR ").replace("  ", " ")
        yield package("cargo", crate["name"], crate["version"],
                      f"pkg:cargo/{crate['name']}@{crate['version']}", licence)


def compiled_in(lines, os_release):
    distro = re.search(r"^ID=\"?([a-z]+)", os_release, re.M).group(1)
    for line in lines:
        name, version = line.split("=", 1)
        yield package("src", name, version, f"pkg:deb/{distro}/{name}@{urllib.parse.quote(version)}?arch=source")


def document(version, revision, created, shared, linked):
    """`shared` packages are separate files in the image, and `linked` ones are a part of the programs."""
    root = package("app", "tandem", version, f"pkg:generic/tandem@{version}?vcs_revision={revision}", "Apache-2.0")
    relations = [("SPDXRef-DOCUMENT", "DESCRIBES", root["SPDXID"])]
    relations += [(root["SPDXID"], "DEPENDS_ON", p["SPDXID"]) for p in shared]
    relations += [(root["SPDXID"], "STATIC_LINK", p["SPDXID"]) for p in linked]
    packages = [root, *shared, *linked]
    digest = hashlib.sha256(json.dumps(packages, sort_keys=True).encode()).hexdigest()
    return {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": f"tandem-{version}",
        "documentNamespace": NAMESPACE + digest,
        "creationInfo": {"created": created, "creators": ["Tool: tandem-sbom.py"]},
        "packages": packages,
        "relationships": [{"spdxElementId": a, "relationshipType": kind, "relatedSpdxElement": b}
                          for a, kind, b in relations],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--version", required=True)
    parser.add_argument("--revision", required=True)
    parser.add_argument("--dpkg-status", type=pathlib.Path, required=True)
    parser.add_argument("--os-release", type=pathlib.Path, required=True)
    parser.add_argument("--collected", type=pathlib.Path, required=True, help="compile.sh's OUT")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    args = parser.parse_args()
    os_release = args.os_release.read_text()
    site = next(pathlib.Path(".deps/venv/lib").glob("python3*/site-packages"))
    shared = [*debian_packages(args.dpkg_status.read_text(), os_release),
              *wheels((args.collected / "wheels.txt").read_text().split(), site)]
    linked = [*crates(json.loads((args.collected / "crates.json").read_text())),
              *compiled_in((args.collected / "built-in.txt").read_text().split(), os_release)]
    moment = datetime.datetime.fromtimestamp(
        int(os.environ["SOURCE_DATE_EPOCH"]) if "SOURCE_DATE_EPOCH" in os.environ
        else datetime.datetime.now().timestamp(), datetime.timezone.utc)
    sbom = document(args.version, args.revision, moment.strftime("%Y-%m-%dT%H:%M:%SZ"), shared, linked)
    args.out.write_text(json.dumps(sbom, indent=1) + "\n")
    print(f"SBOM: {len(shared)} packages beside the programs, {len(linked)} inside them")


if __name__ == "__main__":
    main()
