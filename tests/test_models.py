"""Loading policies, end tokens, and the tiny model: its tokenizer, its warm-up and its cache."""
import dataclasses
import json
import logging
import os
import random
import re
import shutil
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from signal import SIGKILL
from types import SimpleNamespace

import pytest
import torch
from toy import toy_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from rrlforge import models, tasks
from rrlforge.errors import ForgeError

QUICK = models.Recipe(hidden=32, heads=2, kv_heads=1, head_dim=16, ffn=48, layers=1, steps=2, habit_steps=1,
                      batch=2)


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("RRLFORGE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("RRLFORGE_MODELSCOPE", raising=False)


@pytest.fixture
def folder(own_cache):
    return models.tiny_folder(recipe=QUICK)


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def reports():
    """What transformers logs: lines that a reader would see on stderr."""
    records, handler = [], logging.Handler()
    handler.emit = records.append
    logging.getLogger("transformers").addHandler(handler)
    yield records
    logging.getLogger("transformers").removeHandler(handler)


def folders_in(cache):
    return sorted(path.name for path in cache.iterdir() if path.is_dir())


@pytest.fixture(scope="module")
def tokenizer():
    return models.character_tokenizer()


# ---------------------------------------------------------------- the tokenizer of tiny

def test_every_problem_and_solution_round_trips_one_token_a_character(tokenizer):
    for problem in tasks.load_arith().test:
        text = problem.question + problem.solution
        ids = tokenizer(text)["input_ids"]
        assert len(ids) == len(text) and tokenizer.decode(ids) == text


def test_all_of_ascii_and_its_spacing_round_trips(tokenizer):
    text = "\n".join("".join(chr(c) for c in range(32, 127)).split("@")) + "  a , b .\n\n it 's"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_a_character_outside_the_vocabulary_is_seen_in_the_decoded_text(tokenizer):
    assert tokenizer.decode(tokenizer("小鸡x")["input_ids"], skip_special_tokens=True) == "小\ufffdx"


def test_prompts_are_chatml_with_one_token_each_for_its_marks(tokenizer):
    task = tasks.load_arith()
    problem = task.test[0]
    text = f"<|im_start|>user\n{problem.question}<|im_end|>\n<|im_start|>assistant\n"
    assert tasks.prompt_text(tokenizer, problem, task) == text
    assert tasks.prompt_text(tokenizer, problem, task, thinking=True) == text
    ids = tasks.prompt_ids(tokenizer, problem, task)
    marks = tokenizer.convert_tokens_to_ids(["<|im_start|>", "<|im_end|>"])
    assert [i for i in ids if i in marks] == [marks[0], marks[1], marks[0]]
    assert tokenizer.decode(ids, skip_special_tokens=True) == f"user\n{problem.question}\nassistant\n"


def test_the_longest_problem_fits_into_the_model_and_the_completion_limit(tokenizer):
    task = tasks.load_arith()
    longest = max(len(tasks.prompt_ids(tokenizer, p, task)) for p in task.train + task.test)
    assert longest + task.max_new_tokens <= models.Recipe().max_length
    assert max(len(p.solution) + 1 for p in task.train + task.test) <= task.max_new_tokens


# ---------------------------------------------------------------- the warm-up of tiny

def test_only_answers_and_their_end_token_are_taught(tokenizer):
    ids, mask = models.teach(tokenizer, [("小明", "1+1=2"), ("小红有2个", "3")])
    taught = [tokenizer.decode(row[1:][chosen]) for row, chosen in zip(ids, mask)]
    assert taught == ["1+1=2<|im_end|>", "3<|im_end|>"]


def steps_of(*numbers):
    return tuple(tasks.Step(left, op, right, tasks.compute(left, op, right)) for left, op, right in numbers)


def test_without_bad_habits_the_solution_is_the_right_one():
    good = dataclasses.replace(QUICK, terse=0.0, forget=0.0)
    steps = steps_of((27, "+", 15), (42, "-", 4))
    assert models.habitual(random.Random(0), steps, good) == tasks.solution_text(steps)


def test_bad_habits_are_no_steps_and_forgotten_carries():
    steps = steps_of((27, "+", 15), (42, "-", 4), (38, "-", 30))
    forgets = dataclasses.replace(QUICK, terse=0.0, forget=1.0)
    assert models.habitual(random.Random(0), steps, forgets) == "27+15=32\n32-4=38\n38-30=8\n\\boxed{8}"
    assert models.habitual(random.Random(0), steps, dataclasses.replace(QUICK, terse=1.0)) == "\\boxed{8}"


@pytest.mark.parametrize("left, op, right, value", [
    (27, "+", 15, 32), (21, "+", 15, 36), (42, "-", 15, 37), (48, "-", 15, 33), (18, "*", 3, 34),
    (21, "*", 2, 42), (5, "+", 9, 4)])
def test_without_carry_reckons_digit_by_digit(left, op, right, value):
    assert models.without_carry(left, op, right) == value


def test_the_same_seed_gives_the_same_weights_whatever_the_global_state(own_cache, tmp_path, monkeypatch):
    weights = []
    for place in ("a", "b"):
        monkeypatch.setenv("RRLFORGE_CACHE", str(tmp_path / place))
        torch.manual_seed(len(weights))
        weights.append((models.tiny_folder(recipe=QUICK) / "model.safetensors").read_bytes())
    assert weights[0] == weights[1]
    other = models.tiny_folder(recipe=dataclasses.replace(QUICK, seed=1))
    assert (other / "model.safetensors").read_bytes() != weights[0]


def test_building_leaves_the_global_random_state_alone(own_cache):
    torch.manual_seed(3)
    want = torch.rand(2)
    torch.manual_seed(3)
    models.tiny_folder(recipe=QUICK)
    assert torch.equal(torch.rand(2), want)


def test_warm_up_lowers_the_loss(tokenizer):
    recipe = dataclasses.replace(QUICK, lr=1e-2, lr_warmup=1, steps=30, habit_steps=0)
    pairs = [(p.question, p.solution) for p in tasks.load_arith().train[:16]]
    ids, mask = models.teach(tokenizer, pairs)

    def loss(model):
        with torch.no_grad():
            logits = model(input_ids=ids).logits[:, :-1][mask]
            return float(torch.nn.functional.cross_entropy(logits, ids[:, 1:][mask]))

    model = models.untrained(recipe)
    before = loss(model)
    models.warm_up(model, tokenizer, recipe, SimpleNamespace(update=lambda: None))
    assert loss(model) < 0.8 * before


def test_tiny_itself_is_a_small_qwen3():
    model = models.untrained(models.Recipe())
    assert 300_000 < models.count_parameters(model) < 1_000_000
    assert type(model).__name__ == "Qwen3ForCausalLM"
    assert model.config.head_dim >= 32  # the smallest that vLLM's attention on a CPU takes
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight


# ---------------------------------------------------------------- the cache of tiny

def test_the_folder_opens_with_transformers_alone(folder):
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    assert model.config.architectures == ["Qwen3ForCausalLM"] and model.dtype == torch.float32
    ends = tokenizer.convert_tokens_to_ids(["<|endoftext|>", "<|im_end|>"])
    assert sorted(model.generation_config.eos_token_id) == sorted(ends)
    text = "小明有7个杯子。\n7+2=9"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert (tokenizer.pad_token, tokenizer.eos_token) == ("<|endoftext|>", "<|im_end|>")


def test_a_second_call_takes_the_cached_folder(folder, monkeypatch):
    monkeypatch.setattr(models, "build_tiny", lambda *_: pytest.fail("built again"))
    assert models.tiny_folder(recipe=QUICK) == folder
    assert folders_in(folder.parent) == [folder.name]  # no temporary folder stays


@pytest.mark.parametrize("change", [dict(seed=1), dict(lr=1e-3), dict(forget=0.1)])
def test_another_recipe_has_another_folder(change):
    assert dataclasses.replace(QUICK, **change).key() != QUICK.key()


def test_other_problems_have_another_folder(monkeypatch):
    before = QUICK.key()
    monkeypatch.setattr(tasks, "ARITH_VERSION", tasks.ARITH_VERSION + 1)
    assert QUICK.key() != before


def cut_weights(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def flip_weights(folder):
    data = bytearray((folder / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (folder / "model.safetensors").write_bytes(data)


@pytest.mark.parametrize("damage", [
    cut_weights, flip_weights, lambda f: (f / "model.safetensors").unlink(),
    lambda f: (f / "tokenizer.json").write_text("{"),
    lambda f: (f / models.SEAL).unlink(), lambda f: (f / models.SEAL).write_text("[]"), shutil.rmtree])
def test_a_damaged_cache_is_built_anew(folder, damage):
    whole = (folder / "model.safetensors").read_bytes()
    damage(folder)
    assert not models.is_whole(folder)
    assert models.tiny_folder(recipe=QUICK) == folder
    assert models.is_whole(folder) and (folder / "model.safetensors").read_bytes() == whole


def test_a_broken_off_build_leaves_nothing(own_cache, monkeypatch):
    monkeypatch.setattr(models, "warm_up", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        models.tiny_folder(recipe=QUICK)
    assert folders_in(models.cache_root()) == []


def test_a_build_finished_meanwhile_by_another_process_stays(folder):
    before = os.stat(folder / "model.safetensors").st_ino
    models.build_tiny(QUICK, folder)
    assert os.stat(folder / "model.safetensors").st_ino == before
    assert folders_in(folder.parent) == [folder.name]


def test_of_two_builds_at_once_the_second_waits_and_takes_the_first_ones(own_cache, monkeypatch):
    made, make = [], models.make_tiny

    def slow(recipe, beside):
        made.append(beside)
        time.sleep(0.3)
        make(recipe, beside)

    monkeypatch.setattr(models, "make_tiny", slow)
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: models.tiny_folder(recipe=QUICK), range(2))
    assert first == second and models.is_whole(first) and len(made) == 1


def die_while_building(recipe):
    """A child process that is killed in the middle of its build; what it leaves stays."""
    child = os.fork()
    if child == 0:
        models.make_tiny = lambda _, beside: ((beside / "config.json").write_text("{"), os.kill(os.getpid(), SIGKILL))
        models.tiny_folder(recipe=recipe)
        os._exit(1)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == SIGKILL


def test_what_a_killed_build_left_is_removed_by_the_next_and_blocks_it_not(own_cache):
    die_while_building(QUICK)
    assert len(folders_in(models.cache_root())) == 1
    folder = models.tiny_folder(recipe=QUICK)
    assert models.is_whole(folder) and folders_in(folder.parent) == [folder.name]


def test_what_another_recipe_left_is_removed_after_a_day_only(own_cache):
    die_while_building(dataclasses.replace(QUICK, seed=7))
    (left,) = folders_in(models.cache_root())
    folder = models.tiny_folder(recipe=QUICK)
    assert folders_in(folder.parent) == sorted([folder.name, left])  # perhaps its process lives
    yesterday = time.time() - models.DAY - 60
    os.utime(folder.parent / left, (yesterday, yesterday))
    shutil.rmtree(folder)
    models.tiny_folder(recipe=QUICK)
    assert folders_in(folder.parent) == [folder.name]


def test_a_folder_put_there_while_building_stays(folder, monkeypatch):
    whole, aside = models.is_whole, folder.with_name("aside")
    folder.rename(aside)

    def too_late(path):
        if not folder.exists():
            aside.rename(folder)
            return False
        return whole(path)

    monkeypatch.setattr(models, "is_whole", too_late)
    monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: None)
    before = (aside / "model.safetensors").stat().st_ino
    models.build_tiny(QUICK, folder)
    assert (folder / "model.safetensors").stat().st_ino == before


def test_a_cache_that_cannot_be_written_is_named(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("RRLFORGE_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(ForgeError, match="set RRLFORGE_CACHE"):
        models.tiny_folder(recipe=QUICK)


@pytest.mark.parametrize("terminal, variable, silent",
                         [(True, "", False), (True, "1", True), (False, "", True)])
def test_the_bar_shows_on_a_terminal_only_and_can_be_switched_off(monkeypatch, terminal, variable, silent):
    stream = SimpleNamespace(isatty=lambda: terminal, write=lambda _: None, flush=lambda: None)
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TQDM_DISABLE", variable)
    with models.progress(3) as bar:
        assert bar.disable == silent


def test_the_warm_up_uses_one_thread_and_gives_the_others_back(own_cache, two_threads, monkeypatch):
    seen, fit = [], models.fit
    monkeypatch.setattr(models, "fit", lambda *a: (seen.append(torch.get_num_threads()), fit(*a)))
    models.tiny_folder(recipe=QUICK)
    assert seen == [1, 1] and torch.get_num_threads() == 2


# ---------------------------------------------------------------- loading

def test_tiny_loads_by_its_name(folder, monkeypatch):
    monkeypatch.setattr(models, "tiny_folder", lambda seed: folder)
    model, tokenizer = models.load_model("tiny", device="cpu")
    assert model.dtype == torch.float32 and not model.training
    assert models.load_config("tiny").eos_token_id == models.end_token_ids(model, tokenizer) == [0, 2]


def test_a_folder_loads_in_the_dtype_asked_for(folder):
    model, _ = models.load_model(str(folder), device="cpu", dtype=torch.bfloat16)
    assert model.dtype == torch.bfloat16


@pytest.mark.parametrize("limit, threads", [(models.SMALL, 1), (1, 2)])
def test_a_small_model_on_a_cpu_runs_on_one_thread_and_a_big_one_as_before(folder, two_threads, monkeypatch, limit, threads):
    monkeypatch.setattr(models, "SMALL", limit)
    models.load_model(str(folder), device="cpu")
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize("name", ["./nowhere", "no/such/folder/here", "nowhere"])
def test_a_missing_folder_is_named(name):
    with pytest.raises(ForgeError, match=f"no folder {name!r}: "):
        models.load_model(name)


def test_a_folder_without_config_points_to_the_model_inside_a_run(folder, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(folder, run / "model")
    with pytest.raises(ForgeError, match=r"has no config.json: did you mean .*run/model\?"):
        models.load_model(str(run))
    with pytest.raises(ForgeError, match="has no config.json: name a model's folder"):
        models.load_model(str(tmp_path))


def test_weights_that_are_not_safetensors_are_refused(folder):
    torch.save({}, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(ForgeError, match="no .safetensors file"):
        models.load_model(str(folder))


def bring_code(folder):
    (folder / "own.py").write_text("raise SystemExit('ran')")
    (folder / "config.json").write_text(json.dumps({
        "model_type": "own", "auto_map": {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"}}))


@pytest.mark.parametrize("damage", [cut_weights, lambda f: (f / "config.json").write_text("{"),
                                    lambda f: (f / "config.json").write_text('{"model_type": "unheard-of"}'),
                                    lambda f: (f / "tokenizer.json").write_text("{"), bring_code])
def test_a_folder_that_does_not_load_is_one_line(folder, damage):
    damage(folder)
    with pytest.raises(ForgeError) as caught:
        models.load_model(str(folder))
    assert str(folder) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("size", [154, 100, 0, -1, "153", "many", 153.5, None, True, [153]])
def test_a_vocab_size_that_cannot_be_is_one_line_and_nothing_from_transformers(folder, size, reports):
    change_config(folder, vocab_size=size)
    for load in (models.load_config, models.load_tokenizer, models.load_model):
        with pytest.raises(ForgeError, match=re.escape(f"{folder}/config.json has vocab_size {size!r}")) as caught:
            load(str(folder))
        assert "\n" not in str(caught.value)
    assert reports == []


def test_weights_that_do_not_fit_the_config_are_named_in_one_line(folder, reports):
    change_config(folder, intermediate_size=40)
    with pytest.raises(ForgeError, match=r"layers.0.mlp.down_proj.weight is \(32, 48\) in the weights, \(32, 40\) by"):
        models.load_model(str(folder))
    change_config(folder, intermediate_size=48, num_hidden_layers=2, layer_types=["full_attention"] * 2)
    with pytest.raises(ForgeError, match="the weights lack model.layers.1.input_layernorm.weight: repair"):
        models.load_model(str(folder))
    assert reports == []


def change_config(folder, **values):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def test_a_hub_that_does_not_answer_says_what_to_set(monkeypatch, tmp_path):
    from huggingface_hub import constants

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{port}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    with pytest.raises(ForgeError) as caught:
        models.load_model("Qwen/Qwen3-0.6B")
    assert all(name in str(caught.value) for name in ("HF_ENDPOINT", "RRLFORGE_MODELSCOPE=1", "local folder"))
    assert "\n" not in str(caught.value)


def test_a_hub_id_is_fetched_as_safetensors_and_loaded(folder, monkeypatch):
    asked = []
    monkeypatch.setattr(tasks, "download", lambda *arguments: asked.append(arguments) or folder)
    model, _ = models.load_model("Qwen/Qwen3-0.6B", device="cpu")
    assert asked[0][:2] == ("Qwen/Qwen3-0.6B", "model")
    assert "*.safetensors" in asked[0][2] and "*.bin" not in asked[0][2]
    assert type(model).__name__ == "Qwen3ForCausalLM"


# ---------------------------------------------------------------- end tokens, counting

def fake_tokenizer(eos, **vocab):
    return SimpleNamespace(eos_token_id=eos, get_vocab=lambda: {f"<|{k}|>": v for k, v in vocab.items()})


def test_every_end_token_is_found_wherever_it_is_named():
    model = SimpleNamespace(config=SimpleNamespace(eos_token_id=7),
                            generation_config=SimpleNamespace(eos_token_id=[5, 9]))
    tokenizer = fake_tokenizer(5, im_end=11, endoftext=12, other=1)
    assert models.end_token_ids(model, tokenizer) == [5, 7, 9, 11, 12]
    assert models.end_token_ids(SimpleNamespace(eos_token_id=None), fake_tokenizer(3)) == [3]


def test_the_config_of_a_folder_lists_the_end_tokens_of_its_generation_config(folder):
    path = folder / "generation_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "eos_token_id": [4, 6]}))
    assert models.load_config(str(folder)).eos_token_id == [2, 4, 6]
    path.unlink()
    assert models.as_list(models.load_config(str(folder)).eos_token_id) == [2]


def test_tied_weights_count_once():
    model = toy_model(vocab=37)
    untied = sum(t.numel() for name, t in model.state_dict().items() if name != "lm_head.weight")
    assert models.count_parameters(model) == untied


def test_a_lesson_trains_tiny_without_a_gpu_and_what_the_reader_names(monkeypatch):
    monkeypatch.delenv("RRLFORGE_MODEL", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert models.default_model() == "tiny"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert models.default_model() == "Qwen/Qwen3-0.6B"
    monkeypatch.setenv("RRLFORGE_MODEL", "some/folder")
    assert models.default_model() == "some/folder"


def test_tiny_with_a_seed_is_another_start_of_the_same_recipe(monkeypatch):
    monkeypatch.setattr(models, "tiny_folder", lambda seed=0: f"seed {seed}")
    assert [models.model_folder(name) for name in ("tiny", "tiny:0", "tiny:12")] == ["seed 0", "seed 0", "seed 12"]
    with pytest.raises(ForgeError, match="no folder .tiny:x."):
        models.model_folder("tiny:x")


@pytest.mark.parametrize("text", [None, "{}", "[]", "{"])
def test_a_folder_without_the_tokenizer_s_settings_is_refused_not_guessed(folder, text):
    settings = folder / "tokenizer_config.json"
    settings.unlink()
    if text is not None:
        settings.write_text(text)
    with pytest.raises(ForgeError, match="tokenizer"):
        models.load_tokenizer(str(folder))


@pytest.mark.parametrize("eos", ['"x"', "[[1]]", "[1, null]", "true"])
@pytest.mark.parametrize("name", ["generation_config.json", "config.json"])
def test_an_end_token_that_is_no_id_is_one_line(folder, name, eos):
    values = json.loads((folder / name).read_text())
    values["eos_token_id"] = json.loads(eos)
    (folder / name).write_text(json.dumps(values))
    with pytest.raises(ForgeError, match=f"{name} has eos_token_id"):
        models.model_folder(str(folder))


def test_a_generation_config_that_is_not_json_is_one_line(folder):
    (folder / "generation_config.json").write_text("{")
    with pytest.raises(ForgeError, match="generation_config.json does not load"):
        models.load_model(str(folder))
