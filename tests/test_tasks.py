"""The two tasks: reading GSM8K, generating and splitting arithmetic, prompts by template."""
import json
import os
import random
import re
import socket
import sys
import time
from types import SimpleNamespace

import httpx
import jinja2
import pytest

from rrlforge import tasks
from rrlforge.answers import is_correct
from rrlforge.errors import ForgeError

ROW = {"question": "How many?", "answer": "6*7=<<6*7=42>>42\n#### 42"}


@pytest.fixture(autouse=True)
def no_environment(monkeypatch):
    for name in ("RRLFORGE_GSM8K", "RRLFORGE_MODELSCOPE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def folder(tmp_path):
    for split in tasks.SPLITS:
        (tmp_path / f"{split}.jsonl").write_text(json.dumps(ROW) + "\n")
    return tmp_path


# ---------------------------------------------------------------- GSM8K from a folder

def test_a_folder_gives_both_splits_with_gold_numbers(folder):
    more = ["#### 1,234", "#### -3", "####  2.50 \n", "#### 3/4", "####18", "#### −7"]
    rows = [ROW, *({**ROW, "answer": answer} for answer in more)]
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = tasks.load_task("gsm8k", folder)
    assert [p.answer for p in task.train] == ["42", "1234", "-3", "2.5", "3/4", "18", "-7"]
    assert task.test == [tasks.Problem("How many?", "42", ROW["answer"])]
    assert task.max_new_tokens == 400 and r"\boxed{}" in task.instruction


def test_the_environment_names_a_folder(folder, monkeypatch):
    monkeypatch.setenv("RRLFORGE_GSM8K", str(folder))
    assert len(tasks.load_task("gsm8k").test) == 1


def test_byte_order_mark_crlf_blank_lines_and_line_separators_are_read(folder):
    row = json.dumps({**ROW, "question": "一\u2028二"}, ensure_ascii=False)
    (folder / "test.jsonl").write_bytes(b"\xef\xbb\xbf" + f"{row}\r\n\r\n{row}\r\n".encode())
    assert [p.question for p in tasks.load_task("gsm8k", folder).test] == ["一\u2028二"] * 2


@pytest.mark.parametrize("line, says", [
    ('{"question": "a", "answer": ', "no JSON"),
    ('["question", "answer"]', "field 'question'"),
    ('{"question": "a"}', "field 'answer'"),
    ('{"question": "  ", "answer": "#### 1"}', "field 'question'"),
    ('{"question": "a", "answer": 5}', "field 'answer'"),
    ('{"question": "a", "answer": "it is 5"}', "#### N"),
    ('{"question": "a", "answer": "#### five"}', "#### N"),
    *(('{"question": "a", "answer": "6*7=42\\n#### %s"}' % gold, "one number and nothing else")
      for gold in (
        "12 (not 13)", "12 13", "12, 13", "12 or 13", "12 eggs", "1,00,000", "1,23", "2^3", "--3", "1/0",
        "12 #### 13", "", "$", "x = 12", "12\\n13", "9" * 2001)),
    ('{"question": 7, "answer": "#### 5"}', "field 'question'"),
    ("[" * 10**5, "cannot be read (RecursionError)"),
    ('{"question": ' + "[" * 10**5, "cannot be read (RecursionError)"),
    ('{"question": ' + "9" * 5000 + ', "answer": "#### 5"}', "cannot be read (ValueError)"),
    (r'{"question": "a\ud83d", "answer": "#### 5"}', r"half a character (\ud83d) in field 'question'"),
    (r'{"question": "a", "answer": "\udc00 #### 5"}', r"half a character (\udc00) in field 'answer'"),
])
def test_a_bad_line_is_named_in_one_line(folder, line, says):
    (folder / "train.jsonl").write_text(json.dumps(ROW) + "\n" + line + "\n")
    with pytest.raises(ForgeError) as caught:
        tasks.load_task("gsm8k", folder)
    assert f"{folder / 'train.jsonl'}:2 " in str(caught.value) and says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content, says", [
    (b"", "is empty"), (b"\xef\xbb\xbf", "is empty"), (b"\n \n", "is empty"), (b"\r\n", "is empty"),
    (b"\xff\xfe", "is not UTF-8"), (b"PAR1\x15\x04\xff\x00PAR1", "is not UTF-8"), (None, "is missing")])
def test_an_unusable_file_is_named(folder, content, says):
    path = folder / "test.jsonl"
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(ForgeError, match=f"test.jsonl {says}"):
        tasks.load_task("gsm8k", folder)


def test_a_folder_in_place_of_a_file_is_named(folder):
    (folder / "train.jsonl").unlink()
    (folder / "train.jsonl").mkdir()
    with pytest.raises(ForgeError, match=r"train.jsonl cannot be read \(Is a directory\)"):
        tasks.load_task("gsm8k", folder)


def test_a_line_of_a_whole_pair_of_surrogates_is_read(folder):
    (folder / "test.jsonl").write_text(r'{"question": "\ud83d\ude00", "answer": "#### 5"}')
    assert tasks.load_task("gsm8k", folder).test[0].question == "\U0001f600"


def test_a_home_folder_of_nobody_is_refused_in_one_line():
    with pytest.raises(ForgeError, match="no folder ~nobody-of-this-name/x/y"):
        tasks.load_task("gsm8k", "~nobody-of-this-name/x/y")


def test_a_missing_folder_and_a_file_in_its_place_are_refused(folder):
    for place in (folder / "none", folder / "test.jsonl"):
        with pytest.raises(ForgeError, match="no folder"):
            tasks.load_task("gsm8k", place)


def test_unknown_tasks_and_data_for_the_generated_one_are_refused():
    with pytest.raises(ForgeError, match="choose gsm8k or arith"):
        tasks.load_task("gsm9k")
    with pytest.raises(ForgeError, match="is generated"):
        tasks.load_task("arith", "somewhere")


@pytest.mark.skipif("RRLFORGE_TEST_GSM8K" not in os.environ, reason="RRLFORGE_TEST_GSM8K names no folder")
def test_the_whole_of_gsm8k_is_read():
    task = tasks.load_task("gsm8k", os.environ["RRLFORGE_TEST_GSM8K"])
    assert (len(task.train), len(task.test)) == (7473, 1319)
    for problem in task.train + task.test:
        assert re.fullmatch(r"-?\d+", problem.answer) and is_correct(problem.solution, problem.answer)


# ---------------------------------------------------------------- hubs

@pytest.fixture
def hub(monkeypatch, tmp_path):
    from huggingface_hub import constants

    def set_endpoint(url):
        monkeypatch.setattr(constants, "ENDPOINT", url)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)

    return set_endpoint


@pytest.fixture
def silent_server():
    """Accepts connections and never answers, as a blocked hub may."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def closed_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    return f"http://127.0.0.1:{port}"


@pytest.mark.parametrize("kind", ["silent_server", "closed_port"])
def test_a_hub_that_does_not_answer_ends_soon_with_what_to_set(kind, hub, request, monkeypatch):
    monkeypatch.setattr(tasks, "TIMEOUT", 0.5)
    hub(request.getfixturevalue(kind))
    start = time.perf_counter()
    with pytest.raises(ForgeError) as caught:
        tasks.load_task("gsm8k")
    assert time.perf_counter() - start < 20  # the import of the hub's client included
    message = str(caught.value)
    assert "\n" not in message
    assert all(name in message for name in ("HF_ENDPOINT", "RRLFORGE_MODELSCOPE=1", "RRLFORGE_GSM8K"))


def test_a_hub_switched_off_is_said_to_be_so(hub, monkeypatch):
    from huggingface_hub import constants

    hub("http://127.0.0.1:9")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ForgeError, match="is not asked .HF_HUB_OFFLINE is set."):
        tasks.load_task("gsm8k")


def write_parquet(folder):
    import datasets

    (folder / "main").mkdir()
    for split in tasks.SPLITS:
        rows = datasets.Dataset.from_list([{**ROW, "question": split}])
        rows.to_parquet(folder / "main" / f"{split}-00000-of-00001.parquet")


def test_the_hubs_parquet_layout_is_read(tmp_path, monkeypatch, hub):
    import huggingface_hub

    write_parquet(tmp_path)
    asked = []
    monkeypatch.setattr(tasks, "is_reachable", lambda endpoint: True)
    monkeypatch.setattr(huggingface_hub, "snapshot_download",
                        lambda repo, **kwargs: asked.append((repo, kwargs)) or str(tmp_path))
    task = tasks.load_task("gsm8k")
    assert [p.question for p in task.train + task.test] == ["train", "test"]
    assert asked[0][0] == "openai/gsm8k" and asked[0][1]["repo_type"] == "dataset"


def test_a_folder_in_the_hubs_layout_is_read_from_disk(tmp_path):
    write_parquet(tmp_path)
    assert [p.question for p in tasks.load_task("gsm8k", f"{tmp_path}/").test] == ["test"]


@pytest.mark.parametrize("content", [b"", b"junk", b"PAR1\x00\x00PAR1", b"ARROW1\x00\x00\xff\xff\xff\xff"])
def test_junk_in_place_of_parquet_is_one_line(tmp_path, content, capfd):
    write_parquet(tmp_path)
    path = tmp_path / "main" / "train-00000-of-00001.parquet"
    path.write_bytes(content)
    with pytest.raises(ForgeError, match="does not read as parquet") as caught:
        tasks.load_task("gsm8k", tmp_path)
    assert str(path) in str(caught.value) and "RRLFORGE_GSM8K" in str(caught.value) and "\n" not in str(caught.value)
    assert "Traceback" not in capfd.readouterr().err


def test_rows_of_parquet_are_held_to_the_same_as_lines(tmp_path):
    import datasets

    write_parquet(tmp_path)
    path = tmp_path / "main" / "train-00000-of-00001.parquet"
    for rows, says in (([{"question": 7, "answer": "#### 5"}], "row 1 has no text in field 'question'"),
                       ([{"text": "a"}], "row 1 has no text in field 'question'")):
        datasets.Dataset.from_list(rows).to_parquet(path)
        with pytest.raises(ForgeError, match=says):
            tasks.load_task("gsm8k", tmp_path)
    datasets.Dataset.from_dict({"question": [], "answer": []}).to_parquet(path)
    with pytest.raises(ForgeError, match="does not read as parquet"):
        tasks.load_task("gsm8k", tmp_path)


def test_the_cache_serves_when_the_hub_does_not_answer(tmp_path, monkeypatch, hub):
    import huggingface_hub

    write_parquet(tmp_path)
    monkeypatch.setattr(tasks, "is_reachable", lambda endpoint: False)

    def download(repo, local_files_only, **kwargs):
        assert local_files_only
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert tasks.load_task("gsm8k").test[0].answer == "42"


def test_a_hub_with_another_layout_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(tasks, "from_hub", lambda *_: tmp_path)
    with pytest.raises(ForgeError, match="no main/train"):
        tasks.load_task("gsm8k", "someone/other-data")


def test_modelscope_without_its_package_says_what_to_install(monkeypatch):
    monkeypatch.setenv("RRLFORGE_MODELSCOPE", "1")
    monkeypatch.setitem(sys.modules, "modelscope", None)
    with pytest.raises(ForgeError, match="pip install modelscope"):
        tasks.load_task("gsm8k")


def test_modelscope_serves_the_data_set_when_asked(folder, monkeypatch):
    asked = []
    fake = SimpleNamespace(
        snapshot_download=lambda repo, **kwargs: asked.append((repo, kwargs["repo_type"])) or str(folder))
    monkeypatch.setenv("RRLFORGE_MODELSCOPE", "1")
    monkeypatch.setitem(sys.modules, "modelscope", fake)
    monkeypatch.setattr(tasks, "is_reachable", lambda endpoint: True)
    assert tasks.load_task("gsm8k").train[0].answer == "42"
    assert asked == [("modelscope/gsm8k", "dataset")]


def test_whatever_modelscope_raises_becomes_one_line(monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("many\nlines")

    monkeypatch.setenv("RRLFORGE_MODELSCOPE", "1")
    monkeypatch.setitem(sys.modules, "modelscope", SimpleNamespace(snapshot_download=fail))
    monkeypatch.setattr(tasks, "is_reachable", lambda endpoint: True)
    with pytest.raises(ForgeError, match="HF_ENDPOINT") as caught:
        tasks.load_task("gsm8k")
    assert "\n" not in str(caught.value)


def test_any_answer_counts_as_reachable(monkeypatch):
    monkeypatch.setattr(httpx, "head", lambda *_, **__: httpx.Response(403))
    assert tasks.is_reachable("http://hub")


# ---------------------------------------------------------------- arithmetic

@pytest.fixture(scope="module")
def arith():
    return tasks.load_task("arith")


def numbers(question):
    return tuple(map(int, re.findall(r"\d+", question)))


def test_no_test_problem_nor_its_numbers_in_order_is_trained_on(arith):
    stream = tasks.word_problems(random.Random(5))
    trained = [p.question for p in arith.train] + [next(stream).question for _ in range(5000)]
    assert not {p.question for p in arith.test} & set(trained)
    assert not {numbers(p.question) for p in arith.test} & {numbers(q) for q in trained}


def test_each_numbers_in_order_occurs_once_in_its_list(arith):
    for problems, count in ((arith.train, tasks.ARITH_TRAIN), (arith.test, tasks.ARITH_TEST)):
        assert len({numbers(p.question) for p in problems}) == len(problems) == count


def test_the_lists_are_the_same_every_time(arith):
    tasks.load_arith.cache_clear()
    assert tasks.load_task("arith") == arith


def test_solutions_are_true_chains_that_end_in_the_answer(arith):
    for problem in arith.train[:500] + arith.test:
        *lines, boxed = problem.solution.split("\n")
        value, *operands = numbers(problem.question)
        assert len(lines) == len(operands) in (2, 3)
        for line, operand in zip(lines, operands):
            left, op, right, result = re.fullmatch(r"(\d+)([-+*])(\d+)=(\d+)", line).groups()
            assert (int(left), int(right)) == (value, operand)
            value = {"+": value + operand, "-": value - operand, "*": value * operand}[op]
            assert int(result) == value and 0 < value <= tasks.LARGEST
        assert boxed == f"\\boxed{{{value}}}" and problem.answer == str(value)
        assert is_correct(problem.solution, problem.answer)


def test_the_words_of_a_question_say_its_operations(arith):
    signs = {**dict.fromkeys(("又买", "捡到", "收到"), "+"), **dict.fromkeys(("送出", "卖掉", "丢了"), "-"), "变成": "*"}
    for problem in arith.test[:100]:
        told = [signs[verb] for verb in re.findall("|".join(signs), problem.question)]
        assert told == re.findall(r"\d([-+*])\d", problem.solution)


def test_about_one_key_in_ten_is_held_out():
    share = sum(tasks.is_held_out((a, b, c)) for a in range(20) for b in range(20) for c in range(10)) / 4000
    assert 0.08 < share < 0.12


# ---------------------------------------------------------------- prompts

class Template:
    """Stands for a tokenizer: shows what the template is given, and one id a character."""

    chat_template, name_or_path = "x", "some/model"

    def apply_chat_template(self, messages, tokenize, add_generation_prompt, enable_thinking):
        assert not tokenize and add_generation_prompt
        return f"[{messages[0]['role']}:{messages[0]['content']}|{enable_thinking}]"

    def __call__(self, text, add_special_tokens):
        assert not add_special_tokens
        return {"input_ids": [ord(c) for c in text]}


def test_a_prompt_is_the_question_and_the_instruction_in_the_template():
    problem = tasks.Problem("1+1?", "2")
    task = tasks.Task("t", "Box it.", [], [], 8)
    assert tasks.prompt_text(Template(), problem, task) == "[user:1+1?\nBox it.|False]"
    bare = tasks.Task("t", "", [], [], 8)
    assert tasks.prompt_text(Template(), problem, bare, thinking=True) == "[user:1+1?|True]"
    assert tasks.prompt_ids(Template(), problem, task) == [ord(c) for c in "[user:1+1?\nBox it.|False]"]


def test_a_tokenizer_without_a_template_is_refused_by_name():
    bare = Template()
    bare.chat_template = None
    with pytest.raises(ForgeError, match="some/model has no chat template"):
        tasks.prompt_text(bare, tasks.Problem("1+1?", "2"), tasks.Task("t", "", [], [], 8))


def rendered(template: str):
    """A stand-in tokenizer that renders `template` as transformers does."""
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def raise_exception(message):
        raise jinja2.TemplateError(message)

    def apply_chat_template(messages, tokenize, **variables):
        environment = ImmutableSandboxedEnvironment()
        environment.globals["raise_exception"] = raise_exception
        return environment.from_string(template).render(messages=messages, **variables)

    return SimpleNamespace(chat_template=template, name_or_path="some/model",
                           apply_chat_template=apply_chat_template)


@pytest.mark.parametrize(("template", "says"), [
    ("{{ raise_exception('Conversation roles\nmust alternate') }}",
     "TemplateError: Conversation roles must alternate"),
    ("{% for m in messages %}{{ m.content }}", "TemplateSyntaxError: "),
    ("{{ messages[0].content", "TemplateSyntaxError: "),
    ("{{ messages[0].turn.text }}", "UndefinedError: "),
    ("{{ messages | nofilter }}", "TemplateAssertionError: "),
    ("{{ messages.append(1) }}", "SecurityError: "), ("{{ 1 + 'a' }}", "TypeError: "),
    ("{{ 1 / 0 }}", "ZeroDivisionError: "),
    ("{{ raise_exception('long ' * 1000) }}", "TemplateError: long long"),
])
def test_a_broken_chat_template_is_one_line_that_names_the_model(template, says):
    with pytest.raises(ForgeError) as caught:
        tasks.prompt_text(rendered(template), tasks.Problem("1+1?", "2"), tasks.Task("t", "", [], [], 8))
    message = str(caught.value)
    assert message.startswith(f"the chat template of some/model fails ({says}")
    assert "repair chat_template.jinja" in message and "\n" not in message and len(message) < 400


def test_a_sound_chat_template_is_rendered():
    tokenizer = rendered("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>")
    task = tasks.Task("t", "", [], [], 8)
    assert tasks.prompt_text(tokenizer, tasks.Problem("1+1?", "2"), task) == "<user>1+1?<assistant>"


@pytest.mark.skipif("RRLFORGE_TEST_QWEN3" not in os.environ, reason="RRLFORGE_TEST_QWEN3 names no folder")
def test_qwen3s_empty_think_block_belongs_to_the_prompt():
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(os.environ["RRLFORGE_TEST_QWEN3"])
    task = tasks.Task("t", "", [], [], 8)
    assert tasks.prompt_text(tokenizer, tasks.Problem("1+1?", "2"), task) == (
        "<|im_start|>user\n1+1?<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n")
    thinking = tasks.prompt_ids(tokenizer, tasks.Problem("1+1?", "2"), task, thinking=True)
    assert tokenizer.decode(thinking).endswith("<|im_start|>assistant\n")
    assert thinking[0] == tokenizer.convert_tokens_to_ids("<|im_start|>")
