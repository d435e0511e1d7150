"""The guard for prompts, the record of Qwen3's template, and teaching an end."""

import copy
import os

import matplotlib
import pytest
from tokenizers.processors import TemplateProcessing

from rrlforge import models, records, tasks, templates
from rrlforge.errors import ForgeError

matplotlib.use("Agg")
PROBLEM = tasks.Problem("1+1?", "2", "1+1=2\n\\boxed{2}")
TASK = tasks.Task("t", "", [], [], 8)
THINK_END = "{% if add_generation_prompt and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}"


@pytest.fixture
def tokenizer():
    return models.character_tokenizer()


def encode(tokenizer, text):
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def test_a_prompt_of_the_template_passes_and_gives_its_question(tokenizer):
    assert templates.check_prompt(tokenizer, tasks.prompt_ids(tokenizer, PROBLEM, TASK)) == "1+1?"


@pytest.mark.parametrize("make, fault", [
    (lambda text: "1+1?", "begins with"),
    (lambda text: text[:-1], "ends with"),
    (lambda text: text.removesuffix("<|im_start|>assistant\n"), "ends with"),
    (lambda text: text + "<think>\n\n</think>\n\n", "ends with"),
    (lambda text: "<|endoftext|>" + text, "begins with"),
    (lambda text: f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n", r"special token <\|im_"),
], ids=["plain", "stripped", "no generation prompt", "think block", "bos", "twice"])
def test_a_prompt_made_otherwise_is_refused_in_one_line(tokenizer, make, fault):
    text = make(tasks.prompt_text(tokenizer, PROBLEM, TASK))
    assert not templates.is_templated(tokenizer, encode(tokenizer, text))
    with pytest.raises(ForgeError, match=fault) as error:
        templates.check_prompt(tokenizer, encode(tokenizer, text))
    assert "\n" not in str(error.value)


def test_thinking_on_and_off_are_told_apart(tokenizer):
    tokenizer.chat_template += THINK_END
    off, on = (tasks.prompt_ids(tokenizer, PROBLEM, TASK, thinking) for thinking in (False, True))
    assert templates.check_prompt(tokenizer, off) == templates.check_prompt(tokenizer, on, thinking=True) == "1+1?"
    for ids, thinking in ((on, False), (off, True)):
        with pytest.raises(ForgeError, match="ends with"):
            templates.check_prompt(tokenizer, ids, thinking)


def test_a_second_bos_is_refused(tokenizer):
    llama = copy.deepcopy(tokenizer)
    llama.chat_template = "<|endoftext|>" + tokenizer.chat_template
    llama.backend_tokenizer.post_processor = TemplateProcessing(
        single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 0)])
    assert templates.check_prompt(llama, tasks.prompt_ids(llama, PROBLEM, TASK)) == "1+1?"
    with pytest.raises(ForgeError, match="begins with"):
        templates.check_prompt(llama, llama(tasks.prompt_text(llama, PROBLEM, TASK))["input_ids"])


def test_teaching_ends_with_the_mask_it_is_given():
    model, tokenizer = models.untrained(models.Recipe(hidden=32, layers=1, ffn=32)), models.character_tokenizer()
    seen = []

    def mask_of(ids, length, pad):
        seen.append((ids[length - 1], set(ids[length:])))
        return [int(t < length) for t in range(len(ids))]

    before = model.get_input_embeddings().weight.clone()
    taught = templates.teach_ending(model, tokenizer, "<|im_end|>", mask_of, steps=2)
    assert len(seen) == 24 and not taught.training
    assert all(last == tokenizer.eos_token_id and padding <= {tokenizer.eos_token_id} for last, padding in seen)
    assert (model.get_input_embeddings().weight == before).all()
    assert not (taught.get_input_embeddings().weight == before).all()


def test_log_probs_of_a_completion_are_those_of_its_places():
    import torch

    model, prompt, completion = models.untrained(models.Recipe(hidden=32, layers=1, ffn=32)), [5, 6, 7], [8, 2]
    with torch.no_grad():
        table = model(input_ids=torch.tensor([prompt + completion])).logits[0].log_softmax(-1)
    got = templates.completion_logprobs(model, prompt, completion)
    torch.testing.assert_close(got, torch.stack([table[2, 8], table[3, 2]]))


def test_the_drawn_row_has_a_mask_of_ones_from_the_think_block_to_the_end_token():
    import matplotlib.pyplot as plt

    fig, ax = plt.subplots()
    series = records.load("templates/qwen3")["series"]
    templates.training_row(ax, series)
    texts = [t.get_text() for t in ax.texts]
    labels, marks = texts[::2], texts[1::2]
    first, end = len(series["no_think_ids"]), len(series["dialogue_ids"]) - 1
    assert marks == ["0"] * first + ["1"] * (end - first) + ["0", "0"]
    assert labels[end - 1] == "<|im_end|>" and labels[first - 2] == "</think>"
    plt.close(fig)


def test_boxes_wrap_and_none_is_lost():
    import matplotlib.pyplot as plt

    fig, ax = plt.subplots()
    templates.token_boxes(ax, ["<|im_start|>", "杯子", "$"], ["w", "w", "w"], ["0", "1", "1"], line=7)
    assert len(ax.patches) == 3 and ax.patches[1].get_y() < ax.patches[0].get_y()
    assert max(p.get_x() + p.get_width() for p in ax.patches) <= 7
    plt.close(fig)


def test_the_record_stands_unless_measuring_is_asked_for(monkeypatch):
    kept = records.load("templates/qwen3")
    monkeypatch.delenv("RRLFORGE_MEASURE", raising=False)
    assert templates.remeasured(kept) is kept
    assert [kept["figures"][k] for k in ("eos_id", "pad_id")] == [151645, 151643]
    s = kept["series"]
    assert s["no_think_ids"] == s["think_ids"] + [151667, 271, 151668, 271]
    assert s["end_ids"] == [151643, 151645]


def test_a_folder_without_a_tokenizer_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("RRLFORGE_QWEN3", str(tmp_path))
    with pytest.raises(ForgeError, match="no tokenizer.json: let RRLFORGE_QWEN3 name"):
        templates.load_qwen3()


@pytest.mark.skipif("RRLFORGE_TEST_QWEN3" not in os.environ, reason="RRLFORGE_TEST_QWEN3 names no folder")
def test_measured_anew_the_record_is_the_same(monkeypatch, capsys):
    monkeypatch.setenv("RRLFORGE_QWEN3", os.environ["RRLFORGE_TEST_QWEN3"])
    monkeypatch.setenv("RRLFORGE_MEASURE", "1")
    kept = records.load("templates/qwen3")
    assert templates.remeasured(kept) == kept
    assert capsys.readouterr().out == "本机重测：和记录一字不差\n"
    kept["figures"] = {**kept["figures"], "eos_id": 0}
    templates.remeasured(kept)
    assert "不同的有 eos_id" in capsys.readouterr().out
