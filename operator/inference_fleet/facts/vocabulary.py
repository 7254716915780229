"""May this draft guess for this target? Each engine's own rule, applied before any pod starts. Pure.

llama.cpp (`common_speculative_are_compatible`, common/speculative.cpp): the same kind of tokenizer, the same begin and end tokens
where they are added, sizes that differ by at most 128, and from token 5 on the same texts as far as both vocabularies go. An engine
whose draft fails this starts all the same, says so in its log only, and never drafts (seen in build 11549). vLLM
(`verify_equal_vocab_size_if_draft_model`, config/speculative.py): equal sizes, nothing else; it does not start otherwise.

Facts carry a size and a digest of the tokens, not the tokens: what they leave open is decided by the draft sidecar, which has both
files and compares them token by token before it lets the engine start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from inference_fleet.api.model import ModelFacts

LLAMA_CPP_SIZE_DIFFERENCE = 128
"""`SPEC_VOCAB_MAX_SIZE_DIFFERENCE`."""

LLAMA_CPP_FIRST_TOKEN = 5
"""`SPEC_VOCAB_CHECK_START_TOKEN_ID`: tokens below are not compared."""

MISMATCH = "VocabularyMismatch"
LEFT_TO_ENGINE = -1


@dataclass(frozen=True, slots=True)
class Compatibility:
    """The verdict. `message` always names both sizes.

    With `ok`, `reason` is Compatible; TokensDiffer where the engine would start but few guesses can be right; or DecidedByDraft
    where only the files can tell. Without, it is VocabularyMismatch.
    """

    ok: bool
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """A vocabulary with its texts, as far as an engine compares it.

    `begin` and `end` are the tokens that are added to a prompt: None where none is, LEFT_TO_ENGINE where the file does not say and
    each engine has its own default, which is then not compared here.
    """

    model: str
    texts: Sequence[bytes]
    begin: int | None
    end: int | None


def compatible(engine_type: str, target: ModelFacts, draft: ModelFacts) -> Compatibility:
    """Judge by facts alone. `engine_type` is LlamaCpp or VLLM; any other engine gets vLLM's rule."""
    sizes = _sizes(target.vocabulary_size, draft.vocabulary_size)
    digests = (target.tokens_digest, draft.tokens_digest)
    same = digests[0] == digests[1]
    if engine_type != "LlamaCpp":
        if target.vocabulary_size != draft.vocabulary_size:
            return Compatibility(False, MISMATCH, f"{sizes}; vLLM wants equal sizes: choose another draft.")
        if None in digests:
            return Compatibility(
                True, "DecidedByDraft", f"{sizes}; whether the tokens agree is seen when both are inspected."
            )
        if not same:
            return Compatibility(True, "TokensDiffer", f"{sizes}, but not the same tokens: few guesses will be right.")
        return Compatibility(True, "Compatible", f"{sizes} and are the same.")
    kinds = (target.tokenizer_model, draft.tokenizer_model)
    if None not in kinds and kinds[0] != kinds[1]:
        message = f"{sizes} and are of different kinds, {kinds[0]} and {kinds[1]}: choose a draft of the same family."
        return Compatibility(False, MISMATCH, message)
    difference = abs(target.vocabulary_size - draft.vocabulary_size)
    if difference > LLAMA_CPP_SIZE_DIFFERENCE:
        return Compatibility(False, MISMATCH, f"{sizes}; llama.cpp allows a difference of 128: choose another draft.")
    if None in digests:
        return Compatibility(
            True, "DecidedByDraft", f"{sizes}; whether the tokens agree is seen when both are inspected."
        )
    if same:
        return Compatibility(True, "Compatible", f"{sizes} and agree as far as both go.")
    if difference == 0:
        return Compatibility(False, MISMATCH, f"{sizes}, but not the same tokens: choose a draft of the same family.")
    return Compatibility(
        True, "DecidedByDraft", f"{sizes}; the draft compares them token by token before the engine starts."
    )


def compatible_tokens(target: Tokenizer, draft: Tokenizer) -> Compatibility:
    """llama.cpp's whole rule, on the files' own tokens."""
    sizes = _sizes(len(target.texts), len(draft.texts))
    if target.model != draft.model:
        return Compatibility(False, MISMATCH, f"{sizes} and are of different kinds, {target.model} and {draft.model}.")
    for what, ours, theirs in (("begin", target.begin, draft.begin), ("end", target.end, draft.end)):
        if ours != theirs and LEFT_TO_ENGINE not in (ours, theirs):
            message = f"{sizes}, but the tokens added at the {what} differ: {_added(ours)} and {_added(theirs)}."
            return Compatibility(False, MISMATCH, message)
    if abs(len(target.texts) - len(draft.texts)) > LLAMA_CPP_SIZE_DIFFERENCE:
        return Compatibility(False, MISMATCH, f"{sizes}; llama.cpp allows a difference of {LLAMA_CPP_SIZE_DIFFERENCE}.")
    pairs = enumerate(zip(target.texts, draft.texts, strict=False))
    for number, (wanted, found) in islice(pairs, LLAMA_CPP_FIRST_TOKEN, None):
        if wanted != found:
            texts = f"{wanted[:40].decode('utf-8', 'replace')!r} and {found[:40].decode('utf-8', 'replace')!r}"
            return Compatibility(False, MISMATCH, f"{sizes}, but token {number} differs: {texts}.")
    return Compatibility(True, "Compatible", f"{sizes} and agree as far as both go.")


def _added(token: int | None) -> str:
    return "none" if token is None else str(token)


def _sizes(target: int, draft: int) -> str:
    return f"The vocabularies of target and draft have {target} and {draft} tokens"
