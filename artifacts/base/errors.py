"""The table of all error codes of the artifact and its runner, and the exception that carries one to the user.

The compiler has its own table with the same fields; ``docs/errors.md`` is generated from both.
"""

from __future__ import annotations

import errno
from typing import Any

from attrs import frozen


@frozen
class Code:
    """``summary`` is the docs heading; ``fix`` says what to do about it; ``exit`` is the process's exit status."""

    name: str
    summary: str
    fix: str
    exit: int = 1


CODES: dict[str, Code] = {}


def code(name: str, summary: str, fix: str, exit: int) -> Code:
    """Declare a code; ``name`` may be declared once."""
    if name in CODES:
        raise ValueError(f"{name} is declared twice")
    CODES[name] = declared = Code(name, summary, fix, exit)
    return declared


class RunError(Exception):
    """An error that the user can fix: what is wrong, where, and what to do (by default the code's ``fix``). Any other
    exception is our bug."""

    def __init__(self, code: Code, what: str, where: str = "", hint: str = "") -> None:
        super().__init__(what)
        self.code, self.what, self.where, self.hint = code, what, where, hint or clause(code.fix)

    def __str__(self) -> str:
        """``error[CODE]: where: what (hint)``, always one line."""
        where = f"{self.where}: " if self.where else ""
        hint = f" ({self.hint})" if self.hint else ""
        return printable(f"error[{self.code.name}]: {where}{self.what}{hint}")

    def to_json(self) -> dict[str, Any]:
        return {"code": self.code.name, "message": self.what, "hint": self.hint, "where": self.where}


def clause(sentence: str) -> str:
    """A sentence as a part of another one."""
    return sentence[:1].lower() + sentence[1:].removesuffix(".")


def printable(text: str) -> str:
    """``text`` on one line: control characters and stray bytes as escapes, so that no input forges a line."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def shown(value: object, limit: int = 60) -> str:
    """``value`` as a message shows it: escaped, and cut to ``limit`` characters."""
    text = printable(str(value))
    return text if len(text) <= limit else text[: limit - 3] + "..."


ART_FORMAT = code("E-ART-001", "this is not an artifact", "Name a file made by sexpgpu build.", 4)
ART_CUT = code("E-ART-002", "an artifact is truncated, or has bytes after its end", "Copy or build it again.", 4)
ART_DIGEST = code(
    "E-ART-003", "a member does not have the size or sha256 that the manifest lists", "Copy or build it again.", 4
)
ART_NAME = code("E-ART-004", "a member's name is not allowed", "Use names of letters, digits and . _ - + only.", 4)
ART_KIND = code("E-ART-005", "a member is not a plain file", "Build it again: an artifact holds plain files only.", 4)
ART_MEMBERS = code("E-ART-006", "members and manifest do not agree", "Build it again, and change nothing by hand.", 4)
ART_MANIFEST = code("E-ART-007", "the manifest is not well formed", "Build it again, and change nothing by hand.", 4)
ART_SIZE = code("E-ART-008", "a size is over its limit", "Keep large data out of the artifact: omit :embed.", 4)
ART_VERSION = code(
    "E-ART-009",
    "the artifact's manifest, its library, the runtime and the runner are not of one version",
    "Install the version named, or build the artifact again with the installed version.",
    4,
)
ART_REQUIRED = code(
    "E-ART-010",
    "the artifact is not the one that --require-digest names",
    "Get the artifact of that digest, or give the digest of this one.",
    4,
)

CKPT_NONE = code("E-CKPT-001", "there is no checkpoint to resume from", "Check --out, or start without --resume.", 4)
CKPT_TORN = code(
    "E-CKPT-002", "a checkpoint is incomplete or damaged", "Restore it from a copy, or resume from an older one.", 4
)
CKPT_IDENTITY = code(
    "E-CKPT-003",
    "the checkpoint belongs to another run",
    "Resume the run that made it, or start a new run from its weights with --fork.",
    4,
)
CKPT_VERSION = code("E-CKPT-004", "the checkpoint's format is of another version", "Install the version named.", 4)
CKPT_EXISTS = code(
    "E-CKPT-005",
    "a checkpoint of this step exists with other bytes",
    "Choose another --out: a published checkpoint is never overwritten.",
    4,
)
CKPT_PRESENT = code(
    "E-CKPT-006",
    "the directory already contains checkpoints",
    "Continue them with --resume, or choose another --out.",
    4,
)
CKPT_FIT = code("E-CKPT-007", "a checkpoint's tensors do not fit the run", "Use weights of the same model.", 4)

DATA_READ = code(
    "E-DATA-010", "a data file is missing, empty, truncated or unreadable", "Check --data and the file.", 5
)
DATA_KIND = code(
    "E-DATA-011",
    "this data format is not supported",
    "Convert it to .npz, .npy files, .safetensors or .jsonl. Pickle is never read.",
    1,
)
DATA_FIELD = code(
    "E-DATA-012",
    "a field is missing or has another dtype or shape",
    "Write the fields with the dtypes and shapes that the loader declares.",
    1,
)
DATA_RANGE = code("E-DATA-013", "an integer is outside the range that the model can take", "Correct the record.", 1)
DATA_FINITE = code("E-DATA-014", "a value is NaN or infinite", "Correct or remove the record.", 1)
DATA_FEW = code(
    "E-DATA-015", "there are fewer records than one batch takes", "Add records, or make the batch smaller.", 1
)
DATA_LINE = code(
    "E-DATA-016", "a line of a .jsonl file is not a record", "Write one JSON object of numbers on each line.", 1
)

IO_WRITE = code("E-IO-010", "a file or directory cannot be written", "Check the path, its owner and permissions.", 5)
IO_SPACE = code(
    "E-IO-011",
    "there is no space for a file",
    "Free space or raise the limit, then run it again; training continues with --resume.",
    5,
)
IO_READ = code("E-IO-012", "a file cannot be read", "Check the path and its permissions.", 5)

LOCK_HELD = code("E-LOCK-001", "another process uses the directory", "Wait for it, or choose another --out.", 4)

ENV_PACKAGE = code("E-ENV-010", "a package that the runner needs is missing or broken", "Install the package named.", 3)
ENV_LIBRARY = code("E-ENV-011", "the artifact's library cannot be loaded", "Install the library named.", 3)
ENV_LIMIT = code(
    "E-ENV-012",
    "the system gives no more memory, files or threads",
    "Raise the limit (ulimit), or use a larger machine.",
    3,
)

MEM_MACHINE = code(
    "E-MEM-010",
    "the run takes more memory than the machine, or its control group, has left",
    "Make the batch smaller, end other processes, raise the limit, or use a larger machine.",
    3,
)

DEVICE_CALL = code("E-DEVICE-001", "a phase failed on the device", "See its message; the last checkpoint is kept.", 3)
DEVICE_DRIVER = code(
    "E-DEVICE-010",
    "there is no NVIDIA driver, or it does not start",
    "Install the driver named, run on a machine with a GPU, or use an artifact that also has a library for CPUs.",
    3,
)
DEVICE_NONE = code(
    "E-DEVICE-011",
    "no GPU is visible, or the one that --device names is not",
    "Check CUDA_VISIBLE_DEVICES and the list of nvidia-smi; name a number below the count.",
    3,
)
DEVICE_OLD = code(
    "E-DEVICE-012",
    "the NVIDIA driver is older than the artifact's kernels need",
    "Install a driver for the CUDA version named, or a newer one.",
    3,
)
DEVICE_MEMORY = code(
    "E-DEVICE-013",
    "the run takes more memory than the GPU has left",
    "End other processes on the GPU, choose another one, or make the batch smaller.",
    3,
)
DEVICE_BUSY = code(
    "E-DEVICE-014",
    "another process uses the GPU exclusively, or the GPU is not ready",
    "Wait for that process, choose another GPU, or see nvidia-smi for its compute mode.",
    3,
)
DEVICE_FULL = code(
    "E-DEVICE-015",
    "the GPU's memory ran out during the run",
    "End other processes on the GPU, or make the batch smaller; resume from the last checkpoint, which is kept.",
    3,
)
DEVICE_LOST = code(
    "E-DEVICE-016",
    "the GPU failed during the run",
    "See the system log for the error (Xid, ECC). The step in flight is not saved: resume from the last checkpoint.",
    3,
)
TARGET_MACHINE = code(
    "E-TARGET-010", "this machine cannot run the artifact", "Build it for a target that this machine can run.", 3
)
TARGET_ARCH = code(
    "E-TARGET-012",
    "the artifact has no kernels for this GPU",
    "Build it again with the target named in the message added to --target.",
    3,
)
TARGET_DEVICE = code(
    "E-TARGET-013",
    "the artifact has no library for the device that --device names",
    "Leave --device out, or build the artifact with a target for that device too.",
    3,
)
TARGET_NAME = code(
    "E-TARGET-011", "the artifact has no library for this target", "Leave --target out, or name one that it has.", 2
)

NUM_LOSS = code(
    "E-NUM-001",
    "a loss or gradient is not finite",
    "Lower the learning rate, clip gradients or inspect the data; the state before the step is kept. To find the "
    "place, name tensors with (diagnostic :NAME x) and build with --diagnostic NAME: the run lists those that are not "
    "finite.",
    6,
)

NUM_DRAW = code(
    "E-NUM-002",
    "the logits or probabilities of a draw are not a distribution",
    "Look for NaN, infinity or a row of only -infinity in the logits of random-categorical, and for NaN or "
    "infinity in the probabilities of random-bernoulli; the last finished step is kept.",
    6,
)

CLI_USAGE = code("E-CLI-001", "the command line is not understood", "See sexpgpu-run --help.", 2)
CLI_VALUE = code("E-CLI-002", "an option's value is out of range", "Give a value in the range shown.", 2)
CLI_CONFLICT = code("E-CLI-003", "two options exclude each other", "Give one of them.", 2)
CLI_DIAGNOSTIC = code("E-CLI-004", "the artifact does not keep this diagnostic", "Build it with --diagnostic NAME.", 2)
CLI_OUTPUT = code("E-CLI-005", "the output exists, or is an input", "Choose another path, or give --force.", 2)

_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_LIMITS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN)


def of_os_error(error: OSError, where: str = "", otherwise: Code = IO_WRITE) -> RunError:
    """The coded error for a failed system call: no room, a limit of the process, or ``otherwise``."""
    kind = IO_SPACE if error.errno in _SPACE else ENV_LIMIT if error.errno in _LIMITS else otherwise
    location = where or (str(error.filename) if error.filename else "")
    return RunError(kind, error.strerror or str(error) or type(error).__name__, location)
