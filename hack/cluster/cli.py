"""The commands of `hack/cluster/cluster`."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from hack.cluster import binaries
from hack.cluster.kind import Kind, docker_answers
from hack.cluster.kwok import Kwok
from hack.cluster.node import Node
from hack.tools.cache import cache
from hack.tools.progress import Failure, say

PROVIDERS: dict[str, type[Kwok] | type[Node] | type[Kind]] = {"kwok": Kwok, "node": Node, "kind": Kind}

DESCRIPTION = """A local Kubernetes for this project: no registry, and no Docker unless you choose kind.

providers:
  node  a real node with containerd, kubelet, DNS and Services, in namespaces of its own (root, Linux)
  kwok  a real control plane with fake nodes: pods become Ready without running (no root)
  kind  Docker's kind; the default where Docker answers, else node is
"""


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="cluster", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--provider", choices=PROVIDERS, default=os.environ.get("INFERENCE_FLEET_PROVIDER"))
    common.add_argument("--name", default=os.environ.get("INFERENCE_FLEET_CLUSTER", "demo"), help="default: demo")
    commands = parser.add_subparsers(dest="command", required=True)

    up = commands.add_parser("up", parents=[common], help="start the cluster; healthy ones are left alone")
    up.add_argument("--fake-gpus", type=int, metavar="N", help="have the node offer nvidia.com/gpu: N")
    up.add_argument("--fresh", action="store_true", help="throw a running cluster away first")

    commands.add_parser("down", parents=[common], help="end the cluster and remove everything it wrote")

    inside = commands.add_parser(
        "in", parents=[common], help="run a command in the cluster's network, kubectl configured"
    )
    inside.add_argument("words", nargs=argparse.REMAINDER, metavar="CMD…")

    load = commands.add_parser("load-image", parents=[common], help="give the node images from docker-archives")
    load.add_argument("archives", nargs="+", type=Path, metavar="TAR")

    build = commands.add_parser("build", help="build all binaries from Go modules, those that are missing")
    build.add_argument("names", nargs="*", metavar="NAME", help="only these")

    commands.add_parser("status", parents=[common], help="say what runs; status 1 if it is not healthy")
    return parser


def chosen(options: argparse.Namespace) -> str:
    """The provider that was asked for; else that of the cluster of this name; else the default."""
    if options.provider:
        return str(options.provider)
    for provider in ("node", "kind", "kwok"):  # the more real one, where there are several
        if options.command != "up" and (cache() / "clusters" / f"{provider}-{options.name}").exists():
            return provider
    return "kind" if docker_answers() else "node"


def execute(options: argparse.Namespace) -> int:
    match options.command:
        case "build":
            known = {binary.name: binary for binary in binaries.ALL}
            unknown = set(options.names) - set(known)
            if unknown:
                raise Failure(f"there is no {', '.join(sorted(unknown))}; there are {', '.join(known)}")
            binaries.build(*(known[name] for name in options.names or known))
            return 0
        case "up":
            PROVIDERS[chosen(options)](options.name).up(options.fake_gpus, options.fresh)
            return 0
        case "down":
            PROVIDERS[chosen(options)](options.name).down()
            return 0
        case "load-image":
            return load_images(chosen(options), options.name, options.archives)
        case "status":
            cluster = PROVIDERS[chosen(options)](options.name)
            healthy = cluster.exists() if isinstance(cluster, Kind) else cluster.healthy()
            say(f"cluster '{options.name}' ({chosen(options)}) is {'up' if healthy else 'not up'}")
            return 0 if healthy else 1
        case _:
            return run_inside(chosen(options), options.name, options.words)


def load_images(provider: str, name: str, archives: list[Path]) -> int:
    cluster = PROVIDERS[provider](name)
    if isinstance(cluster, Kwok):
        raise Failure("a kwok cluster runs no images: there is nothing to load them into")
    for archive in archives:
        cluster.load_image(archive)
    return 0


def run_inside(provider: str, name: str, words: list[str]) -> int:
    words = words[1:] if words[:1] == ["--"] else words
    if not words:
        raise Failure("say what to run, for example: hack/cluster/cluster in kubectl get pods -A")
    cluster = PROVIDERS[provider](name)
    if isinstance(cluster, Node):
        return cluster.replace_this_process_by(words)
    environment = cluster.environment()  # these have no network of their own: a kubeconfig is all it takes
    try:
        os.execvpe(words[0], words, environment)
    except FileNotFoundError:
        raise Failure(f"{words[0]} is not found") from None


def main() -> int:
    try:
        return execute(arguments().parse_args())
    except Failure as failure:
        print(f"cluster: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
