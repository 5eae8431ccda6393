"""FORMS: how each top-level form, special form and reporting function is written.

The checker (syntax.py), its "did you mean" and docs/run-file.md all follow this table.
"""

from __future__ import annotations

from attrs import frozen

from . import codes as c
from .diagnostics import Code

MAX_COUNT = 2**31 - 1

# What may be asked of a keyword's value while it is a literal; any other form is evaluated, and asked again then.
KINDS: dict[str, str] = {
    "value": "a value",
    "count": f"an integer from 1 to {MAX_COUNT}",
    "trips": f"an integer from 1 to {MAX_COUNT}",
    "seed": "an integer from 0 to 9223372036854775807",
    "flag": "true or false",
    "text": "a string",
    "name": "a name",
    "precision": ":f32 or :bf16",
    "lambda of 2": "a lambda of 2 arguments",
    "lambda of 3": "a lambda of 3 arguments",
}


@frozen
class Key:
    """A keyword of a form; ``kind`` is one of KINDS."""

    name: str
    kind: str
    doc: str
    needed: bool = False

    def shown(self) -> str:
        """``:batch COUNT``, in brackets where it may be left out."""
        text = f":{self.name} {self.kind.upper().split()[0]}"
        return text if self.needed else f"[{text}]"


@frozen
class Row:
    """One form.

    parts: what follows the head, in order: NAME (any name), WORD (a name that is safe in file names), PARAMS, PARAMS2
           (a lambda list of two), VALUE, VALUE?, VALUE*, TEXT (a string literal), BINDINGS, CLAUSE*, CALL*, STAGE*,
           KEYS, BODY
    place: "top", "special" (evaluated in its own way), "function" (called like any other), or "stage"
    fault: the code of an unknown or missing keyword, where the form has its own
    """

    name: str
    place: str
    parts: str
    doc: str
    keys: tuple[Key, ...] = ()
    fault: Code | None = None

    def key(self, name: str) -> Key | None:
        return next((k for k in self.keys if k.name == name), None)

    def signature(self) -> str:
        """``(defloader NAME :source value ... [:shuffle flag])``, as messages and the docs show it."""
        shown = {**SHOWN, "PARAMS2": ARGUMENTS.get(self.name, ""), "KEYS": " ".join(k.shown() for k in self.keys)}
        return f"({' '.join([self.name, *(shown.get(part, part) for part in self.parts.split())])})"


ARGUMENTS = {"defprepare": "(batch ctx)", "defobjective": "(inputs ctx)"}
SHOWN = {
    "WORD": "NAME",
    "PARAMS": "(ARGUMENTS)",
    "TEXT": '"FILE"',
    "BINDINGS": "((NAME VALUE) ...)",
    "CLAUSE*": "(TEST VALUE) ...",
    "CALL*": "(FUNCTION ...) ...",
    "STAGE*": "(stage NAME ...) ...",
    "VALUE?": "[VALUE]",
    "VALUE*": "VALUE ...",
    "BODY": "BODY ...",
}

FORMS: dict[str, Row] = {
    row.name: row
    for row in (
        # -- top level
        Row("include", "top", "TEXT", "Reads another file's forms in this place; each file is read once."),
        Row("def", "top", "NAME VALUE", "Names a value."),
        Row("defun", "top", "NAME PARAMS BODY", "Names a function."),
        Row("defmodel", "top", "WORD PARAMS KEYS BODY", "A model: a function with parameters of its own.", (
            Key("frozen", "flag", "true: its parameters get no gradient and no optimizer state"),
            Key("pretrained", "text", "a file of first values; not available in this version"),
            Key("map", "value", "how the file's names become the model's; not available in this version"),
        )),
        Row("defloader", "top", "WORD KEYS", "Where records come from, and their fields.", (
            Key("source", "value", "a path, a list of paths, or (indices N)", True),
            Key("batch", "count", "records in a batch", True),
            Key("fields", "value", "(list :name [shape] :dtype ...), the shape and dtype of one record", True),
            Key("shuffle", "flag", "whether records are permuted in each epoch; true unless given"),
            Key("epochs", "count", "times the records are gone through; without end unless given"),
            Key("embed", "flag", "true: the data travel in the artifact"),
        )),
        Row("defgenerate", "top", "KEYS", "Makes records in each step, before its training graph reads them.", (
            Key("trips", "trips", "how many times :step runs, 1 or more", True),
            Key("init", "lambda of 2", "(lambda (batch ctx) ...) to the first state", True),
            Key("step", "lambda of 3", "(lambda (state trip ctx) ...) to the next state", True),
            Key("finish", "lambda of 2", "(lambda (state ctx) ...) to what joins the batch; else the last state does"),
        ), c.GEN_FORM),
        Row("defprepare", "top", "PARAMS2 BODY", "A batch to the objective's inputs, a plist of tensors."),
        Row("defobjective", "top", "PARAMS2 BODY", "The inputs to the loss, a scalar f32."),
        Row("defoptimizer", "top", "VALUE", "How parameters follow their gradients."),
        Row("defpass", "top", "WORD KEYS", "An evaluation pass.", (
            Key("loader", "name", "the loader it reads", True),
            Key("every", "count", "steps between two passes", True),
            Key("prepare", "lambda of 2", "(lambda (batch ctx) ...), defprepare's unless given"),
            Key("objective", "lambda of 2", "(lambda (inputs ctx) ...), defobjective's unless given"),
            Key("batches", "count", "batches read in a pass; all of them unless given"),
        )),
        Row("defrun", "top", "WORD KEYS", "The run: what is trained, on what, and for how long.", (
            Key("model", "name", "the defmodel that `model` names in the other forms", True),
            Key("loader", "name", "the training loader", True),
            Key("steps", "count", "optimizer steps; a curriculum whose stages all have :steps may stand for it"),
            Key("seed", "seed", "what parameters, draws and the order of records come from; 0 unless given"),
            Key("microbatches", "count", "batches whose gradients make one step; 1 unless given"),
            Key("precision", "precision", "what matmuls and activations run in; :f32 unless given"),
            Key("checkpoint-every", "count", "steps between two checkpoints; 100 unless given"),
            Key("log-every", "count", "steps between two log lines; 10 unless given"),
            Key("diagnostics", "value", "(list :name ...), the diagnostics that are kept"),
        )),
        Row("defcurriculum", "top", "STAGE*", "The stages of the run, in order."),
        Row("stage", "stage", "WORD KEYS", "One stage of a curriculum; :steps or :records says how long it lasts.", (
            Key("steps", "count", "optimizer steps"),
            Key("records", "count", "records consumed"),
            Key("loader", "name", "the stage's training loader, defrun's unless given"),
        )),
        # -- special forms
        Row("let", "special", "BINDINGS BODY", "Names values, each computed without the others."),
        Row("let*", "special", "BINDINGS BODY", "Names values, each may use those before it."),
        Row("lambda", "special", "PARAMS BODY", "A function without a name."),
        Row("if", "special", "VALUE VALUE VALUE?", "The second unless the first is nil or false, else the third."),
        Row("cond", "special", "CLAUSE*", "The value of the first clause whose test is neither nil nor false, or nil."),
        Row("and", "special", "VALUE*", "The first that is nil or false, else the last; bool tensors per element."),
        Row("or", "special", "VALUE*", "The first but nil and false, else the last; bool tensors per element."),
        Row("->", "special", "VALUE CALL*", "Threads a value: it is the first argument of the first call, and so on."),
        Row("scope", "special", "VALUE BODY", "Nests the names of the parameters declared in its body."),
        Row("checkpoint", "special", "BODY", "Its body is computed again in the backward pass instead of kept."),
        # -- functions with a fixed way of writing
        Row("param", "function", "VALUE VALUE KEYS", "A parameter of the model around it, in the scope around it.", (
            Key("init", "value", "a function of the shape: zeros, xavier, (normal 0.02) ...", True),
        )),
        Row("metric", "function", "VALUE VALUE", "Reports a scalar: (metric :name scalar)."),
        Row("diagnostic", "function", "VALUE VALUE", "Reports a tensor, when selected: (diagnostic :name tensor)."),
        Row("counter", "function", "VALUE VALUE", "Adds a scalar to a running total: (counter :name scalar)."),
    )
}  # fmt: skip

TOP = tuple(name for name, row in FORMS.items() if row.place == "top")
SPECIAL = tuple(name for name, row in FORMS.items() if row.place == "special")
FUNCTION = frozenset(name for name, row in FORMS.items() if row.place == "function")
RESERVED = frozenset((*TOP, *SPECIAL))
