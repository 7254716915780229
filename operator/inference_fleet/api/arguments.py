"""Engine arguments that a policy may not set by hand: the operator renders them, measures by them, or is bypassed by them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reserved:
    """Flags that are refused for one reason. Long ones also as `--flag=value`, `--flag.key` and with underscores."""

    message: str
    flags: tuple[str, ...]

    @property
    def pattern(self) -> str:
        """A regular expression (RE2) for arguments that set one of the flags, once `_` is written `-`."""
        long = sorted(flag[2:] for flag in self.flags if flag.startswith("--"))
        short = sorted(flag[1:] for flag in self.flags if not flag.startswith("--"))
        either = f"--({'|'.join(long)})" + (f"|-({'|'.join(short)})" if short else "")
        return f"^({either})([=.].*)?$"

    @property
    def cel(self) -> str:
        """A CEL expression that is true when no item of `self.extraArguments` sets one of the flags."""
        return (
            "!has(self.extraArguments) || !self.extraArguments.exists(argument,"
            f" argument.replace('_', '-').matches('{self.pattern}'))"
        )

    def found(self, arguments: Iterable[str]) -> tuple[str, ...]:
        """The arguments that set one of the flags."""
        compiled = re.compile(self.pattern)
        return tuple(argument for argument in arguments if compiled.fullmatch(argument.replace("_", "-")))


# fmt: off
VLLM = (
    Reserved(
        "extraArguments may not choose the model, its address, its keys or its logging of metrics"
        " (--model, --served-model-name, --host, --port, --api-key, --config, …): the operator does",
        (
            "--model", "--served-model-name", "--revision", "--tokenizer-revision", "--hf-config-path", "--config",
            "--download-dir", "--host", "--port", "--uds", "--root-path", "--api-key", "--ssl-keyfile",
            "--ssl-certfile", "--headless", "--grpc", "--middleware", "--disable-log-stats",
        ),
    ),
    Reserved(
        "extraArguments may not set context, batching, memory, quantization, devices or speculation (--max-model-len,"
        " --max-num-seqs, --gpu-memory-utilization, --tensor-parallel-size, --speculative-config, …): use the policy's fields",
        (
            "--max-model-len", "--max-num-seqs", "--max-num-batched-tokens", "--gpu-memory-utilization",
            "--kv-cache-memory-bytes", "--num-gpu-blocks-override", "--kv-cache-dtype", "--quantization", "-q",
            "--dtype", "--cpu-offload-gb", "--tensor-parallel-size", "-tp", "--pipeline-parallel-size", "-pp",
            "--data-parallel-size", "-dp", "--nnodes", "--speculative-config", "-sc", "--spec-method", "--spec-model",
            "--spec-tokens",
        ),
    ),
)
"""Of `vllm serve`."""

LLAMA_CPP = (
    Reserved(
        "extraArguments may not choose the model, its address, its keys or its metrics"
        " (-m, -a, --host, --port, --api-key, --metrics, …): the operator does",
        (
            "--model", "-m", "--model-url", "-mu", "--docker-repo", "-dr", "--hf-repo", "-hf", "-hfr", "--hf-file",
            "-hff", "--models-dir", "--models-preset", "--alias", "-a", "--host", "--port", "--api-prefix",
            "--api-key", "--api-key-file", "--ssl-key-file", "--ssl-cert-file", "--sleep-idle-seconds",
            "--embedding", "--embeddings", "--rerank", "--reranking", "--metrics", "--no-slots",
        ),
    ),
    Reserved(
        "extraArguments may not set context, batching, memory, devices or speculation"
        " (-c, -np, -ctk, -t, -ngl, -md, --spec-type, …): use the policy's fields",
        (
            "--ctx-size", "-c", "--parallel", "-np", "--cache-type-k", "-ctk", "--cache-type-v", "-ctv",
            "--kv-unified", "-kvu", "-fit", "--fit", "--batch-size", "-b", "--threads", "-t", "--gpu-layers",
            "--n-gpu-layers", "-ngl", "--model-draft", "--spec-draft-model", "-md", "--hf-repo-draft",
            "--spec-draft-hf", "-hfd", "-hfrd", "--spec-type", "--spec-default", "--spec-draft-n-max",
            "--spec-ngram-simple-size-m", "--spec-ngram-mod-n-max", "--draft", "--draft-max", "--draft-n",
        ),
    ),
)
"""Of llama.cpp's server."""
# fmt: on
