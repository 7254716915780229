"""The preStop script of an engine container, whose image has nothing of ours: one POSIX sh file, carried in by `stage`.

An engine that is told to end cuts its streams, so its container must be quiet before the kubelet tells it.
"""

from __future__ import annotations

import os
from pathlib import Path

DRAIN_SCRIPT = r"""#!/bin/sh
# drained ENGINE METRICS_URL MINIMUM_SECONDS MAXIMUM_SECONDS
#
# preStop of an engine container. Waits MINIMUM_SECONDS (so that gateways learn that this pod is leaving), then until the
# engine's own metrics show no request running or waiting, twice in a row, or until MAXIMUM_SECONDS have passed since the
# beginning. Then the kubelet stops the engine. ENGINE is LlamaCpp or VLLM. Needs nothing but sh: it reads the metrics with
# python3, curl or wget, whichever the image has, and without any of them waits for MAXIMUM_SECONDS. An engine that does not
# answer may still be at work: only the maximum ends that wait. Always exits 0, a failed preStop would help no one.
#
# Polls every 2 seconds: llama.cpp no longer notices that a client has left when its metrics are read more than once a second.

engine=$1
url=$2
minimum=$3
maximum=$4

case $engine in
LlamaCpp) running=llamacpp:requests_processing waiting=llamacpp:requests_deferred ;;
VLLM) running=vllm:num_requests_running waiting=vllm:num_requests_waiting ;;
*)
    echo "drained: unknown engine $engine" >&2
    running=''
    ;;
esac

say() {
    echo "drained: $1"
    # The kubelet does not keep a preStop's output: in a pod it goes to the container's own log too, where that is allowed.
    if [ -n "$KUBERNETES_SERVICE_HOST" ]; then
        { echo "drained: $1" >/proc/1/fd/1; } 2>/dev/null || true
    fi
}

reader=none
if [ -n "$DRAINED_READER" ]; then
    reader=$DRAINED_READER
elif command -v python3 >/dev/null 2>&1; then
    reader=python3
elif command -v curl >/dev/null 2>&1; then
    reader=curl
elif command -v wget >/dev/null 2>&1; then
    reader=wget
fi

metrics() {
    case $reader in
    python3) python3 -c 'import sys, urllib.request
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
sys.stdout.write(opener.open(sys.argv[1], timeout=5).read().decode("utf-8", "replace"))' "$url" 2>/dev/null ;;
    curl) curl -fsS --noproxy '*' --max-time 5 "$url" 2>/dev/null ;;
    wget)
        (
            unset http_proxy HTTP_PROXY all_proxy ALL_PROXY
            case $(wget --version 2>/dev/null) in
            *GNU*) wget -q -t 1 -T 5 -O - "$url" 2>/dev/null ;;
            # Some builds of busybox crash with a timeout (-T).
            *) wget -q -T 5 -O - "$url" 2>/dev/null || wget -q -O - "$url" 2>/dev/null ;;
            esac
        )
        ;;
    esac
}

# Requests running and waiting: `0`, `busy`, or nothing where the answer lacks one of the two names.
active() {
    found=0
    busy=0
    old=$IFS
    IFS='
'
    set -f
    for name in "$running" "$waiting"; do
        seen=0
        for line in $1; do
            case $line in
            "$name "* | "$name{"*)
                seen=1
                case ${line##* } in
                *[!0.]*) busy=1 ;; # anything but 0 and 0.0, NaN included
                esac
                ;;
            esac
        done
        found=$((found + seen))
    done
    set +f
    IFS=$old
    if [ "$found" -eq 2 ] && [ "$busy" -eq 0 ]; then echo 0; elif [ "$busy" -eq 1 ]; then echo busy; fi
}

now() { date +%s; }

begun=$(now)
sleep "$minimum"
quiet=0
if [ "$reader" = none ]; then
    say "this image has no python3, curl or wget: waiting for the whole $maximum seconds"
fi
while [ $(($(now) - begun)) -lt "$maximum" ]; do
    if [ "$reader" != none ] && [ -n "$running" ]; then
        count=$(active "$(metrics)")
        case $count in
        0) quiet=$((quiet + 1)) ;;
        *) quiet=0 ;;
        esac
        if [ "$quiet" -ge 2 ]; then
            say "no request is left after $(($(now) - begun)) seconds"
            exit 0
        fi
    fi
    left=$((maximum - $(now) + begun))
    if [ "$left" -gt 2 ]; then left=2; fi
    if [ "$left" -gt 0 ]; then sleep "$left"; fi
done
say "stopping after the longest wait, $maximum seconds"
exit 0
"""
"""`drained ENGINE METRICS_URL MINIMUM_SECONDS MAXIMUM_SECONDS`, in POSIX sh."""


def write_drain_script(path: Path) -> None:
    """Put the script where the engine container sees it, ready to run by any user."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    partial.write_text(DRAIN_SCRIPT)
    partial.chmod(0o755)
    os.replace(partial, path)  # noqa: PTH105 - the atomic one
