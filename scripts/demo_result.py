"""Says what a run came to, from its files alone and with the standard library alone.

usage: demo_result.py ARTIFACT RUN-DIRECTORY PASS METRIC LEAST
Exit status 1 where the last value of the pass's metric is below LEAST.
"""

import hashlib
import json
import sys
import tarfile
from pathlib import Path


def artifact_hash(path):
    """The digest of the first member, the manifest, which lists the digest of every other."""
    with tarfile.open(path, "r:") as tar:
        first = tar.next()
        assert first is not None and first.name == "manifest.json"
        return hashlib.sha256(tar.extractfile(first).read()).hexdigest()


def last_value(run, name, metric):
    """The pass's metric, as the last line of that pass in the run's log has it."""
    lines = map(json.loads, (run / "metrics.jsonl").read_text(encoding="ascii").splitlines())
    return [line["metrics"][metric] for line in lines if line.get("pass") == name][-1]


def main(artifact, run, name, metric, least):
    newest = max((run / "checkpoints").glob("step-*"))
    value = last_value(run, name, metric)
    print(f"{name} {metric:12} {value}")
    print(f"artifact             sha256:{artifact_hash(artifact)}")
    print(f"checkpoint           {newest}")
    for path in sorted(newest.glob("*.safetensors")):
        print(f"{path.name:20} sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}")
    if value < least:
        sys.exit(f"error: {name} {metric} is {value}, below {least}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4], float(sys.argv[5]))
