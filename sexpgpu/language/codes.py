"""CODES: every diagnostic code of the language and the build. ``docs/errors.md`` is generated from this table.

Names are stable: a code is never reused for another fault. GEN-001, 002, 004, CONTRACT-005 and 010 are the seed page's.
"""

from __future__ import annotations

from .diagnostics import Code

CODES: dict[str, Code] = {}


def code(name: str, summary: str, fix: str, exit: int = 1) -> Code:
    """Add a row to CODES. ``exit``: the status of the command that ends with it. ValueError for a name twice."""
    if name in CODES:
        raise ValueError(f"{name} is declared twice")
    CODES[name] = made = Code(name, summary, fix, exit)
    return made


READ_FILE = code("E-READ-001", "a file cannot be read", "Check the path and its permissions.")
READ_EMPTY = code("E-READ-002", "a run file contains no forms", "Write the run's forms; see docs/run-file.md.")
READ_UNCLOSED = code("E-READ-003", "a list or vector is not closed", "Add the missing bracket.")
READ_CLOSE = code(
    "E-READ-004", "a closing bracket has no opening one, or one of another kind", "Remove it, or match the opening one."
)
READ_UNTERMINATED = code("E-READ-005", "a string or block comment does not end", "Close it.")
READ_DEPTH = code("E-READ-006", "forms nest too deeply", "Name the inner parts with let* or defun.")
READ_INTEGER = code("E-READ-007", "an integer does not fit 64 bits", "Use a smaller integer, or a float.")
READ_FLOAT = code("E-READ-008", "a number is not finite", "Write a finite number.")
READ_BYTES = code("E-READ-009", "the text is not valid UTF-8, or contains a NUL", "Save the file as UTF-8 text.")
READ_CHARACTER = code("E-READ-010", "a character is not allowed here", "Remove it, or put it in a string.")
READ_SIZE = code("E-READ-011", "a source is too large or not a regular file", "Name a text file of at most 16 MiB.")
READ_SYNTAX = code("E-READ-012", "this Lisp syntax is not part of the language", "Write it with plain lists.")
READ_INCLUDE = code(
    "E-READ-013", "an include is wrong", "Include a file by a relative path that exists, without a cycle."
)
READ_LIMIT = code(
    "E-READ-014", "a file has too many items, or a string or name is too long", "Split it, or move it to a data file."
)

FORM_KEYWORD = code("E-FORM-001", "a form does not take this keyword", "Use one of the form's keywords.")
FORM_MISSING = code("E-FORM-002", "a form lacks a part it needs", "Add the part.")
FORM_DUPLICATE = code("E-FORM-003", "a keyword is given twice", "Keep one of them.")
FORM_SHAPE = code("E-FORM-004", "a form does not follow its grammar", "Write it as docs/run-file.md shows.")
FORM_LIMIT = code(
    "E-FORM-005", "the run file expands without end, or too far", "Remove the recursion, or make it smaller."
)
FORM_TOP = code("E-FORM-006", "this form is not allowed at top level", "Use one of the top-level forms.")
FORM_ABSENT = code("E-FORM-007", "the run lacks a top-level form", "Add the form.")
FORM_TWICE = code("E-FORM-008", "a top-level form is given twice", "Keep one of them.")
FORM_VALUE = code("E-FORM-009", "a keyword's value is not of the right kind", "Give a value in the range shown.")

NAME_UNKNOWN = code("E-NAME-001", "a name is not defined", "Define it, or correct the spelling.")
NAME_TWICE = code("E-NAME-002", "a name is defined twice", "Rename or remove one of the two.")

CALL_COUNT = code("E-CALL-001", "a call has the wrong number of arguments", "Give the arguments of the signature.")
CALL_KEYWORD = code("E-CALL-002", "a call has an unknown or unpaired keyword", "Use the keywords of the signature.")
CALL_FUNCTION = code(
    "E-CALL-003", "the value that is called is not a function", "Call a function, an operator or a model."
)
CALL_VALUE = code("E-CALL-004", "an argument is of the wrong kind", "Give a value of the kind named.")
CALL_ERROR = code("E-CALL-005", "an assert or error of the run file itself", "See its message.")

TYPE_MIX = code("E-TYPE-001", "dtypes do not agree", "Convert with cast: there is no silent promotion.")
TYPE_CONDITION = code("E-TYPE-002", "a tensor is used as a trace-time condition", "Choose per element with where.")
TYPE_NUMBER = code("E-TYPE-003", "a number does not fit the tensor's dtype", "Cast the tensor, or change the number.")
TYPE_TENSOR = code("E-TYPE-004", "a tensor is needed, or is not allowed, here", "Give a value of the kind named.")
SHAPE_FIT = code("E-SHAPE-001", "shapes do not fit", "Reshape, or correct a dimension.")

PARAM_SCOPE = code("E-PARAM-001", "a parameter is declared outside a model", "Declare parameters inside a defmodel.")
PARAM_CLASH = code("E-PARAM-002", "one parameter name has two meanings", "Give each its own scope or name.")
PARAM_INIT = code(
    "E-PARAM-003",
    "an init does not return a value for its parameter",
    "Return an f32 tensor of the shape that the init gets.",
)
PARAM_WEIGHTS = code(
    "E-PARAM-004", "pretrained weights are not available in this version", "Leave :pretrained and :map out."
)

CONTRACT_PREPARE = code(
    "E-CONTRACT-001", "prepare does not return a plist of tensors", "Return (list :name tensor ...)."
)
CONTRACT_LOSS = code(
    "E-CONTRACT-002", "objective does not return a scalar f32 loss", "Reduce it: mean or sum, then cast."
)
CONTRACT_OPTIMIZER = code(
    "E-CONTRACT-003", "an optimizer breaks its contract", "Return :param and the state's keys, with their types."
)
CONTRACT_METRIC = code(
    "E-CONTRACT-004",
    "a metric or counter is not a scalar, or its name is taken",
    "Reduce it to a scalar under its own name.",
)
CONTRACT_GENERATED = code(
    "E-CONTRACT-005",
    "prepare reads a generated name where the generator does not run",
    "Give the pass its own :prepare, or a loader with the training loader's fields and batch size.",
)
CONTRACT_FIELD = code(
    "E-CONTRACT-006",
    "the batch has no such field",
    "Name a field of the loader, or an entry that the generator returns.",
)
CONTRACT_PLACE = code(
    "E-CONTRACT-007", "a metric or diagnostic outside objective", "Report metrics and diagnostics from objective."
)
CONTRACT_RATE = code(
    "E-CONTRACT-008",
    "a learning rate is neither a number nor a function of ctx that returns a scalar",
    "Give a number or (lambda (ctx) scalar).",
)
CONTRACT_COUNTER = code("E-CONTRACT-010", "a counter is declared outside prepare", "Declare counters in prepare.")

GEN_STATE = code(
    "E-GEN-001", "a generator returns something other than a plist of tensors", "Return (list :name tensor ...)."
)
GEN_CHANGE = code(
    "E-GEN-002",
    "a generator's state changes its keys, shapes or dtypes",
    "Return from :step the keys, shapes and dtypes of :init; cast or reshape where needed.",
)
GEN_NAME = code("E-GEN-003", "a generated name is a loader's field", "Rename the entry.")
GEN_REPORT = code(
    "E-GEN-004",
    "a metric is reported inside a generator",
    "Return the value in the state and report it from objective.",
)
GEN_TRIPS = code("E-GEN-005", ":trips is not an integer of 1 or more", "Give an integer from 1 to 2147483647.")
GEN_FORM = code(
    "E-GEN-006",
    "a part of defgenerate is missing or wrong",
    "Give :trips, and the lambdas :init, :step and optionally :finish with the arguments of docs/generation.md.",
)

STACK_DEGREE = code("E-STACK-001", "the degree of --stack does not fit the run", "Give a smaller degree, or auto.", 2)
STACK_READ = code(
    "E-STACK-002",
    "the generator reads a context value that differs between stacked microbatches",
    "Read :step instead, for example in a salt, or leave --stack out.",
)

GRAD_NONE = code(
    "E-GRAD-001",
    "an operator on the way to the loss has no gradient",
    "Wrap its input in stop-gradient, or use another operator.",
)

DATA_SOURCE = code(
    "E-DATA-001", "a loader's source cannot be used", "Name .npz, .npy, .safetensors or .jsonl files, or (indices N)."
)
DATA_FIELD = code(
    "E-DATA-002", "a loader's field does not fit its source", "Match the field's name, shape and dtype to the file."
)

TARGET_NAME = code("E-TARGET-001", "no such target", "See sexpgpu targets.", 2)
TARGET_SCHEDULE = code(
    "E-TARGET-002", "a kernel has no schedule", "Leave --strict-schedules out, or report the kernel."
)
TARGET_RUNTIME = code(
    "E-TARGET-003",
    "the runtime library does not fit the target",
    "Give --runtime the libtvm_runtime.so of the tvm wheel for the target's machine.",
    3,
)
TARGET_MIXED = code(
    "E-TARGET-004",
    "the targets are for two kinds of machine",
    "Build one artifact for each: an artifact contains one runtime library.",
    2,
)
TARGET_UNBOUND = code(
    "E-TARGET-005", "a kernel is not bound to a GPU's threads", "Report the kernel, or build for a CPU."
)
TARGET_BOOL = code(
    "E-TARGET-006", "a GPU kernel reads or writes vectors of bool", "Report the kernel: the code would be wrong."
)
TUNE_RECORDS = code(
    "E-TUNE-001", "tuning records cannot be used", "Use the file as sexpgpu tune wrote it, or tune again."
)
DEF_VALUE = code("E-DEF-001", "-D sets no def of the run file", "Name a def whose value is a number or a string.", 2)
TUNE_MISSING = code("E-TUNE-002", "a kernel has no tuning record", "Tune the run, or leave --require-tuned out.")
TUNE_PLACE = code(
    "E-TUNE-003",
    "there is no machine to measure kernels on",
    "Start a tracker and a server, as docs/tuning.md shows, or tune for this machine's CPU.",
    3,
)
TUNE_TARGET = code("E-TUNE-004", "tuning is for one target", "Name one; see sexpgpu targets.", 2)
TUNE_NONE = code("E-TUNE-005", "no kernel has the name that --only gives", "Name one, or leave --only out.", 2)
MEM_LIMIT = code(
    "E-MEM-001",
    "the run takes more memory than --memory-limit allows, or than the card of a target has",
    "Make the batch smaller and use more microbatches, raise the limit, or name a larger card. More microbatches "
    "change a mean over only some of the records, unless it is a mean-over-step.",
    3,
)
ENV_MISSING = code("E-ENV-001", "a part that this command needs is not installed", "Install the extra named.", 3)
IO_WRITE = code("E-IO-001", "a file cannot be written", "Check the path, its permissions and the free space.", 5)

# Warnings: the run is built all the same.
WARN_MASK = code(
    "W-DRAW-001",
    "a mask is the same in every step",
    "Give the draw a :salt that changes from step to step, such as (getf ctx :step).",
    0,
)
