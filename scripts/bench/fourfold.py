"""An example's text with four microbatches, so that they can be stacked.

Two of the examples have one microbatch, and salt their draws by it: here all four are salted by the step alone, which
gives them the same draws and costs the same.
"""

SALT = "(+ (* (getf ctx :step) 65536) (getf ctx :microbatch))"


def fourfold(text: str) -> str:
    text = text.replace(SALT, "(* (getf ctx :step) 65536)").replace(":microbatches 2", ":microbatches 4")
    return text if ":microbatches" in text else text.replace(" :seed ", " :microbatches 4 :seed ")
