"""May a draft guess for a target? The engines' own rules."""

from __future__ import annotations

import pytest

from inference_fleet.api.model import Attention, ModelFacts
from inference_fleet.facts.vocabulary import LEFT_TO_ENGINE, Tokenizer, compatible, compatible_tokens


def facts(size: int, digest: str = "d", model: str | None = "gpt2") -> ModelFacts:
    return ModelFacts(
        architecture="llama", parameters=1, layers=1, hidden_size=1, key_value_heads=1, attention_heads=1, head_dimension=1,
        attention=Attention.MHA, vocabulary_size=size, tokens_digest=digest, max_context_tokens=1, weight_bits=16,
        tokenizer_model=model,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("engine", "target", "draft", "ok", "reason"),
    [
        ("VLLM", facts(1000), facts(1000), True, "Compatible"),
        ("VLLM", facts(1000), facts(1000, "other"), True, "TokensDiffer"),
        ("VLLM", facts(1000), facts(1001), False, "VocabularyMismatch"),
        ("VLLM", facts(152064), facts(151936), False, "VocabularyMismatch"),
        ("LlamaCpp", facts(1000), facts(1000), True, "Compatible"),
        ("LlamaCpp", facts(152064), facts(151936), True, "Compatible"),
        ("LlamaCpp", facts(1000), facts(1128, "other"), True, "DecidedByDraft"),
        ("LlamaCpp", facts(1000), facts(1129, "other"), False, "VocabularyMismatch"),
        ("LlamaCpp", facts(1129), facts(1000), False, "VocabularyMismatch"),
        ("LlamaCpp", facts(1000), facts(1000, "other"), False, "VocabularyMismatch"),
        ("LlamaCpp", facts(1000), facts(1000, model="llama"), False, "VocabularyMismatch"),
        ("LlamaCpp", facts(1000), facts(1000, model=None), True, "Compatible"),
    ],
)
def test_by_facts(engine: str, target: ModelFacts, draft: ModelFacts, ok: bool, reason: str) -> None:
    verdict = compatible(engine, target, draft)
    assert (verdict.ok, verdict.reason) == (ok, reason)
    assert f"{target.vocabulary_size} and {draft.vocabulary_size} tokens" in verdict.message


TEXTS = tuple(b"t%d" % number for number in range(300))


def tokenizer(
    texts: tuple[bytes, ...] = TEXTS, model: str = "gpt2", begin: int | None = None, end: int | None = None
) -> Tokenizer:
    return Tokenizer(model, texts, begin, end)


@pytest.mark.parametrize(
    ("draft", "ok", "says"),
    [
        (tokenizer(), True, "300 and 300 tokens"),
        (tokenizer(TEXTS[:172]), True, "300 and 172 tokens"),
        (tokenizer(TEXTS[:171]), False, "difference of 128"),
        (tokenizer((b"other",) * 5 + TEXTS[5:]), True, "agree"),
        (tokenizer((*TEXTS[:5], b"other", *TEXTS[6:])), False, "token 5 differs: 't5' and 'other'"),
        (tokenizer((*TEXTS[:299], b"last")), False, "token 299 differs"),
        (tokenizer(model="llama"), False, "different kinds, gpt2 and llama"),
        (tokenizer(begin=1), False, "at the begin differ: none and 1"),
        (tokenizer(end=2), False, "at the end differ: none and 2"),
        (tokenizer(begin=LEFT_TO_ENGINE), True, "agree"),
    ],
)
def test_by_tokens(draft: Tokenizer, ok: bool, says: str) -> None:
    verdict = compatible_tokens(tokenizer(), draft)
    assert verdict.ok is ok and says in verdict.message
