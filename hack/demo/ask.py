"""Asks the quickstart's policy a question through a port-forward, and prints the answer as it arrives.

Run where kubectl is configured: hack/cluster/cluster in .venv/bin/python hack/demo/ask.py "Why is the sky blue?"
"""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import time
from collections.abc import Iterator

import openai

KEY = "quickstart-key"
"""Its SHA-256 is in the quickstart's Secret."""


@contextlib.contextmanager
def forwarded(service: str, namespace: str) -> Iterator[str]:
    """The URL of a Service on this machine while it is forwarded."""
    command = ["kubectl", "port-forward", "--namespace", namespace, f"service/{service}", ":80"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        found = re.search(r"127\.0\.0\.1:(\d+)", process.stdout.readline())
        if found is None:
            sys.exit(f"failed: {' '.join(command)}")
        yield f"http://127.0.0.1:{found[1]}"
    finally:
        process.terminate()
        process.wait()


def main() -> None:
    question = " ".join(sys.argv[1:]) or "Why is the sky blue?"
    with forwarded("chat-gateway", "quickstart") as url:
        client = openai.OpenAI(base_url=f"{url}/v1", api_key=KEY)
        print(f"  client = openai.OpenAI(base_url='http://chat-gateway.quickstart.svc/v1', api_key='{KEY}')\n")
        print(f"  > {question}\n\n  ", end="", flush=True)
        started, first, pieces = time.monotonic(), None, 0
        stream = client.chat.completions.create(
            model="smollm2",
            messages=[{"role": "user", "content": question}],
            max_tokens=120,
            temperature=0,
            stream=True,
        )
        for chunk in stream:
            text = chunk.choices[0].delta.content if chunk.choices else None
            if text:
                first = first or time.monotonic()
                pieces += 1
                print(text.replace("\n", "\n  "), end="", flush=True)
        ended = time.monotonic()
        if first is None:
            sys.exit("no text came")
        rate = (pieces - 1) / (ended - first) if pieces > 1 else 0
        print(f"\n\n  first token after {(first - started) * 1000:.0f} ms, then {rate:.0f} tokens a second")


if __name__ == "__main__":
    main()
